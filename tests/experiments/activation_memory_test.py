# SPDX-License-Identifier: Apache-2.0
"""experiments/activation_memory: the committed result carries its claims, which can fail; one row is counted anew; a small version
runs and its claims hold."""

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
FOLDER = ROOT / "experiments" / "activation_memory"
RESULTS = ROOT / "results" / "activation_memory"
sys.path.insert(0, str(FOLDER))

import closed_forms
import run


class Quick(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.result = json.loads((RESULTS / "result.json").read_text())

    def test_every_claim_of_the_committed_result_holds(self):
        checks = run.verdicts(self.result)
        self.assertEqual([c["claim"] for c in checks if not c["holds"]], [])
        self.assertEqual(run.table(self.result, checks), (RESULTS / "table.md").read_text())

    def test_claims_can_fail(self):
        for part, key in (("rows", "bytes"), ("threads", "bytes"), ("pipelines", "first_stage")):
            broken = copy.deepcopy(self.result)
            broken[part][-1][key] += 1
            self.assertFalse(all(v["holds"] for v in run.verdicts(broken)), part)

    def test_formulas_give_what_the_paper_prints(self):
        """Table 3: of the 22 billion model selective recomputation with sequence parallelism keeps 34 / (10 + 24 + 5 a s / h) of one rank's."""
        of = (2048, 4, 6144, 64)
        one = closed_forms.published("one rank", "none", *of, 1)
        self.assertEqual(one, 34 * 2048 * 4 * 6144 + 5 * 64 * 2048**2 * 4)
        self.assertEqual(8 * closed_forms.published(closed_forms.LAYOUTS[2], "none", *of, 8), one)
        self.assertEqual(closed_forms.published(closed_forms.LAYOUTS[1], "selective", *of, 8), 13 * 2048 * 4 * 6144)

    def test_a_block_keeps_what_was_committed(self):
        row = run.count(BUILD, "1D, sequence-parallel norms", "none", 4, {"model.hidden": 6144, "model.heads": 64})
        committed = next(r for r in self.result["rows"] if [r[k] for k in ("layout", "recomputed", "t", "hidden")] ==
                         [row[k] for k in ("layout", "recomputed", "t", "hidden")])
        self.assertEqual(row["bytes"], committed["bytes"])


class Whole(unittest.TestCase):
    def test_every_claim_holds(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, str(FOLDER / "run.py"), "--build", str(BUILD), "--out", folder, "--quick"],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("| yes |"), 5)
            self.assertEqual((Path(folder) / "activation_memory.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")


if __name__ == "__main__":
    unittest.main()
