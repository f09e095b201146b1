# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that an older program wrote (before/README.md) loads and goes on to that program's losses."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

KUAFU = os.path.join(os.environ["KUAFU_BINARY_DIR"], "bin", "kuafu")
BEFORE = os.path.join(os.environ["KUAFU_SOURCE_DIR"], "tests", "checkpoint", "before")
SAVED_STEP = 2
# f32: weights and activations of other placements are rounded otherwise, eps each; a loss is the mean over 32 tokens of a sum
# of a few dozen of them. An update that lacked a slot, or took another step number, moves it by 1e-4 and more.
TOLERANCE = 64 * 2**-23

with open(os.path.join(BEFORE, "losses.json"), encoding="utf-8") as file:
    EXPECTED = json.load(file)


class Before(unittest.TestCase):
    def goes_on(self, *settings, tolerance=TOLERANCE):
        """The document of a run of two more steps under the plan with other settings."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(os.path.join(BEFORE, "step-00000002"), os.path.join(folder, "step-00000002"))
            record = os.path.join(folder, "run.json")
            words = [KUAFU, "run", os.path.join(BEFORE, "plan.toml"), "--checkpoint", folder, "--resume", "--json", record]
            for setting in settings:
                words += ["--set", setting]
            done = subprocess.run(words, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(record, encoding="utf-8") as file:
                document = json.load(file)
        self.assertEqual(document["resumed_from"], SAVED_STEP)
        wanted = EXPECTED["losses"][SAVED_STEP:]
        self.assertEqual(len(document["loss"]), len(wanted))
        if not self.is_same_machine(document):
            tolerance = TOLERANCE
        for now, then in zip(document["loss"], wanted):
            self.assertLessEqual(abs(now - then), tolerance * then, f"{settings}: {document['loss']} for {wanted}")

    @staticmethod
    def is_same_machine(document):
        made_by = document["provenance"]
        return made_by["cpu_model"] == EXPECTED["cpu_model"] and made_by["libraries"]["LibTorch"] == EXPECTED["LibTorch"]

    def test_its_own_plan_goes_on_to_the_bit(self):
        self.goes_on(tolerance=0)

    def test_one_rank(self):
        self.goes_on("parallel.data=1", "parallel.zero=0")

    def test_shards_of_a_scheme_under_zero_3(self):
        self.goes_on("parallel.zero=3", "parallel.tensor.mode=1d", "parallel.tensor.size=2")

    def test_a_pipeline(self):
        self.goes_on("parallel.data=1", "parallel.zero=0", "parallel.pipeline=2", "train.micro_batch=2")


if __name__ == "__main__":
    unittest.main()
