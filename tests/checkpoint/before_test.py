# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that an older program wrote (before/README.md) load and go on to that program's losses."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

KUAFU = os.path.join(os.environ["KUAFU_BINARY_DIR"], "bin", "kuafu")
HERE = os.path.join(os.environ["KUAFU_SOURCE_DIR"], "tests", "checkpoint")
SAVED_STEP = 2


class Before(unittest.TestCase):
    folder = "before"
    # f32: weights and activations of other placements are rounded otherwise, eps each; a loss is the mean over 32 tokens of a sum
    # of a few dozen of them. An update that lacked a slot, or took another step number, moves it by 1e-4 and more.
    tolerance = 64 * 2**-23

    def setUp(self):
        self.before = os.path.join(HERE, self.folder)
        with open(os.path.join(self.before, "losses.json"), encoding="utf-8") as file:
            self.expected = json.load(file)

    def goes_on(self, *settings, is_same_plan=False):
        """The document of a run of two more steps under the plan with other settings."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(os.path.join(self.before, "step-00000002"), os.path.join(folder, "step-00000002"))
            record = os.path.join(folder, "run.json")
            words = [KUAFU, "run", os.path.join(self.before, "plan.toml"), "--checkpoint", folder, "--resume", "--json", record]
            for setting in settings:
                words += ["--set", setting]
            done = subprocess.run(words, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(record, encoding="utf-8") as file:
                document = json.load(file)
        self.assertEqual(document["resumed_from"], SAVED_STEP)
        wanted = self.expected["losses"][SAVED_STEP:]
        self.assertEqual(len(document["loss"]), len(wanted))
        tolerance = 0 if is_same_plan and self.is_same_machine(document) else self.tolerance
        for now, then in zip(document["loss"], wanted):
            self.assertLessEqual(abs(now - then), tolerance * then, f"{settings}: {document['loss']} for {wanted}")
        return document

    def is_same_machine(self, document):
        made_by = document["provenance"]
        return (made_by["cpu_model"] == self.expected["cpu_model"]
                and made_by["libraries"]["LibTorch"] == self.expected["LibTorch"])

    def test_its_own_plan_goes_on_to_the_bit(self):
        self.goes_on(is_same_plan=True)

    def test_one_rank(self):
        self.goes_on("parallel.data=1", "parallel.zero=0")

    def test_shards_of_a_scheme_under_zero_3(self):
        self.goes_on("parallel.zero=3", "parallel.tensor.mode=1d", "parallel.tensor.size=2")

    def test_a_pipeline(self):
        self.goes_on("parallel.data=1", "parallel.zero=0", "parallel.pipeline=2", "train.micro_batch=2")


class BeforeInHalfPrecision(Before):
    """Experts in f16 under SGD: masters in f32, momentum, a loss scale on its way up."""
    folder = "before_half"
    # A loss is rounded to f16 once. Without momentum it is 3 % away.
    tolerance = 2**-11

    def is_same_machine(self, document):
        return False    # a bias was added to the rounded product then; now it is part of the product, rounded once

    def goes_on(self, *settings, is_same_plan=False):
        document = super().goes_on(*settings, is_same_plan=is_same_plan)
        self.assertEqual(document["loss_scale"]["scale"], self.expected["loss_scale"][SAVED_STEP:])

    def test_one_rank(self):
        super().goes_on("parallel.data=1", "parallel.zero=0", "parallel.expert=1")

    def test_a_pipeline(self):
        super().goes_on("parallel.data=1", "parallel.zero=0", "parallel.expert=1", "parallel.pipeline=2", "train.micro_batch=2")


if __name__ == "__main__":
    unittest.main()
