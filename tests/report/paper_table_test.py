# SPDX-License-Identifier: Apache-2.0
"""The table of cases on paper: parts that fit a page."""

import dataclasses
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "report")]

import derived
import page
import paper_table
import record
import side_by_side
import synthetic
import table


def with_columns(run, count):
    """The run with so many columns of the suite, each a number with an interval."""
    ids = [c.id for c in run.finished]
    return dataclasses.replace(run, columns=[derived.Column(f"column number {i}", "1", "", dict.fromkeys(ids, 261430.0),
                                                            dict.fromkeys(ids, [82150.0, 831957.0])) for i in range(count)])


class PaperTable(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        keeper = tempfile.TemporaryDirectory()
        cls.addClassCleanup(keeper.cleanup)
        lines = [synthetic.suite_line(6)] + synthetic.lines()[1:7]
        cls.run_ = record.read_run(synthetic.write(Path(keeper.name) / "run", lines))

    def parts_of(self, columns, rows):
        """[[headings of a part]], held to what every table promises."""
        headings = [heading for heading, _, _ in columns]
        cells = [[cell(*of) for _, _, cell in columns] for of in rows]
        found, pixels = paper_table.parts(headings, cells), paper_table.widths(headings, cells)
        self.assertEqual([i for part in found for i in part[1:]], list(range(1, len(columns))))
        for part in found:
            self.assertEqual(headings[part[0]], "case")
            self.assertLessEqual(sum(pixels[i] for i in part), paper_table.PAGE)
        return [[headings[i] for i in part] for part in found]

    def test_few_columns_are_one_part(self):
        self.assertEqual(len(self.parts_of(table.columns_of(self.run_), [(c,) for c in self.run_.cases])), 1)

    def test_eleven_columns_of_a_suite_are_parts_that_fit_a_page(self):
        run = with_columns(self.run_, 11)
        found = self.parts_of(table.columns_of(run), [(c,) for c in run.cases])
        self.assertEqual(len(found), 2)
        self.assertEqual(found[0][:3], ["case", "status", "certificate"])
        self.assertEqual(found[-1][-1], "column number 10")

    def test_what_four_folders_have_of_one_quantity_stays_in_one_part(self):
        runs, labels = [with_columns(self.run_, 2)] * 4, ["r1", "r2", "g1", "fourth"]
        found = self.parts_of(side_by_side.columns_of(runs, labels), side_by_side.rows(runs))
        self.assertGreater(len(found), 1)
        for quantity in ("tokens/s", "peak", "sent", "column number 0", "verdict"):
            of = {f"{quantity}, {label}" for label in labels}
            self.assertEqual([of <= set(part) for part in found if of & set(part)], [True], quantity)

    def test_a_quantity_that_is_wider_than_a_page_is_cut(self):
        runs = [with_columns(self.run_, 1)] * 12
        self.parts_of(side_by_side.columns_of(runs, [f"folder {i}" for i in range(12)]), side_by_side.rows(runs))

    def test_the_page_hands_its_script_the_parts_of_its_table(self):
        content = page.render(with_columns(self.run_, 11), {})
        parts = json.loads(re.search(r'<table id="table" class="cases" data-parts="([^"]*)">', content)[1])
        heads = re.search(r"<thead><tr>(.*?)</tr></thead>\s*<tbody class=\"case\"", content, re.S)[1].count("<th ")
        self.assertEqual(sorted({i for part in parts for i in part}), list(range(heads)))
        self.assertEqual(len(parts), 2)

    def test_the_style_sheet_has_the_sizes_that_widths_are_estimated_for(self):
        css = (HERE.parent.parent / "scripts" / "report" / "page.css").read_text(encoding="utf-8")
        on_paper = css[css.index("@media print"):]
        self.assertIn("size: A4 landscape; margin: 10mm;", on_paper)
        self.assertLessEqual(paper_table.PAGE, (297 - 20) / 25.4 * 96)
        self.assertIn("table { font-size: 8.5px; }", on_paper)
        for kind, least in (("name", paper_table.NAME), ("reasoned", paper_table.REASONED)):
            self.assertIn(f"table.cases td.{kind} {{ min-width: {least}px; overflow-wrap: anywhere; }}", on_paper)


if __name__ == "__main__":
    unittest.main()
