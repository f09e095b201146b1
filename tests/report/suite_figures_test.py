# SPDX-License-Identifier: Apache-2.0
"""Columns, claims and figures of suites: in the page, the text, CSV and JUnit, and what scripts of a suite draw."""

import contextlib
import copy
import dataclasses
import io
import json
import math
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "report")]

import matplotlib

import derived
import export
import junit
import progress
import reach
import record
import report
import style
import suite_facts
import suite_figures
import suite_places
import suite_points
import synthetic
import table

AXIS = {"ranks": ("ranks", ""), "batch": ("train.batch", ""), "step": ("step_time_s.median", "s"), "sent": ("bytes sent", "B"),
        "strategy": ("strategy", ""), "recompute": ("memory.recompute", "")}


def axis(name):
    return {"name": AXIS[name][0], "unit": AXIS[name][1]}


def value(line, name):
    document = line["document"]
    return {"ranks": document["ranks"], "step": document["step_time_s"]["median"],
            "sent": sum(sum(a["bytes_sent"]) for a in document["ledger"].values()), "strategy": line["settings"]["strategy"],
            "batch": line["settings"]["train.batch"], "recompute": document["plan"]["memory"]["recompute"]}[name]


def spec_of(lines, kind, x, y, z=None, by="strategy", log="", title=""):
    """A figure as the front hands it on."""
    points = []
    for line in lines[1:]:
        if line["status"] != "ok":
            continue
        point = {"id": line["case_id"], "x": value(line, x), "y": value(line, y)}
        if z:
            point["z"] = value(line, z)
        if by:
            point["by"] = str(value(line, by))
        if y == "step":
            point["reach"] = line["document"]["step_time_s"]["ci95"]
        points.append(point)
    return {"at": "/elsewhere/s.toml:7", "title": title, "kind": kind, "log": log, "by": by, "where": "", "x": axis(x), "y": axis(y),
            "points": points} | ({"z": axis(z)} if z else {})


def facts_of(lines, figures):
    finished = [line for line in lines[1:] if line["status"] == "ok"]
    return {"references": [], "derived": {
        "columns": [{"name": "bytes a <token>", "formula": "1", "unit": "B",
                     "values": {line["case_id"]: 2048 * line["document"]["ranks"] for line in finished[1:]}},
                    {"name": "rate", "formula": "1", "unit": "1/s", "values": {line["case_id"]: 0.5 for line in finished},
                     "ci95": {finished[0]["case_id"]: [0.4, 0.75]}}],
        "claims": [
            {"name": "it learns", "what": "loss.last < loss.first", "source": "a book", "verdict": "holds", "checked": 36, "held": 36,
             "failing": [], "open": []},
            {"name": "two are faster", "what": "tokens_per_s > 1 <always>", "source": "a paper", "verdict": "fails", "checked": 9,
             "held": 2, "failing": [f"case {i}: 1 > 2" for i in range(7)], "open": []},
            {"name": "four are faster", "what": "ranks > 1", "source": "a talk", "verdict": "unresolved", "checked": 2, "held": 1,
             "failing": [], "open": ["slow: ended as timeout"]}],
        "figures": figures}}


