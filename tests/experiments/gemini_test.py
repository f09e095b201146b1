# SPDX-License-Identifier: Apache-2.0
"""experiments/gemini: a small model on a thread rank holds and moves what the simulated one does; a small version runs, its claims hold,
and they can fail."""

import copy
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("KUAFU_BUILD", ROOT / "build" / "release"))
FOLDER = ROOT / "experiments" / "gemini"
sys.path.insert(0, str(FOLDER))

import run


class Quick(unittest.TestCase):
    def test_a_thread_rank_holds_and_moves_what_the_simulated_one_does(self):
        pair = {world: run.tried(BUILD, run.SMALL[2], "auto", run.SMALL_BUDGETS[0], True, name)
                for world, name in (("real", "threads"), ("simulated", "simulated"))}
        self.assertTrue(run.alike(pair), pair)
        self.assertEqual(pair["real"]["certificate"]["verdict"], "equal")
        self.assertGreater(pair["real"]["to_device_bytes"], 0)
        self.assertLessEqual(pair["real"]["peak_bytes"], run.SMALL_BUDGETS[0] * 1e9)

    def test_what_fits_is_found_by_halves(self):
        for most in range(-1, 5):
            known = {(at, "auto", 1): {"fits": at <= most, "parameters": 1} for at in range(5)}
            self.assertEqual(run.largest(BUILD, range(5), "auto", 1, True, known), most)


class Whole(unittest.TestCase):
    def test_every_claim_holds_and_can_fail(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, str(FOLDER / "run.py"), "--build", str(BUILD), "--out", folder, "--quick"],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            result = json.loads((Path(folder) / "result.json").read_text())
        for part, change in (("rows", {"fits": False}), ("beside", {"to_device_bytes": 0, "to_host_bytes": 0}), ("pairs", {"simulated": {}})):
            broken = copy.deepcopy(result)
            for row in broken[part]:
                row.update(change)
            self.assertFalse(all(v["holds"] for v in run.verdicts(broken)), part)
