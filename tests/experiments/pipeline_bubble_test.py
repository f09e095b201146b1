# SPDX-License-Identifier: Apache-2.0
"""experiments/pipeline_bubble: the whole of it runs, its claims hold, and it says what the committed result says."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("KUAFU_BUILD", ROOT / "build" / "release"))
FOLDER = ROOT / "experiments" / "pipeline_bubble"
sys.path.insert(0, str(FOLDER))

import closed_forms
import measured
import run


class PipelineBubble(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.keeper = tempfile.TemporaryDirectory()
        cls.out = Path(cls.keeper.name)
        cls.done = subprocess.run([sys.executable, str(FOLDER / "run.py"), "--build", str(BUILD), "--out", str(cls.out)],
                                  capture_output=True, text=True)
        cls.result = json.loads((cls.out / "result.json").read_text())

    @classmethod
    def tearDownClass(cls):
        cls.keeper.cleanup()

    def test_every_claim_holds(self):
        self.assertEqual(self.done.returncode, 0, self.done.stdout + self.done.stderr)
        self.assertEqual(self.done.stdout.count("| yes |"), 10)

    def test_says_what_the_committed_result_says(self):
        committed = json.loads((ROOT / "results" / "pipeline_bubble" / "result.json").read_text())
        self.assertEqual(committed["rows"], self.result["rows"])
        self.assertEqual(committed["timetables"], self.result["timetables"])
        self.assertEqual((ROOT / "results" / "pipeline_bubble" / "table.md").read_text(), (self.out / "table.md").read_text())

    def test_figures_are_there(self):
        for name in ("bubble", "timetables"):
            self.assertGreater((self.out / f"{name}.svg").stat().st_size, 10000)
            self.assertEqual((self.out / f"{name}.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_claims_can_fail(self):
        rows = json.loads(json.dumps(self.result["rows"]))
        for row in rows:
            if row["schedule"] == "interleaved":
                row["length"] *= 1.2
            if row["schedule"] == "1f1b" and row["micro_batches"] == 8:
                row["bubble"] += 1e-9
            if row["schedule"] == "gpipe":
                row["speedup"] *= 0.8
        broken = [v["claim"] for v in run.verdicts(rows) if not v["holds"]]
        self.assertEqual(len(broken), 6, broken)

    def test_closed_forms_at_known_points(self):
        self.assertEqual(closed_forms.bubble("gpipe", 4, 8, 1), (3 / 8, "equal"))
        self.assertEqual(closed_forms.bubble("interleaved", 4, 8, 2), (3 / 16, "equal"))
        self.assertIsNone(closed_forms.bubble("interleaved", 4, 6, 2))
        self.assertAlmostEqual(closed_forms.speedup(8, 32), 256 / 39)


class Measured(unittest.TestCase):
    """What was measured once; what is measured here is too short to say more than that the program works."""

    @classmethod
    def setUpClass(cls):
        cls.committed = json.loads((ROOT / "results" / "pipeline_bubble" / "measured.json").read_text())

    def verdicts(self, found):
        return measured.verdicts(found, run.GPIPE, run.INTERLEAVED)

    def test_every_claim_holds_in_the_committed_result(self):
        checks = self.verdicts(self.committed)
        self.assertEqual(len(checks), 7)
        self.assertEqual([c["claim"] for c in checks if not c["holds"]], [])
        self.assertEqual((ROOT / "results" / "pipeline_bubble" / "measured.md").read_text(), measured.table(self.committed, checks))

    def test_claims_can_fail(self):
        found = json.loads(json.dumps(self.committed))
        for row in found["rows"]:
            if row["schedule"] == "interleaved":
                row["length_s"] *= 1.2
            if row["schedule"] == "gpipe" and row["ranks"] > 1:
                row["length_s"] *= 1.2
        found["overhead"][0]["mean_us"] = 51
        self.assertEqual(sum(not c["holds"] for c in self.verdicts(found)), 7)

    @unittest.skipUnless((BUILD / "bin" / "micro_pipeline").exists(), "micro_pipeline needs LibTorch")
    def test_waits_are_no_shorter_than_asked(self):
        asked = [{"schedule": name, "ranks": p, "micro_batches": 4, "chunks": v, "forward_ms": 2, "input_grad_ms": 3,
                  "weight_grad_ms": 1, "rounds": 1, "spans": True}
                 for name, p, v in (("gpipe", 3, 1), ("1f1b", 2, 1), ("interleaved", 2, 2), ("zero_bubble", 3, 1), ("zbv", 2, 2))]
        found = measured.take(BUILD / "bin" / "micro_pipeline", asked, passes=1)
        for row in found["timetables"]:
            self.assertGreaterEqual(row["length_s"], row["length_played_s"], row["schedule"])
            ops = [span["op"] for spans in row["spans"] for span in spans]
            stages = row["ranks"] * row["chunks"]
            self.assertEqual(ops.count("F"), 4 * stages)
            self.assertEqual(ops.count("B") + ops.count("W"), 4 * stages)
        self.assertTrue(all(r["median_us"] > 0 for r in found["overhead"]))

    @unittest.skipUnless((BUILD / "bin" / "micro_pipeline").exists(), "micro_pipeline needs LibTorch")
    def test_impossible_requests_are_refused(self):
        for text, reason in (("{}", "expected a JSON list"), ('[{"schedule": "1f2b", "ranks": 2, "micro_batches": 2}]', "1f1b"),
                             ('[{"schedule": "zbv", "ranks": 2, "micro_batches": 2, "chunks": 3}]', "chunks")):
            done = subprocess.run([str(BUILD / "bin" / "micro_pipeline"), "--requests"], input=text, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, text)
            self.assertIn(reason, done.stderr)


if __name__ == "__main__":
    unittest.main()