class Derived(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        keeper = tempfile.TemporaryDirectory()
        cls.addClassCleanup(keeper.cleanup)
        cls.root = Path(keeper.name)
        cls.lines = synthetic.lines()
        cls.lines[5]["document"]["certificate"]["verdict"] = "different"
        cls.refuted = cls.lines[5]["case_id"]
        cls.folder = synthetic.write(cls.root / "run", cls.lines)
        cls.specs = {
            "line": spec_of(cls.lines, "line", "ranks", "step", log="xy", title="Step time"),
            "bar": spec_of(cls.lines, "bar", "strategy", "step", by="ranks"),
            "scatter": spec_of(cls.lines, "scatter", "sent", "step", log="x"),
            "heatmap": spec_of(cls.lines, "heatmap", "ranks", "strategy", z="step", by="")}
        cls.facts = facts_of(cls.lines, list(cls.specs.values()))
        cls.run_ = suite_facts.ordered(record.read_run(cls.folder), cls.facts)

    def main(self, *arguments, facts=None):
        path = self.root / "facts.json"
        path.write_text(json.dumps([facts or self.facts]))
        out, err = io.StringIO(), io.StringIO()
        # The figures of every report have tests of their own, and take seconds.
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.dict(report.figures.FIGURES, clear=True), \
                mock.patch.object(progress, "EVERY_S", 1e9):
            code = report.main([str(self.folder), "--facts", str(path), *map(str, arguments)])
        return code, out.getvalue(), err.getvalue()


class Figures(Derived):
    def test_wide_intervals_are_cut_and_estimates_have_none(self):
        lines = copy.deepcopy(self.lines)
        wide = lines[1]["document"]["step_time_s"]
        wide["ci95"] = [wide["median"] / 100, wide["median"] * 100]
        lines[2]["document"] |= {"world": "simulated", "certificate": None}
        run = record.read_run(synthetic.write(self.root / "wide", lines))
        for kind, log in (("line", ""), ("line", "y"), ("bar", "")):
            spec = spec_of(lines, kind, "ranks", "step", log=log)
            highest = max(p["y"] for p in spec["points"])
            d = suite_points.drawing(run, spec)
            self.assertLess(d.limits[1], 3 * highest)
            self.assertIn(suite_points.ESTIMATED, d.notes)
            marks = {m.case.id: m for _, series in d.panels for s in series for m in s.marks}
            self.assertEqual(marks[lines[2]["case_id"]].low, marks[lines[2]["case_id"]].high)
            plot = suite_figures.interactive(run, spec)
            arrows = [t for t in plot.data if t.name == reach.CUT]
            self.assertEqual([a for t in arrows for a in t.marker.symbol if a == "arrow-up"], ["arrow-up"])
            if log:             # plotly draws what is within the range, in decades
                ends, shown = [math.log10(y) for t in arrows for y in t.y], plot.layout.yaxis.range
                self.assertTrue(all(shown[0] < end < shown[1] for end in ends), (shown, ends))
            self.assertIsNotNone(suite_figures.static(run, spec))
        self.assertIsNone(suite_points.drawing(self.run_, self.specs["scatter"]).limits)

    def drawn(self, kind):
        with matplotlib.rc_context(style.MATPLOTLIB):
            return suite_figures.static(self.run_, self.specs[kind])

    def test_each_kind_is_drawn_both_ways(self):
        for kind, spec in self.specs.items():
            self.assertGreater(len(self.drawn(kind).axes), 0, kind)
            plot = suite_figures.interactive(self.run_, spec)
            json.loads(plot.to_json())
            self.assertGreater(len(plot.data), 1, kind)

    def test_marks_stand_where_the_points_do(self):
        plot = suite_figures.interactive(self.run_, self.specs["scatter"])
        wanted = {p["id"]: (p["x"], p["y"]) for p in self.specs["scatter"]["points"] if p["x"] > 0}
        found = {}
        for trace in plot.data:
            if trace.customdata is not None:
                found |= {card[1]: (x, y) for card, x, y in zip(trace.customdata, trace.x, trace.y)}
        self.assertEqual(found, wanted)

    def test_lines_go_up_in_x_and_tell_intervals(self):
        for trace in suite_figures.interactive(self.run_, self.specs["line"]).data:
            if trace.customdata is None:
                continue
            self.assertEqual(list(trace.x), sorted(trace.x))
            by_id = {p["id"]: p for p in self.specs["line"]["points"]}
            for card, y, up in zip(trace.customdata, trace.y, trace.error_y.array):
                self.assertAlmostEqual(y + up, by_id[card[1]]["reach"][1])

    def test_lines_of_one_x_stand_beside_each_other(self):
        for log in ("", "xy"):
            spec = spec_of(self.lines, "line", "ranks", "step", log=log)
            d = suite_points.drawing(self.run_, spec)
            for _, series in d.panels:
                crowded = 0
                for x in {m.x for s in series for m in s.marks}:
                    there = [i for i, s in enumerate(series) if any(m.x == x for m in s.marks)]
                    places = [suite_places.along_x(d, series, i)[[m.x for m in series[i].marks].index(x)] for i in there]
                    self.assertEqual(len(set(places)), len(places))
                    self.assertTrue(all(x / 1.2 < place < x * 1.2 for place in places), places)
                    crowded += len(places) > 1
                self.assertGreater(crowded, 0)
            shown = [x for t in suite_figures.interactive(self.run_, spec).data if t.customdata is not None for x in t.x]
            self.assertEqual(sorted(shown), sorted(x for _, series in d.panels for i in range(len(series)) for x in suite_places.along_x(d, series, i)))

    def test_panels_hold_equal_work(self):
        labels = [label for label, _ in suite_points.drawing(self.run_, self.specs["line"]).panels]
        self.assertEqual(len(labels), 4)
        self.assertIn("batch 8, sequence 64, full recomputation", labels)
        self.assertEqual(len(suite_points.drawing(self.run_, self.specs["scatter"]).panels), 1)

    def test_strategies_look_as_everywhere(self):
        looks = suite_points.drawing(self.run_, self.specs["line"]).looks
        self.assertEqual(looks["1D tensor"], style.STRATEGIES["1D tensor"])

    def test_refuted_marks_are_red(self):
        red = {card[1] for trace in suite_figures.interactive(self.run_, self.specs["scatter"]).data if trace.customdata is not None
               for card, color in zip(trace.customdata, trace.marker.color) if color == style.DIFFERENT}
        self.assertEqual(red, {self.refuted})
        heatmap = suite_figures.interactive(self.run_, self.specs["heatmap"])
        self.assertEqual(len(heatmap.layout.shapes), 1)
        bar = heatmap.data[0].colorbar      # what the colours are, and in which unit
        self.assertEqual((bar.title.text, bar.ticksuffix), (suite_points.drawing(self.run_, self.specs["heatmap"]).title_of("z"), "s"))
        self.assertGreater(heatmap.layout.margin.r, 100)    # beside the buttons

    def test_axes_have_their_units(self):
        figure = self.drawn("scatter")
        self.assertEqual(figure.get_supxlabel(), "bytes sent [B]")
        self.assertEqual(figure.get_supylabel(), "step_time_s.median [s]")
        self.assertEqual(suite_figures.interactive(self.run_, self.specs["scatter"]).layout.xaxis.title.text, "bytes sent [B]")

    def test_what_a_logarithmic_axis_cannot_show_is_told(self):
        alone = sum(p["x"] == 0 for p in self.specs["scatter"]["points"])
        self.assertGreater(alone, 0)
        notes = suite_points.drawing(self.run_, self.specs["scatter"]).notes
        self.assertEqual(notes, [f"{alone} of 36 cases are left out: {alone} have no number above 0, as a logarithmic axis wants."])

    def test_cases_without_a_point_are_counted_with_the_reason(self):
        spec = dict(self.specs["scatter"], log="", left_out={"ended as refused": 1, "there is no case with ranks = 8": 3, "has not ended": 2})
        run = dataclasses.replace(self.run_, figures=[spec, dict(spec, points=[], title="Nothing")])
        said = "6 of 42 cases are left out: for 3 there is no case with ranks = 8; 2 have not ended; 1 ended as refused."
        self.assertIn(said, next(iter(suite_figures.sections(run).values()))[1])
        self.assertEqual(len(suite_figures.missing(run)), 1)
        self.assertIn("'Nothing' (s.toml:7) is not drawn: no case has a point. 6 of 6 cases", suite_figures.missing(run)[0])

    def test_what_follows_from_an_axis_is_no_panel(self):
        spec = dict(self.specs["bar"], x=axis("batch"), points=[dict(p, x=8) for p in self.specs["bar"]["points"]])
        apart = [label for label, _ in suite_points.drawing(self.run_, spec).panels]
        self.assertEqual(len(apart), 3)                      # by sequence and recomputation
        spec["follows"] = {"model.sequence": ["batch", "x"]}
        together = [label for label, _ in suite_points.drawing(self.run_, spec).panels]
        self.assertFalse([label for label in together if "sequence" in label], together)
        spec["follows"] = {"model.sequence": ["train.steps"]}
        self.assertEqual([label for label, _ in suite_points.drawing(self.run_, spec).panels], apart)

    def test_bytes_have_binary_units_everywhere(self):
        for kind, log in (("scatter", ""), ("scatter", "x"), ("heatmap", "")):
            spec = dict(self.specs[kind], log=log)
            if kind == "heatmap":
                spec["z"] = axis("sent")
            plot = suite_figures.interactive(self.run_, spec)
            of = plot.data[0].colorbar if kind == "heatmap" else plot.layout.xaxis
            self.assertTrue(of.ticktext, kind)
            for at, told in zip(of.tickvals, of.ticktext):
                self.assertEqual(told, style.text_bytes(at))
            if kind == "scatter":
                self.assertTrue(all("iB" in t or t == "0 B" for t in of.ticktext), of.ticktext)
            with matplotlib.rc_context(style.MATPLOTLIB):
                drawn = suite_figures.static(self.run_, spec)
                drawn.canvas.draw()
            panel = drawn.axes[0] if kind == "scatter" else None
            if panel:
                low, high = panel.get_xlim()
                shown = [t for t in panel.get_xticks() if low <= t <= high]
                self.assertTrue(set(shown) <= set(of.tickvals))
                self.assertGreater(len(shown), 1)

    def test_one_panel_leaves_the_title_to_its_section(self):
        plot = suite_figures.interactive(self.run_, self.specs["scatter"])
        self.assertEqual([a.text.strip("<b/> ") for a in plot.layout.annotations], [""])
        self.assertEqual(self.drawn("scatter").axes[0].get_title(loc="left") + self.drawn("scatter").axes[0].get_title(), "")

    def ticks_over(self, kind, xs, log=""):
        """Of the x axis of a figure of these x: static, and interactive where they are set."""
        spec = dict(self.specs["scatter"], kind=kind, log=log, x=axis("ranks"))
        spec["points"] = [dict(p, x=x) for p, x in zip(spec["points"], xs)]
        with matplotlib.rc_context(style.MATPLOTLIB):
            panel = suite_figures.static(self.run_, spec).axes[0]
        low, high = panel.get_xlim()
        of = suite_figures.interactive(self.run_, spec).layout.xaxis
        return [t for t in panel.get_xticks() if low <= t <= high], of.tickvals or of.dtick

    def test_counts_have_whole_ticks(self):
        self.assertEqual(self.ticks_over("line", (1, 2, 3)), ([1, 2, 3], (1, 2, 3)))
        for kind in ("line", "scatter"):
            static, interactive = self.ticks_over(kind, range(1, 10))
            self.assertTrue(all(t == int(t) for t in static), static)
            self.assertEqual(interactive, 1)
        static, _ = self.ticks_over("scatter", (1, 2, 3))
        self.assertEqual(static, [1, 2, 3])
        self.assertEqual(self.ticks_over("scatter", (2, 4, 3), log="x")[0], [2, 3, 4])

    def test_short_logarithmic_axes_have_three_ticks(self):
        for ends in ((1.3, 1.9), (0.9, 3.4), (30.5, 70.5), (0.0123, 0.0131), (1.1, 115)):
            self.assertGreater(len(self.ticks_over("scatter", ends, log="x")[0]), 2, ends)

    def test_ticks_of_bytes_are_round(self):
        for low, high in ((3000, 5000), (2**20, 1.1 * 2**20), (2**20, 3.9 * 2**20)):
            self.assertGreater(len([t for t in style.byte_ticks(low, high, is_log=True) if low <= t <= high]), 2)
        self.assertEqual(style.byte_ticks(0, 5 * 2**20), [i * 2**20 for i in range(6)])
        self.assertEqual(style.byte_ticks(2**20, 1.5 * 2**20), [2**20 + i * 2**17 for i in range(5)])
        self.assertEqual(style.byte_ticks(3000, 70000, is_log=True), [2048, 4096 * 2, 32768, 131072])
        self.assertEqual(style.byte_ticks(7, 9), [7, 8, 9])

    def test_cases_in_one_place_are_their_median(self):
        spec = dict(self.specs["line"], points=[dict(p) for p in self.specs["line"]["points"]])
        drawing = suite_points.drawing(self.run_, spec)
        self.assertEqual(drawing.notes, [])
        first = spec["points"][0]
        double = dict(spec, points=[first, dict(first, y=3 * first["y"], reach=[first["y"], 4 * first["y"]])])
        mark = suite_points._marks(double["points"], {c.id: c for c in self.run_.cases}, lambda p: p["x"])[0]
        self.assertAlmostEqual(mark.y, 2 * first["y"])
        self.assertAlmostEqual(mark.high, 4 * first["y"])

    def test_hatches_mean_the_same_in_every_panel_of_a_half_done_sweep_and_stand_in_the_legend(self):
        spec = dict(self.specs["bar"], by="", points=[dict(p, by="") for p in self.specs["bar"]["points"]])
        ranks = {c.id: c.ranks for c in self.run_.cases}
        batches = {c.id: c.setting("train.batch") for c in self.run_.cases}
        spec["points"] = [p for p in spec["points"] if batches[p["id"]] == 8 or ranks[p["id"]] == 4]     # one panel lacks the others
        found = {}
        for _, series in suite_points.drawing(self.run_, spec).panels:
            for s in series:
                found.setdefault(ranks[s.marks[0].case.id], set()).add((s.name, s.rest))
        self.assertGreater(len(found), 1)
        self.assertEqual({len(looks) for looks in found.values()}, {1}, found)
        plot = suite_figures.interactive(self.run_, spec)
        shapes = {t.name: t.marker.pattern.shape for t in plot.data if t.type == "bar" and t.name and t.showlegend is not False}
        self.assertEqual(shapes, {name: suite_figures.RESTS[rest][3] for looks in found.values() for name, rest in looks})

    def test_a_figure_without_a_point_is_left_out(self):
        self.assertIsNone(suite_figures.static(self.run_, dict(self.specs["line"], points=[])))
        self.assertIsNone(suite_figures.interactive(self.run_, dict(self.specs["heatmap"], points=[])))

    def test_bars_of_a_group_do_not_overlap(self):
        plot = suite_figures.interactive(self.run_, self.specs["bar"])
        spans = {}
        for trace in plot.data:
            if trace.type == "bar":
                spans.setdefault(trace.xaxis, []).extend((x - trace.width / 2, x + trace.width / 2) for x in trace.x)
        self.assertTrue(spans)
        for found in spans.values():
            found.sort()
            self.assertTrue(all(a[1] <= b[0] + 1e-9 for a, b in zip(found, found[1:])))


class Outputs(Derived):
    def test_page_has_columns_claims_and_figures(self):
        out = self.root / "page"
        code, told, err = self.main("--out", out)
        self.assertEqual((code, err), (0, ""))
        page = (out / "report.html").read_text(encoding="utf-8")
        for part in ("<button>bytes a &lt;token&gt;</button>", "<button>rate [1/s]</button>", '<section id="claims">',
                     ">fails</span>", "tokens_per_s &gt; 1 &lt;always&gt;", "... and 2 more", "a paper",
                     '<section id="suite_1_step_time">', "asked for at s.toml:7", ">4 KiB<"):
            self.assertTrue(part in page, part)
        names = {p.name for p in (out / "figures").glob("suite_*")}
        self.assertEqual(len(names), 8)
        self.assertIn("suite_1_step_time.png", names)
        self.assertIn("4 figures", told)
        # A suite that asks for less takes its figures away.
        code, _, _ = self.main("--out", out, facts=facts_of(self.lines, [self.specs["bar"]]))
        self.assertEqual(code, 0)
        self.assertEqual(len(list((out / "figures").glob("suite_*"))), 2)

    def test_csv_has_the_columns(self):
        columns, rows = export.rows_of([self.run_], ["run"])
        self.assertIn("columns.bytes a <token>", columns)
        values = [row["columns.bytes a <token>"] for row in rows if row["status"] == "ok"]
        self.assertIsNone(values[0])
        self.assertEqual(values[1], 2048 * self.run_.finished[1].ranks)
        self.assertNotIn("columns.bytes a <token>.ci95.0", columns)
        case = self.run_.finished[0]
        self.assertEqual([rows[0][f"columns.rate{part}"] for part in ("", ".ci95.0", ".ci95.1")], [0.5, 0.4, 0.75])
        self.assertIn("0.4 to 0.75", table.body(self.run_, table.columns_of(self.run_)))
        self.assertEqual(rows[0]["case_id"], case.id)

    def test_text_has_the_claims(self):
        code, out, _ = self.main("--text")
        self.assertEqual(code, 0)
        said = " ".join(out.split())
        self.assertIn("holds it learns: 36 of 36: loss.last < loss.first (a book)", said)
        self.assertIn("FAILS two are faster: 2 of 9", said)
        self.assertIn("unresolved four are faster: 1 of 2: ranks > 1 (a talk) slow: ended as timeout", said)
        self.assertIn("... and 2 more", said)

    def test_what_stands_over_estimates_is_marked(self):
        facts = copy.deepcopy(self.facts)
        first = self.run_.finished[1].id
        facts["derived"]["columns"][0]["estimated"] = [first]
        facts["derived"]["claims"][0] |= {"is_estimated": True, "note": "times of two rounds: so and so"}
        run = suite_facts.ordered(record.read_run(self.folder), facts)
        columns = {c.heading: c for c in run.columns}
        self.assertTrue(columns["bytes a <token>"].shown(self.run_.finished[1]).startswith("~"))
        self.assertFalse(columns["bytes a <token>"].shown(self.run_.finished[2]).startswith("~"))
        self.assertIn(">~holds</span>", derived.section(run))
        self.assertIn("times of two rounds", derived.section(run))
        code, out, _ = self.main("--text", facts=facts)
        said = " ".join(out.split())
        self.assertIn("~holds it learns: 36 of 36: loss.last < loss.first (a book) times of two rounds", said)
        self.assertNotIn("~FAILS", said)

    def test_junit_skips_claims_that_do_not_hold(self):
        root = ElementTree.fromstring(junit.xml([self.run_], ["run"]))
        claims = {t.get("name"): t for t in root.iter("testcase") if t.get("classname").endswith(".claim")}
        self.assertEqual(len(claims), 3)
        self.assertEqual(len(claims["it learns"]), 0)
        self.assertEqual([e.tag for e in claims["two are faster"]], ["skipped"])
        self.assertIn("claim fails: tokens_per_s > 1", claims["two are faster"][0].get("message"))
        self.assertIn("claim unresolved", claims["four are faster"][0].get("message"))

    def test_without_facts_nothing_changes(self):
        run = suite_facts.ordered(record.read_run(self.folder), None)
        self.assertEqual((run.columns, run.claims, run.figures), ([], [], []))
        self.assertEqual(suite_figures.sections(run), {})
