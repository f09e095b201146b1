# SPDX-License-Identifier: Apache-2.0
"""experiments/composition: the committed result carries its claims; plans of it run again and say the same."""

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
RESULTS = ROOT / "results" / "composition"
sys.path.insert(0, str(FOLDER))

import run


class Quick(unittest.TestCase):
    """The committed result, and one plan of 32 ranks simulated anew."""

    @classmethod
    def setUpClass(cls):
        cls.rows = json.loads((RESULTS / "result.json").read_text())["rows"]

    def test_every_claim_of_the_committed_result_holds(self):
        checks = run.verdicts(self.rows)
        self.assertEqual([c["claim"] for c in checks if not c["holds"]], [])
        self.assertEqual(run.table(self.rows, checks), (RESULTS / "table.md").read_text())

    def test_the_result_has_every_plan(self):
        self.assertEqual([(r["name"], r["ranks"], r["settings"]) for r in self.rows], list(run.CASES))

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

    def test_five_kinds_at_once_count_what_was_committed(self):
        row = next(r for r in self.rows if run.num_dimensions(r) == 5)
        document = run.run(BUILD, row["ranks"], row["settings"], "simulated")
        self.assertEqual(max(document["memory"]["peak_bytes"]), row["peak_bytes"])
        self.assertEqual(document["flops_per_step"], row["flops_per_step"])
        self.assertEqual(run.received(document), row["axes"])


class Whole(unittest.TestCase):
    """The smallest plan on thread ranks, certified."""

    def test_every_claim_holds(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, str(FOLDER / "run.py"), "--build", str(BUILD), "--out", folder, "--quick"],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("| yes |"), 5)
            rows = json.loads((Path(folder) / "result.json").read_text())["rows"]
            self.assertEqual((Path(folder) / "composition.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        committed = {r["name"]: r for r in json.loads((RESULTS / "result.json").read_text())["rows"]}
        for row in rows:
            for key in ("axes", "at_peak", "peak_bytes", "flops_per_step"):
                self.assertEqual(row[key], committed[row["name"]][key], (row["name"], key))


if __name__ == "__main__":
    unittest.main()
