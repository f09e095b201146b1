# SPDX-License-Identifier: Apache-2.0
"""Figures that a script beside the suite draws."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "report")]

import record
import suite_facts
import suite_scripts
from suite_figures_test import Derived, facts_of


class Scripts(Derived):
    def drawn(self, source, **spec):
        script = self.root / "mine.py"
        script.write_text(source)
        figures = [{"at": "s.toml:9", "title": "Mine", "script": "mine.py", "path": str(script)} | spec]
        run = suite_facts.ordered(record.read_run(self.folder), facts_of(self.lines, figures))
        return suite_scripts.draw(run, self.root / "scripted")

    def test_gets_record_rows_and_a_place(self):
        written, notes = self.drawn(
            "import csv, json, sys\nrecord, out, rows = sys.argv[1:]\n"
            "lines = [json.loads(line) for line in open(record)]\nfound = list(csv.DictReader(open(rows)))\n"
            "open(out, 'w').write(f\"<svg><text>{len(lines)} {len(found)} {found[2]['columns.rate']}</text></svg>\")\n")
        self.assertEqual(notes, [])
        drawn = written["suite_1_mine"].read_text()
        self.assertEqual(drawn, f"<svg><text>{len(self.lines)} {len(self.lines) - 1} 0.5</text></svg>")

    def test_failures_are_told_with_the_line_of_the_suite(self):
        for source, why in (("raise ValueError('no such thing')", "exit code 1: ValueError: no such thing"),
                            ("pass", "wrote nothing"), ("import sys; open(sys.argv[2], 'w').write('x')", "is no SVG")):
            written, notes = self.drawn(source)
            self.assertEqual(written, {})
            self.assertIn("s.toml:9: the figure by mine.py is left out: ", notes[0])
            self.assertIn(why, notes[0])

    def test_takes_no_longer_than_allowed(self):
        before, suite_scripts.SECONDS = suite_scripts.SECONDS, 0.2
        try:
            _, notes = self.drawn("while True: pass")
        finally:
            suite_scripts.SECONDS = before
        self.assertIn("longer than 0.2 s", notes[0])

    def test_a_record_alone_runs_nothing(self):
        mark = self.root / "mark"
        (self.root / "mine.py").write_text(f"open({str(mark)!r}, 'w')")
        figures = [{"at": "s.toml:9", "title": "Mine", "script": "mine.py"}]
        run = suite_facts.ordered(record.read_run(self.folder), facts_of(self.lines, figures))
        written, notes = suite_scripts.draw(run, self.root / "scripted")
        self.assertEqual(written, {})
        self.assertIn("--suite", notes[0])
        self.assertFalse(mark.exists())

    def test_stands_in_the_page(self):
        script = self.root / "page.py"
        script.write_text("import sys\nopen(sys.argv[2], 'w').write('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')\n")
        out = self.root / "scripted_page"
        code, told, err = self.main("--out", out, facts=facts_of(self.lines, [
            {"at": "s.toml:9", "title": "Mine", "script": "page.py", "path": str(script)},
            {"at": "s.toml:11", "title": "", "script": "gone.py"}]))
        self.assertEqual(code, 0)
        self.assertIn("1 drawn by scripts", told)
        self.assertIn("s.toml:11: the figure by gone.py is left out", err)
        page = (out / "report.html").read_text(encoding="utf-8")
        for part in ('<section id="suite_1_mine"><h2>Mine</h2>', '<img class="drawn"', "s.toml:11: the figure by gone.py is left out"):
            self.assertTrue(part in page, part)


if __name__ == "__main__":
    unittest.main()
