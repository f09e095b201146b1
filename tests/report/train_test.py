# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own modules, optimizers and schedules train what Kuafu trains: 20 losses agree."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("KUAFU_BUILD", ROOT / "build" / "release")) / "bin" / "kuafu-bench-step"
sys.path.insert(0, str(ROOT / "baselines" / "pytorch"))

import start
import train

HIDDEN, STEPS = 32, 20
# Relative. n roundings to f32 at random are within l sqrt(n) 2^-24 but for a chance of 2 exp(-l^2 / 2) [Higham & Mary,
# SIAM J. Sci. Comput. 41 (2019), theorem 2.4]: sums of up to 4 * HIDDEN terms, 8 of them in each of two layers and the
# head, l = 4. Losses were 2.2e-7 apart at most.
TOLERANCE = 4 * (4 * HIDDEN * 8 * 3) ** 0.5 * 2 ** -24
MODEL = f"layers = 2\nhidden = {HIDDEN}\nheads = 4\n"
TEXT = MODEL + "vocab = 256\nsequence = 24\n"
ADAMW = "lr = 3e-3\nclip = 0.5\nschedule = \"cosine\"\nwarmup = 3\n"
SGD = "kind = \"sgd\"\nlr = 0.1\nclip = 0\n"


def plan(kind, model, optimizer=ADAMW):
    return (f"[model]\nkind = \"{kind}\"\n{model}[optimizer]\n{optimizer}"
            f"[data]\nkind = \"synthetic\"\n[train]\nbatch = 8\nsteps = {STEPS}\n")


class Training(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def bench(self, text, *options):
        path = Path(self.folder.name) / "plan.toml"
        path.write_text(text, encoding="utf-8")
        return subprocess.run([str(PROGRAM), "--plan", str(path), "--steps", str(STEPS), *options],
                              capture_output=True, text=True, timeout=120, check=False)

    def start_of(self, text):
        path = Path(self.folder.name) / "start.safetensors"
        done = self.bench(text, "--export", str(path))
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    def assert_trains_alike(self, text):
        path = self.start_of(text)
        done = self.bench(text, "--warmup", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        ours, theirs = json.loads(done.stdout)["loss"], train.train(path)
        self.assertEqual((len(ours), len(theirs)), (STEPS, STEPS))
        self.assertGreater(ours[0] - ours[-1], 1000 * TOLERANCE)    # it learns: losses have something to say
        for a, b in zip(ours, theirs):
            self.assertAlmostEqual(a, b, delta=TOLERANCE * b)

    def test_gpt(self):
        self.assert_trains_alike(plan("gpt", TEXT))

    def test_bert(self):
        self.assert_trains_alike(plan("bert", TEXT))

    def test_vit(self):
        self.assert_trains_alike(plan("vit", MODEL + "image = 16\npatch = 4\n"))

    def test_sgd(self):
        self.assert_trains_alike(plan("gpt", TEXT, SGD))

    def test_models_that_are_not_here_are_refused(self):
        for text, reason in ((plan("gpt", TEXT + "norm = \"rms\"\n"), "model.norm = 'rms'"),
                             (plan("gpt", TEXT + "norm_epsilon = 1e-6\n"), "model.norm_epsilon = 1e-06"),
                             (plan("gpt", TEXT + "tied = false\n"), "model.tied = False"),
                             (plan("gpt", TEXT + "mlp = \"relu\"\n"), "model.mlp = 'relu'"),
                             (plan("opt", TEXT), "model.kind = 'opt'"),
                             (plan("moe_gpt", TEXT), "model.kind = 'moe_gpt'")):
            with self.assertRaises(SystemExit) as refused:
                train.train(self.start_of(text))
            self.assertIn(reason, str(refused.exception))

    def test_other_ranks_and_types_are_not_exported(self):
        for line, reason in (("dtype = \"bf16\"\n", "bf16"), ("[parallel]\ndata = 2\n", "2 ranks")):
            done = self.bench(plan("gpt", TEXT + line), "--export", "none")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(reason, done.stderr)

    def test_options_that_a_plan_decides_are_refused_beside_it(self):
        done = self.bench(plan("gpt", TEXT), "--hidden", "64")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--hidden", done.stderr)


if __name__ == "__main__":
    unittest.main()
