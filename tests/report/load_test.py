# SPDX-License-Identifier: Apache-2.0
"""Who else used the machine: rows under foreign load are marked in the page and the text, and nothing is said where nothing tells."""

import re
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "scripts" / "report")]

import load
import page
import record
import synthetic
import table
import text_report


def shared(share, threads=4):
    return {"average": 1.25, "foreign_share": share, "window_s": 2.0, "cores": 2, "threads_per_rank": 1, "threads": threads,
            "oversubscription": threads / 2}


def run_with(change):
    """The synthetic run with `change(lines of the finished cases)` made to it."""
    lines = synthetic.lines()
    change([line for line in lines if line.get("kind") == "case" and line["status"] == "ok"])
    with tempfile.TemporaryDirectory() as folder:
        return record.read_run(synthetic.write(Path(folder), lines))


class Load(unittest.TestCase):
    def test_the_threshold_is_that_of_the_console(self):
        header = (ROOT / "src" / "kuafu" / "record" / "load.h").read_text(encoding="utf-8")
        self.assertEqual(float(re.search(r"kForeignShare = ([0-9.]+);", header)[1]), load.FOREIGN_SHARE)

    def test_a_shared_machine_is_told_and_its_rows_are_marked(self):
        def change(lines):
            for line in lines:
                line["document"]["load"] = shared(0.02)
            lines[0]["document"]["load"] = shared(0.4)
            lines[1]["rounds"] = [{"round": 1, "status": "ok", "load": shared(0.01)}, {"round": 2, "status": "ok", "load": shared(0.3)}]

        run = run_with(change)
        marked = [c for c in run.cases if load.is_loaded(c)]
        self.assertEqual(len(marked), 2)
        self.assertIn("2 of 36 cases whose load was measured were timed under foreign load", load.sentence(run))
        self.assertIn(marked[0].name, load.sentence(run))
        self.assertIn("up to 4 threads on 2 cores", page.machine(run))
        self.assertIn("load average up to 1.2 before a case", page.machine(run))
        self.assertIn("timed under foreign load", page.notes(run))
        self.assertEqual(table.plain(run).count("timed under foreign load"), 2)
        told = text_report.text([run], [run.name], 100, False)
        self.assertIn("note: 2 of 36 cases whose load was measured", " ".join(told.split()))

    def test_nothing_is_said_of_a_quiet_machine_or_of_an_old_record(self):
        def quiet(lines):
            for line in lines:
                line["document"]["load"] = shared(load.FOREIGN_SHARE)    # at the threshold: not above it

        for run in (run_with(quiet), run_with(lambda lines: None)):
            self.assertEqual(load.sentence(run), "")
            self.assertNotIn("foreign load", table.plain(run))
        self.assertNotIn("threads on", page.machine(run))


if __name__ == "__main__":
    unittest.main()
