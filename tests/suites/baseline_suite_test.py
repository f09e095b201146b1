# SPDX-License-Identifier: Apache-2.0
"""A small suite beside the Megatron-style baseline, really trained: every case is certified, and the report holds the ratios."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "report"))

import ratios
import record

SUITE = """[suite]
name      = "beside_megatron"
question  = "What do replicas and 1D cost beside the Megatron-style plan?"
world     = "threads"
certify   = true
timeout_s = 120

[base.model]
layers   = 3
hidden   = 32
heads    = 4
vocab    = 64
sequence = 16

[base.data]
kind = "synthetic"

[base.train]
batch = 8
steps = 4
validation_batches = 1

[[strategy]]
name  = "data parallel"
ranks = [2, 4]
parallel.data = "$ranks"

[[strategy]]
name  = "1D tensor"
ranks = 4
parallel.tensor = { mode = "1d", size = "$ranks" }

[[compare]]
baseline = "megatron_style"
"""


class BesideMegatron(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        keeper = tempfile.TemporaryDirectory()
        cls.addClassCleanup(keeper.cleanup)
        cls.folder = Path(keeper.name)
        suite, cls.out = cls.folder / "suite.toml", cls.folder / "out"
        suite.write_text(SUITE, encoding="utf-8")
        done = subprocess.run([os.environ["KUAFU"], "suite", str(suite), "--out", str(cls.out)],
                              cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        cls.run_ = record.read_run(cls.out)
        cls.baselines = [c for c in cls.run_.cases if c.baseline]

    def test_every_case_that_fits_trains_and_is_certified(self):
        # Four ranks hold a model of the baseline: on two it cannot be placed, which the record says.
        self.assertEqual(sorted((c.ranks, c.status) for c in self.baselines), [(2, "refused"), (4, "ok")])
        self.assertEqual(len(self.run_.finished), 4)
        for case in self.run_.finished:
            self.assertEqual(case.document["certificate"]["verdict"], "equal", case.id)
            self.assertEqual(len(case.document["loss"]), 4)

    def test_the_baseline_places_the_suites_work_in_its_own_way(self):
        plan = next(c for c in self.baselines if c.status == "ok").document["plan"]
        parallel = plan["parallel"]
        self.assertEqual((parallel["tensor"]["mode"], parallel["tensor"]["size"]), ("1d-sp", 2))
        self.assertEqual((parallel["pipeline"]["schedule"], parallel["pipeline"]["chunks"]), ("interleaved", 2))
        self.assertEqual(parallel["zero"], 1)
        self.assertEqual((plan["train"]["batch"], plan["train"]["micro_batch"]), (8, 1))

    def test_it_follows_the_losses_of_the_suites_cases(self):
        base = next(c for c in self.baselines if c.status == "ok")
        for case in self.run_.finished:
            for mine, theirs in zip(case.document["loss"], base.document["loss"]):
                # f32 rounding of four steps, as between transports: 80 eps.
                self.assertAlmostEqual(mine / theirs, 1, delta=1e-5, msg=case.id)

    def test_ratios_are_those_of_the_record(self):
        found = ratios.ratios(self.run_)
        self.assertEqual(sorted(r.case.strategy for r in found), ["1D tensor", "data parallel"])
        for r in found:
            self.assertEqual((r.case.ranks, r.base.ranks), (4, 4))
            mine, theirs = r.case.document, r.base.document
            self.assertAlmostEqual(r.speed * theirs["tokens_per_s"] / mine["tokens_per_s"], 1, places=12)
            self.assertEqual(r.memory, max(mine["memory"]["peak_bytes"]) / max(theirs["memory"]["peak_bytes"]))
            self.assertGreater(r.sent, 0)

    def test_the_report_shows_them(self):
        done = subprocess.run([sys.executable, str(ROOT / "scripts" / "report" / "report.py"), str(self.out)],
                              capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.out / "report.html").read_text(encoding="utf-8")
        section = re.search(r'<section id="ratios">.*?</section>', page, re.S)
        self.assertIsNotNone(section, "no ratios on the page")
        self.assertEqual(section.group(0).count("<tr>"), 1 + 2)
        self.assertIn("megatron_style interleaved", section.group(0))
        for name in ("speed_ratios", "memory_ratios"):
            self.assertTrue((self.out / "figures" / f"{name}.svg").is_file(), name)


if __name__ == "__main__":
    unittest.main()
