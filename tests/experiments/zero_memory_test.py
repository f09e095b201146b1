# SPDX-License-Identifier: Apache-2.0
"""experiments/zero_memory: the committed result carries its claims; a small version runs and its claims hold; the
formulas give what the paper prints."""

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
RESULTS = ROOT / "results" / "zero_memory"
sys.path.insert(0, str(FOLDER))

import closed_forms
import run


class Quick(unittest.TestCase):
    """The committed result, the formulas, and one row of the table taken anew."""

    @classmethod
    def setUpClass(cls):
        cls.result = json.loads((RESULTS / "result.json").read_text())

    def test_every_claim_of_the_committed_result_holds(self):
        checks = run.verdicts(self.result)
        self.assertEqual([c["claim"] for c in checks if not c["holds"]], [])
        self.assertEqual(run.table(self.result, checks), (RESULTS / "table.md").read_text())

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

    def test_four_ranks_of_stage_3_hold_and_receive_what_was_committed(self):
        row, _ = run.measure(BUILD, 4, 3, {})
        committed = next(r for r in self.result["rows"] if (r["ranks"], r["stage"]) == (4, 3))
        self.assertEqual({k: row[k] for k in ("held", "received", "peak_bytes")},
                         {k: committed[k] for k in ("held", "received", "peak_bytes")})


class Whole(unittest.TestCase):
    """All stages of a small model, on thread ranks too."""

    def test_every_claim_holds(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, str(FOLDER / "run.py"), "--build", str(BUILD), "--out", folder, "--quick"],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("| yes |"), 6)
            self.assertEqual((Path(folder) / "zero_memory.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")


if __name__ == "__main__":
    unittest.main()
