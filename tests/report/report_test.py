# SPDX-License-Identifier: Apache-2.0
"""The report: what it says is what the record says, for finished, refused and damaged cases."""

import html
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "report")]

import figures
import loss_limits
import plots
import progress
import reasons
import record
import style
import synthetic
import views
from program import Folder, run_main


class Page(unittest.TestCase):
    """report.html and the figures of one synthetic run."""

    @classmethod
    def setUpClass(cls):
        cls.keeper = tempfile.TemporaryDirectory()
        cls.folder = synthetic.write(Path(cls.keeper.name) / "run")
        cls.steps = []
        with mock.patch.object(progress.Progress, "step", lambda of, name: cls.steps.append((name, of.total))):
            cls.code, cls.out, cls.err = run_main(cls.folder)
        cls.run_ = record.read_run(cls.folder)
        cls.page = (cls.folder / "report.html").read_text(encoding="utf-8")
        found = re.search(r"const PLOTS = (\{.*\});\nconst CONFIG", cls.page, re.S)
        cls.plots = json.loads(found.group(1))

    @classmethod
    def tearDownClass(cls):
        cls.keeper.cleanup()

    def test_ends_well(self):
        self.assertEqual(self.code, 0, self.err)
        self.assertEqual(self.err, "")
        self.assertIn("40 cases, 5 figures", self.out)

    def test_progress_tells_every_figure_and_its_place_in_the_page(self):
        names = [name for name, _ in self.steps]
        self.assertEqual([n for n in names if n.startswith("page: ")], [f"page: {name}" for name in plots.PLOTS])
        self.assertEqual([n for n in names if n.startswith("figure ")][:5], [f"figure {name}" for name in figures.FIGURES])
        self.assertEqual(self.steps[-1][1], len(names))

    def test_figures_are_written_as_svg_and_png(self):
        for name in figures.FIGURES:
            tree = ElementTree.parse(self.folder / "figures" / f"{name}.svg")
            self.assertTrue(tree.getroot().tag.endswith("svg"))
            head = (self.folder / "figures" / f"{name}.png").read_bytes()[:8]
            self.assertEqual(head, b"\x89PNG\r\n\x1a\n")

    def test_page_needs_no_other_file(self):
        self.assertIn("plotly.js v", self.page)
        own = re.sub(r"<script>/\*\*.*?</script>", "", self.page, flags=re.S)
        self.assertLess(len(own), len(self.page) / 2)
        self.assertEqual(re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']*""", own), [])
        self.assertNotIn("@import", own)
        self.assertNotIn("<link", own)

    def test_table_lists_every_case_with_its_reason(self):
        for case in self.run_.cases:
            self.assertIn(f'data-id="{case.id}"', self.page)
            self.assertIn(html.escape(case.name), self.page)
            self.assertIn(html.escape(case.reason), self.page)
        self.assertEqual(self.page.count('<tbody class="case"'), len(self.run_.cases))
        self.assertIn("asked for 2 MiB", self.page)
        self.assertIn("a 2D grid needs a square number of ranks &lt;1, 4, 9", self.page)

    def test_headline_counts_the_cases_by_status(self):
        for count, label in ((40, "cases ended"), ("34 / 36", "certified equal"), (1, "refused"),
                             (1, "out of memory"), (1, "timeout"), (1, "failed")):
            self.assertIn(f"<b>{count}</b><span>{label}</span>", self.page)
        self.assertIn("Example CPU at 3.0 GHz", self.page)
        self.assertIn("0123456789abcdef0123456789abcdef01234567", self.page)

    def points(self, name):
        """[(trace, index, case)] of the marks of a plot that carry a case."""
        cases = {c.id: c for c in self.run_.cases}
        for trace in self.plots[name]["data"]:
            for index, data in enumerate(trace.get("customdata") or []):
                yield trace, index, cases[data[1]]

    def test_every_finished_case_is_a_point_with_its_card(self):
        finished = {c.id for c in self.run_.finished}
        for name in ("tokens_per_second", "memory", "tradeoff"):
            self.assertEqual({c.id for _, _, c in self.points(name)}, finished, name)
        talking = {c.id for c in self.run_.finished if c.ranks > 1}
        self.assertEqual({c.id for _, _, c in self.points("traffic")}, talking)
        curves = {t["meta"][1] for t in self.plots["loss_curves"]["data"] if "meta" in t}
        self.assertEqual(curves, {c.id for c in self.run_.cases if len(c.loss) > 1})
        for trace, index, case in self.points("tokens_per_second"):
            card = trace["customdata"][index][0]
            for part in (case.name, f"train.batch = {case.settings['train.batch']}", "24 samples",
                         "tokens/s", style.text_bytes(case.peak), case.plan_hash,
                         f"{case.loss[0]:.4f} -> {case.loss[-1]:.4f}"):
                self.assertIn(part, card)
            proof = " of 5.7e-11" if case.is_certified else "certificate: not asked"
            self.assertIn(proof, card)

    def test_points_stand_where_the_record_says(self):
        for trace, index, case in self.points("tokens_per_second"):
            self.assertEqual(trace["y"][index], case.document["tokens_per_s"])
            step = case.document["step_time_s"]
            fastest = case.document["tokens_per_s"] * step["median"] / step["ci95"][0]
            reach = trace["y"][index] + trace["error_y"]["array"][index]
            self.assertAlmostEqual(reach, fastest, delta=1e-9 * fastest)
        for trace, index, case in self.points("traffic"):
            axis = trace["name"].removeprefix("axis ")
            self.assertEqual(trace["x"][index], max(case.document["ledger"][axis]["bytes_sent"]))

    def test_stacked_categories_add_up_to_the_peak(self):
        heights = {}
        for trace, index, case in self.points("memory"):
            if trace["type"] == "bar":
                heights[case.id] = heights.get(case.id, 0) + trace["x"][index] * views.MIB
        for case in self.run_.finished:
            peak = max(case.document["memory"]["peak_bytes"])
            self.assertAlmostEqual(heights[case.id], peak, delta=1e-9 * peak)

    def test_uncertified_points_are_hollow_and_only_they(self):
        hollow = set()
        for name in ("tokens_per_second", "traffic", "tradeoff", "memory"):
            for trace, index, case in self.points(name):
                if trace.get("name") == "peak of each rank":
                    continue
                is_hollow = trace["marker"]["color"][index] == style.PAPER
                self.assertEqual(is_hollow, not case.is_certified, (name, case.name))
                hollow |= {case.id} if is_hollow else set()
        self.assertEqual(len(hollow), 2)


class Refuted(unittest.TestCase):
    """A run whose fastest cases are refuted by their certificates, and one that was not run for a reason."""

    @classmethod
    def setUpClass(cls):
        cls.keeper = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.keeper.name) / "run"
        objects = synthetic.lines()
        finished = [o for o in objects[1:] if o["status"] == "ok"]
        ranked = sorted(finished, key=lambda o: -o["document"]["tokens_per_s"])
        cls.refuted = {o["case_id"] for o in ranked[:3]}
        for line in ranked[:3]:
            line["document"]["certificate"] |= {"verdict": "different", "gradient_error": 0.25}
        ranked[3]["document"]["certificate"] = {"verdict": "not_run", "reason": "no legal <miniature>"}
        synthetic.write(cls.folder, objects)
        cls.code, _, cls.err = run_main(cls.folder)
        cls.run_ = record.read_run(cls.folder)
        cls.page = (cls.folder / "report.html").read_text(encoding="utf-8")

    @classmethod
    def tearDownClass(cls):
        cls.keeper.cleanup()

    def test_has_a_colour_of_its_own_everywhere(self):
        self.assertEqual(self.code, 0, self.err)
        for name in ("tokens_per_second", "tradeoff", "traffic", "memory"):
            met = set()
            plot = plots.PLOTS[name](self.run_)
            for trace in plot.data:
                if trace.customdata is None or trace.name == "peak of each rank":
                    continue
                for (_, case_id), color in zip(trace.customdata, trace.marker.color):
                    self.assertEqual(color == style.DIFFERENT, case_id in self.refuted, name)
                    met.add(case_id)
            self.assertTrue(self.refuted & met, name)
            self.assertIn(views.DIFFERENT, {t.name for t in plot.data}, name)
            static = figures.draw(name, self.run_)
            told = [t.get_text() for legend in static.legends for t in legend.get_texts()]
            self.assertIn(views.DIFFERENT, told, name)
        ends = [t for t in plots.loss_curves(self.run_).data if t.meta and t.meta[1] in self.refuted]
        self.assertEqual({t.marker.color for t in ends}, {style.DIFFERENT})

    def test_legend_shows_the_colour_of_a_name_and_not_of_its_first_case(self):
        looks = views.looks_of(self.run_.finished, self.run_)
        for name in ("tokens_per_second", "tradeoff", "memory", "traffic"):
            shown = [t for t in plots.PLOTS[name](self.run_).data if t.showlegend]
            self.assertEqual(len(shown), len({t.name for t in shown}), name)
            for trace in shown:
                self.assertIsInstance(trace.marker.color or "", str, (name, trace.name))
                if trace.name in looks:
                    self.assertEqual(trace.marker.color, looks[trace.name][0])

    def test_is_never_the_fastest(self):
        best = max((c for c in self.run_.finished if c.is_certified), key=lambda c: c.tokens_per_s)
        tile, said = re.search(r"<b>([^<]*) tokens/s</b><span>fastest of 4 kinds of work: ([^<]*)<", self.page).groups()
        self.assertEqual(tile, style.text_number(best.tokens_per_s))
        # Which work: rates of other work are no rivals.
        self.assertIn(f"{best.strategy}, {best.ranks} ranks", said)
        for key in ("train.batch", "model.sequence"):
            self.assertIn(f"{key.split('.')[1]} {best.setting(key)}", said)
        self.assertLess(best.tokens_per_s, max(c.tokens_per_s for c in self.run_.finished))

    def test_is_counted_and_told_with_reasons(self):
        tiles = re.search(r'<ul class="tiles">.*?</ul>', self.page, re.S).group(0)
        for value, label in ((3, "different"), (30, "certified equal"), (3, "certificate not run")):
            self.assertRegex(tiles, rf"<b>{value}(?: / 36)?</b><span>{label}</span>")
        self.assertEqual(self.page.count("not run<br><small>no legal &lt;miniature&gt;</small>"), 1)
        self.assertEqual(self.page.count(f'style="--tone:{style.DIFFERENT}">different</span>'), 2 * 3)  # as its status and as its certificate

    def test_lies_above_all_other_marks(self):
        for name in ("tokens_per_second", "tradeoff", "traffic"):
            refuted = {}                # whether the traces of a panel are refuted, in the order of drawing
            for trace in plots.PLOTS[name](self.run_).data:
                if trace.customdata is not None:
                    refuted.setdefault(trace.xaxis, []).append({case_id in self.refuted for _, case_id in trace.customdata})
            for order in refuted.values():
                self.assertEqual(order, sorted(order, key=lambda kinds: kinds == {True}), name)
            self.assertIn({True}, [kinds for order in refuted.values() for kinds in order])
        curves = {}
        for trace in plots.loss_curves(self.run_).data:
            if trace.meta:
                curves.setdefault(trace.xaxis, []).append(trace.meta[1] in self.refuted)
        for order in curves.values():
            self.assertEqual(order, sorted(order))
        for axes in figures.draw("loss_curves", self.run_).axes:
            ends = [line.get_markerfacecolor() for line in axes.lines if line.get_marker() not in ("", "None")]
            self.assertEqual([c == style.DIFFERENT for c in ends], sorted(c == style.DIFFERENT for c in ends))

    def test_validation_losses_are_rings_on_their_curve(self):
        objects = synthetic.few(2)
        objects[1]["document"]["validation"] = {"steps": [2, 4, 6], "losses": [3.5, None, 3.1]}
        run = record.read_run(synthetic.write(self.folder / "validated", objects))
        rings = [t for t in plots.loss_curves(run).data if t.marker.symbol == "circle-open"]
        self.assertEqual([(list(t.x), list(t.y)) for t in rings], [([2, 4, 6], [3.5, None, 3.1])])
        lines = [line for axes in figures.draw("loss_curves", run).axes for line in axes.lines
                 if line.get_markerfacecolor() == "none" and line.get_marker() == "o"]
        self.assertEqual([list(line.get_xdata()) for line in lines], [[2, 4, 6]])

    def test_a_diverged_curve_leaves_the_panel_of_the_others(self):
        objects = synthetic.few(2)
        objects[2] |= {"status": "diverged", "reason": "the loss is nan"}
        objects[2]["document"] |= {"status": "diverged", "loss": [4.0, 1.5e14, 2.0]}
        run = record.read_run(synthetic.write(self.folder / "diverged", objects))
        sound = [v for v in run.cases[0].loss if v is not None]
        figure = plots.loss_curves(run)
        low, high = figure.layout.yaxis.range
        self.assertTrue(low < min(sound) and max(sound) < high < 2 * max(sound), (low, high))
        self.assertEqual([(list(t.x), list(t.y)) for t in figure.data if t.name == loss_limits.LEAVES], [([2], [high])])
        drawn = figures.draw("loss_curves", run)
        self.assertEqual({tuple(axes.get_ylim()) for axes in drawn.axes}, {(low, high)})
        self.assertIn(loss_limits.LEAVES, [t.get_text() for t in drawn.legends[0].get_texts()])
        self.assertIsNone(loss_limits.limits(run.finished))

    def test_curves_of_few_steps_fill_a_panel_beside_one_of_many(self):
        objects = synthetic.few(2)
        objects[2]["document"]["plan"]["train"]["steps"] = 353
        objects[2]["document"]["loss"] = [5.0 - t / 100 for t in range(353)]
        run = record.read_run(synthetic.write(self.folder / "long", objects))
        figure = plots.loss_curves(run)
        ends = {t.xaxis: len(t.x) for t in figure.data if t.meta}
        self.assertEqual(len(ends), len(views.loss_groups(run)))
        self.assertIn(353, ends.values())
        self.assertFalse([axis.matches for axis in figure.select_xaxes() if axis.matches])

    def test_a_curve_that_rose_far_leaves_it_too(self):
        objects = synthetic.few(2)
        objects[2]["document"]["loss"] = [4.0, 150.0, 208.0]
        run = record.read_run(synthetic.write(self.folder / "risen", objects))
        sound = [v for v in run.cases[0].loss if v is not None]
        low, high = plots.loss_curves(run).layout.yaxis.range
        self.assertTrue(low < min(sound) and max(sound) < high < 2 * max(sound), (low, high))
        # One that rose a little is like the others.
        objects[2]["document"]["loss"] = [sound[0], sound[0] + 0.01]
        mild = record.read_run(synthetic.write(self.folder / "mild", objects))
        self.assertIsNone(loss_limits.limits(mild.cases))

    def test_names_of_kinds_are_told_apart(self):
        self.assertEqual(views.setting_label("model.kind", "gpt"), "model gpt")
        self.assertEqual(views.setting_label("optimizer.kind", "adamw"), "optimizer adamw")

    def test_reasons_that_differ_by_the_path_of_a_plan_are_told_once(self):
        objects = synthetic.few(2)
        for index, case in enumerate(("0123456789abcdef", "fedcba9876543210"), 1):
            objects[index] |= {"status": "failed", "reason": f"/tmp/a b/cases/{case}/plan.toml:18: train.batch = 7: no"}
        run = record.read_run(synthetic.write(self.folder / "paths", objects))
        grouped = reasons.grouped(run.cases)
        self.assertEqual(len(grouped["failed", "train.batch = 7: no"]), 2)
        self.assertFalse([reason for _, reason in grouped if "plan.toml" in reason])

    def test_a_reason_of_one_case_in_two_folders_stands_in_its_rows(self):
        objects = synthetic.few(1)
        objects[1] |= {"status": "out_of_memory", "reason": "no such luck"}
        objects[1]["document"] = {"status": "out_of_memory", "reason": "no such luck"}
        cases = [record.read_run(synthetic.write(self.folder / name, objects)).cases[0] for name in ("a", "b")]
        shared = reasons.Reasons(cases)
        self.assertEqual(shared.list(), "")
        self.assertEqual([shared.cell(case, 0) for case in cases], ["no such luck"] * 2)

    def test_draws_no_level_of_a_refuted_rank(self):
        objects = synthetic.few(1)
        objects[1]["document"]["certificate"]["verdict"] = "different"
        run = record.read_run(synthetic.write(self.folder / "one", objects))
        self.assertEqual([c.ranks for c in run.finished], [1])
        self.assertEqual(len(plots.tokens_per_second(run).layout.shapes), 0)


