# SPDX-License-Identifier: Apache-2.0
"""Reports of many strategies and cases: looks, shared reasons, order, titles, steps of long runs."""

import copy
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

import matplotlib

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "report")]

import figures
import multiplied
import page
import plots
import reasons
import record
import steps
import style
import suite_facts
import synthetic
import table
import views


class Large(unittest.TestCase):
    """14 strategies, 400 cases."""

    @classmethod
    def setUpClass(cls):
        cls.keeper = tempfile.TemporaryDirectory()
        cls.lines = multiplied.lines(14, 400)
        cls.run_ = record.read_run(synthetic.write(Path(cls.keeper.name) / "run", cls.lines))

    @classmethod
    def tearDownClass(cls):
        cls.keeper.cleanup()

    def test_is_made_of_recorded_lines(self):
        _, sources = multiplied.recorded()
        flops = {line["document"]["flops_per_step"] for line in sources}
        self.assertLessEqual({c.flops for c in self.run_.finished}, flops)
        self.assertEqual(len(self.run_.cases), 400)
        self.assertEqual(len({c.strategy for c in self.run_.cases}), 14)

    def test_strategies_look_the_same_in_every_figure_and_the_legend_tells_of_repeats(self):
        looks = views.looks_of(self.run_.cases, self.run_)
        self.assertEqual(len(set(looks.values())), 14)
        self.assertEqual(len({color for color, _ in looks.values()}), 12)
        some = [c for c in self.run_.cases if c.strategy in ("C", "N")]
        self.assertEqual(views.looks_of(some, self.run_), {name: looks[name] for name in ("C", "N")})
        plot = plots.tradeoff(self.run_)
        shown = {t.name: t.marker.color for t in plot.data if t.showlegend}
        self.assertEqual({n: shown[n] for n in looks}, {n: color for n, (color, _) in looks.items()})
        self.assertIn(style.CYCLE_NOTE, shown)
        told = [t.get_text() for legend in figures.draw("tradeoff", self.run_).legends for t in legend.get_texts()]
        self.assertIn(style.CYCLE_NOTE, told)

    def test_a_shared_reason_is_printed_once_with_its_cases(self):
        columns = table.columns_of(self.run_)
        shown = table.body(self.run_, columns)
        shown = re.sub(r'data-text="[^"]*"', "", shown) + reasons.Reasons(self.run_.cases).list()
        refused = [c for c in self.run_.cases if c.reason == multiplied.LONG_REASON]
        self.assertGreater(len(refused), 10)
        self.assertEqual(shown.count("model.heads = 4 does not divide"), 1)
        self.assertIn(f"<b>refused, {len(refused)} cases:</b>", shown)
        self.assertIn(f"{refused[5].name}; and {len(refused) - 6} more", shown)
        self.assertEqual(shown.count('<a href="#reason-1">reason 1</a>'), 2 * len(refused))       # row and what it opens
        self.assertIn("<small>no legal miniature</small>", shown)                                 # of one case: in its row

    def test_rows_stand_in_the_order_of_the_suite(self):
        mixed = [self.lines[0]] + self.lines[1:][::-1]
        run = record.read_run(synthetic.write(Path(self.keeper.name) / "mixed", mixed))
        wanted = [line["case_id"] for line in self.lines[1:]]
        self.assertNotEqual([c.id for c in run.cases], wanted)
        ordered = suite_facts.ordered(run, {"order": wanted, "references": []})
        self.assertEqual([c.id for c in ordered.cases], wanted)
        shown = re.findall(r'data-id="([^"]*)"', table.body(ordered, table.columns_of(ordered)))
        self.assertEqual(shown, wanted)

    def test_charts_and_legends_stand_in_the_order_of_the_suite(self):
        """Fourteen strategies, some of whose first cases were refused; the suite goes from four ranks to two."""
        suite, *cases = multiplied.lines(14, 84)
        lines = [suite] + sorted(cases, key=lambda line: -line["settings"]["ranks"])
        run = record.read_run(synthetic.write(Path(self.keeper.name) / "order", lines))
        wanted = list(dict.fromkeys(f"{c.strategy}, {c.ranks}" for c in run.cases))
        self.assertEqual(len(wanted), 28)
        self.assertTrue(wanted[0].endswith(", 4"))
        for name in ("memory", "traffic"):
            rows = list(plots.PLOTS[name](run).layout.yaxis.ticktext)
            self.assertEqual(rows, [row for row in wanted if row in rows], name)
            with matplotlib.rc_context(style.MATPLOTLIB):
                labels = [t.get_text() for t in figures.FIGURES[name](run).axes[0].get_yticklabels()]
            self.assertEqual(labels, rows, name)
        # Known names of strategies keep their looks, not a place of their own.
        self.assertEqual(style.strategy_order(["2D tensor", "mine", "one rank", "mine"]), ["2D tensor", "mine", "one rank"])

    def test_references_are_told_with_what_breaks_them(self):
        facts = {"order": [], "references": [{"what": "loss.last < loss.first", "checked": 3, "broken": ["A: 2 & more"]},
                                             {"what": "status equals \"ok\"", "checked": 0, "broken": []}]}
        content = page.render(suite_facts.ordered(self.run_, facts), {})
        section = re.search(r'<section id="references">.*?</section>', content, re.S).group(0)
        for part in ("loss.last &lt; loss.first", "A: 2 &amp; more", "2 of 3", ">broken<", ">no case<", style.DIFFERENT):
            self.assertIn(part, section)
        self.assertNotIn('id="references"', page.render(self.run_, {}))

    def test_legend_ends_inside_the_figure(self):
        run = record.read_run(synthetic.write(Path(self.keeper.name) / "few", multiplied.lines(14, 28)))
        for name in ("tradeoff", "memory"):
            figure = figures.draw(name, run)
            figure.draw_without_rendering()
            box = figure.legends[0].get_window_extent()
            self.assertGreaterEqual(box.x0, 0, name)
            self.assertLessEqual(box.x1, figure.bbox.x1, name)

    def test_titles_end_before_the_next_panel(self):
        labels = [f"batch {8 << i}, sequence 64, full recomputation" for i in range(4)]
        groups = [(label, []) for label in labels]
        figure, axes = figures.panels(4, 2)
        figures.titles(axes, groups)
        figure.draw_without_rendering()
        boxes = [a.title.get_window_extent() if a.get_title() else a._left_title.get_window_extent() for a in axes.flat]
        for left, right in zip(boxes, boxes[1:]):
            self.assertLess(left.x1, right.x0)

    def test_the_mode_bar_stays_in_sight_where_a_plot_is_wider_than_the_page(self):
        css = (HERE.parent.parent / "scripts" / "report" / "page.css").read_text(encoding="utf-8")
        narrow = re.search(r"@media screen and \(max-width: (\d+)px\) \{(.*?)\n\}", css, re.S)
        self.assertRegex(narrow[2], r"\.modebar\.vertical \{ position: sticky; right: 0;")
        widest = int(re.search(r"\.plot \{[^}]*min-width: (\d+)px", css)[1])
        edges = 2 * int(re.search(r"main, nav ul \{ padding-left: (\d+)px", css)[1])
        self.assertGreaterEqual(int(narrow[1]), widest + edges)

    def test_a_panel_of_speed_and_memory_holds_equal_work(self):
        few = record.read_run(synthetic.write(Path(self.keeper.name) / "equal", multiplied.lines(3, 18)))
        works = [{c.id for c in members} for _, members in views.workloads(views.timed(few))]
        self.assertGreater(len(works), 2)
        shown = {}
        for trace in plots.tradeoff(few).data:
            if trace.customdata is not None:
                shown.setdefault(trace.xaxis, set()).update(case_id for _, case_id in trace.customdata)
        self.assertEqual(list(shown.values()), works)
        drawn = [axes for axes in figures.draw("tradeoff", few).axes if axes.containers]
        self.assertEqual([len(axes.containers) for axes in drawn], list(map(len, works)))


