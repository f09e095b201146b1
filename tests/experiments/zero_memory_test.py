# SPDX-License-Identifier: Apache-2.0
"""experiments/zero_memory: a small version runs and its claims hold; the formulas give what the paper prints."""

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
FOLDER = ROOT / "experiments" / "zero_memory"
sys.path.insert(0, str(FOLDER))

import closed_forms
import run


class ZeroMemory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            cls.done = subprocess.run([sys.executable, str(FOLDER / "run.py"), "--build", str(BUILD), "--out", folder, "--quick"],
                                      capture_output=True, text=True)
            cls.result = json.loads((Path(folder) / "result.json").read_text())
            cls.figure = (Path(folder) / "zero_memory.png").read_bytes()

    def test_every_claim_holds(self):
        self.assertEqual(self.done.returncode, 0, self.done.stdout + self.done.stderr)
        self.assertEqual(self.done.stdout.count("| yes |"), 5)
        self.assertEqual(self.figure[:8], b"\x89PNG\r\n\x1a\n")

    def test_claims_can_fail(self):
        for key, value in (("received", 1.1), ("optimizer", 1.1), ("gradient", 0.5)):
            broken = copy.deepcopy(self.result)
            for row in broken["rows"]:
                holder = row if key == "received" else row["held"]
                holder[key] = int(holder[key] * value)
            self.assertFalse(all(v["holds"] for v in run.verdicts(broken)), key)

    def test_formulas_give_the_published_table(self):
        for ranks, row in closed_forms.PUBLISHED.items():
            for stage, published in enumerate(row):
                total = sum(closed_forms.states(stage, 7_500_000_000, ranks).values())
                self.assertEqual(closed_forms.shown(total, published), published)


if __name__ == "__main__":
    unittest.main()