class Static(Folder):
    def test_uncertified_marks_are_hollow(self):
        run = record.read_run(synthetic.write(self.folder))
        figure = figures.draw("tokens_per_second", run)
        faces = [c.lines[0].get_markerfacecolor() for a in figure.axes for c in a.containers]
        self.assertEqual(len(faces), 36)
        self.assertEqual(faces.count(style.PAPER), 2)

    def test_panels_hold_equal_work_only(self):
        run = record.read_run(synthetic.write(self.folder))
        groups = views.workloads(run.finished)
        self.assertEqual([label for label, _ in groups],
                         ["batch 8, sequence 32, plain", "batch 8, sequence 64, plain",
                          "batch 8, sequence 64, full recomputation",
                          "batch 16, sequence 64, plain"])
        for _, cases in groups:
            tokens = {c.plan["train"]["batch"] * c.plan["model"]["sequence"] for c in cases}
            self.assertEqual(len(tokens), 1)
        joined = dict(views.loss_groups(run))["batch 8, sequence 64, lr 0.003"]
        self.assertEqual({c.plan["memory"]["recompute"] for c in joined}, {"none", "full"})

    def test_titles_are_cut_behind_commas(self):
        self.assertEqual(views.lines_over("batch 16, sequence 32, full recomputation (9 curves)", 4, 72),
                         ["batch 16,", "sequence 32,", "full recomputation", "(9 curves)"])
        self.assertEqual(views.lines_over("one two three four five six", 4, 72), ["one two three four", "five six"])

    def test_what_auto_became_is_not_told_over_losses(self):
        objects = synthetic.few(2)[:3]
        for line, hidden in zip(objects[1:], (64, 128)):
            line["settings"]["model.hidden"] = hidden
            line["settings"]["policy"] = f"for {hidden}"       # follows too, and no curve follows from it
            line["document"]["plan"]["model"] |= {"hidden": hidden, "ffn": 4 * hidden}
        run = record.read_run(synthetic.write(self.folder, objects))
        self.assertEqual([label for label, _ in views.loss_groups(run)], ["hidden 64", "hidden 128"])

    def test_figures_without_data_are_left_out(self):
        objects = synthetic.few()
        for line in objects:
            if line["kind"] == "case":
                for field in ("step_time_s", "tokens_per_s", "ledger"):
                    line["document"].pop(field, None)
        synthetic.write(self.folder, objects)
        code, out, err = run_main(self.folder)
        self.assertEqual((code, err), (0, ""))
        self.assertIn("2 figures", out)
        run = record.read_run(self.folder)
        self.assertIsNone(figures.draw("traffic", run))
        self.assertIsNone(plots.tokens_per_second(run))
        self.assertFalse((self.folder / "figures" / "tradeoff.svg").exists())

    def test_simulated_cases_have_no_loss_and_are_hollow(self):
        objects = synthetic.few()
        for line in objects:
            if line["kind"] == "case" and line["status"] == "ok":
                line["document"] |= {"world": "simulated", "loss": None, "certificate": None}
        run = record.read_run(synthetic.write(self.folder, objects))
        self.assertFalse(any(c.is_certified for c in run.finished))
        self.assertNotIn("ok", {c.status for c in views.learned(run)})
        self.assertEqual(run_main(self.folder)[0], 0)