class Steps(unittest.TestCase):
    def setUp(self):
        keeper = tempfile.TemporaryDirectory()
        self.addCleanup(keeper.cleanup)
        self.folder = Path(keeper.name) / "run"

    def test_long_runs_have_a_curve_a_case(self):
        run = record.read_run(synthetic.write(self.folder, multiplied.lines(2, 12, 450)))
        plot = steps.interactive(run)
        curves = {t.meta[1]: t for t in plot.data if t.meta}
        self.assertEqual(set(curves), {c.id for c in run.finished})
        for case in run.finished:
            curve = curves[case.id]
            self.assertEqual(len(curve.x), 150)                       # medians of three steps each
            first = sorted(case.step.samples[:3])[1]
            self.assertAlmostEqual(curve.y[0], 1e3 * first)
            self.assertEqual(curve.x[0], 2)
            worst = max(case.step.samples)
            self.assertIn(f"slowest step: {case.step.samples.index(worst) + 1}, ", curve.meta[0])
        self.assertEqual(sum(len(a.lines) for a in steps.static(run).axes), 2 * len(run.finished))
        slowest = max(y for t in curves.values() for y in t.y)
        self.assertTrue(all(a.get_ylim()[0] == 0 and a.get_ylim()[1] > slowest for a in steps.static(run).axes))
        self.assertEqual(steps.interactive(run).layout.yaxis.type, None)
        wide = copy.deepcopy(run)
        step = wide.finished[0].step
        step.samples[:] = [100 * v for v in step.samples]
        for kind in (steps.interactive(wide).layout.yaxis.type, steps.static(wide).axes[0].get_yscale()):
            self.assertEqual(kind, "log")
        refuted = next(c.id for c in run.finished if c.is_different)
        self.assertEqual(curves[refuted].marker.color, style.DIFFERENT)

    def test_short_runs_have_none(self):
        run = record.read_run(synthetic.write(self.folder, multiplied.lines(2, 8, steps.LONG - 1)))
        self.assertIsNone(steps.interactive(run))
        self.assertIsNone(steps.static(run))

    def test_a_case_run_again_keeps_its_place(self):
        lines = multiplied.lines(2, 6)
        again = json.loads(json.dumps(lines[2]))
        run = record.read_run(synthetic.write(self.folder, lines + [again]))
        self.assertEqual([c.id for c in run.cases], [line["case_id"] for line in lines[1:]])


if __name__ == "__main__":
    unittest.main()
