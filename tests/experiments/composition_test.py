# SPDX-License-Identifier: Apache-2.0
"""experiments/composition: one plan of four kinds of parallelism runs, and its claims hold."""

import copy
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("KUAFU_BUILD", ROOT / "build" / "release"))
FOLDER = ROOT / "experiments" / "composition"
sys.path.insert(0, str(FOLDER))

import run


class Composition(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            cls.done = subprocess.run([sys.executable, str(FOLDER / "run.py"), "--build", str(BUILD), "--out", folder, "--quick"],
                                      capture_output=True, text=True)
            cls.rows = json.loads((Path(folder) / "result.json").read_text())["rows"]

    def test_every_claim_holds(self):
        self.assertEqual(self.done.returncode, 0, self.done.stdout + self.done.stderr)
        self.assertEqual(self.done.stdout.count("| yes |"), 5)

    def test_claims_can_fail(self):
        for key, value in (("same_in_both_worlds", False), ("peak_bytes", 10**9), ("loss", [1.0, 1.0]), ("flops_per_step", 1),
                           ("certificate", {**self.rows[1]["certificate"], "verdict": "different"})):
            rows = copy.deepcopy(self.rows)
            rows[1][key] = value
            self.assertEqual(sum(not v["holds"] for v in run.verdicts(rows)), 1, key)

    def test_sizes_multiply_to_the_ranks(self):
        for name, ranks, settings in run.CASES:
            sizes = [v for k, v in settings.items() if k.endswith(".size") and "expert" not in k]
            self.assertEqual(math.prod(sizes), ranks, name)


if __name__ == "__main__":
    unittest.main()
