# SPDX-License-Identifier: Apache-2.0
"""experiment.measured: rows outlive a kill, and only rows of the same programs count."""

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "report"))

import experiment

CASES = [("a", 1), ("b", 2), ("c", 3)]


class Killed(Exception):
    pass


class Measured(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name)
        self.program = self.out / "program"
        self.program.write_text("one")
        self.calls = []

    def measure(self, killed_at=None):
        def row(name, n):
            if name == killed_at:
                raise Killed
            self.calls.append(name)
            return {"name": name, "square": n * n}
        return experiment.measured(CASES, row, self.out, [self.program])

    def test_goes_on_after_a_kill(self):
        with self.assertRaises(Killed):
            self.measure(killed_at="c")
        rows = self.measure()
        self.assertEqual(self.calls, ["a", "b", "c"])
        self.assertEqual([r["square"] for r in rows], [1, 4, 9])

    def test_measures_a_row_again_that_a_kill_cut_off(self):
        self.measure()
        path = self.out / "unfinished.jsonl"
        path.write_text(path.read_text()[:-5])
        self.calls.clear()
        self.assertEqual([r["name"] for r in self.measure()], ["a", "b", "c"])
        self.assertEqual(self.calls, ["c"])

    def test_measures_again_what_another_program_did(self):
        self.measure()
        self.program.write_text("another")
        self.calls.clear()
        self.measure()
        self.assertEqual(self.calls, ["a", "b", "c"])

    def test_forgets_when_finished(self):
        self.measure()
        experiment.finished(self.out)
        self.assertFalse((self.out / "unfinished.jsonl").exists())


if __name__ == "__main__":
    unittest.main()
