# SPDX-License-Identifier: Apache-2.0
"""What a report says of times that nobody measured, of intervals that say nothing, of work that follows from a formula, and of
names that are too long."""

import csv
import io
import itertools
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "report")]

import export
import figures
import panels
import ratios
import reach
import record
import style
import synthetic
import views
from program import run_main
from short_names import LETTERS, fitting_names, short_names
from strategies import strategy_of

LONG = "data parallel over all ranks with ZeRO {} and selective recomputation of attention"


class Strategies(unittest.TestCase):
    def test_rows_of_every_axis_tell_cases_apart(self):
        settings = {"family": "gpt", "scheme": "1d", "ranks": 2, "policy": "plain", "train.batch": 8}
        self.assertEqual(strategy_of("gpt, 2 ranks, 1d, plain, batch 8", settings, {}), "gpt, 1d")
        self.assertEqual(strategy_of("a, b, 2 ranks", {"way": "a, b", "ranks": 2}, {}), "a, b")
        self.assertEqual(strategy_of("gpt, batch 8", {"strategy": "mine", "family": "gpt"}, {}), "mine")


def rounds_of(line, factors):
    """`line` after a round of each factor of its step time, with the interval that Student's t gives."""
    step, rate = line["document"]["step_time_s"], line["document"]["tokens_per_s"]
    line["rounds"] = [{"round": i + 1, "status": "ok", "losses": "same", "tokens_per_s": rate / f,
                       "step_time_s": {"median": step["median"] * f, "ci95": [v * f for v in step["ci95"]]}}
                      for i, f in enumerate(factors)]
    line["timing"] = {"rounds": len(factors), "tokens_per_s": rate,
                      "step_time_s": {"median": step["median"], "ci95": [step["median"] / 30, step["median"] * 30]}}


def lines():
    """Six cases of one work: simulated, of two rounds, of three with a wide interval, and three of one process."""
    found = [o for o in synthetic.lines()[1:] if o["status"] == "ok" and "batch 8, sequence 32," in o["name"]][:6]
    priced = found[1]["document"]
    median = priced["step_time_s"]["median"]
    priced |= {"world": "simulated", "loss": None, "certificate": None,
               "step_time_s": {"median": median, "ci95": [median, median], "samples": [median]}}
    rounds_of(found[2], (0.9, 1.1))
    rounds_of(found[3], (0.5, 1.0, 2.0))
    return [synthetic.suite_line(len(found))] + found


class Times(unittest.TestCase):
    """A page with each of these."""

    @classmethod
    def setUpClass(cls):
        keeper = tempfile.TemporaryDirectory()
        cls.addClassCleanup(keeper.cleanup)
        cls.folder = synthetic.write(Path(keeper.name) / "run", lines())
        code, _, err = run_main(cls.folder)
        assert code == 0, err
        cls.run_ = record.read_run(cls.folder)
        cls.priced, cls.two, cls.wide = cls.run_.cases[1:4]
        cls.page = (cls.folder / "report.html").read_text(encoding="utf-8")
        cls.plots = json.loads(re.search(r"const PLOTS = (\{.*\});\nconst CONFIG", cls.page, re.S).group(1))

    def row(self, case):
        """The table's row of a case, without what it opens."""
        return self.page.split(f'data-id="{case.id}"')[1].split('<tr class="detail">')[0]

    def mark(self, name, case):
        """(trace, index) of the mark of a case."""
        return next((t, i) for t in self.plots[name]["data"] for i, card in enumerate(t.get("customdata") or [])
                    if card[1] == case.id)

    def test_estimates_have_a_mark_of_their_own_and_no_interval(self):
        self.assertIn(f"~{style.text_number(self.priced.tokens_per_s)}<", self.row(self.priced))
        self.assertIn("<small>estimated by the cost model</small>", self.row(self.priced))
        self.assertNotIn(" to ", self.row(self.priced))
        self.assertIn("<b>1</b><span>estimated, not measured</span>", self.page)
        for name in ("tokens_per_second", "tradeoff"):
            trace, index = self.mark(name, self.priced)
            self.assertTrue(trace["marker"]["symbol"][index].endswith("-dot"))
            self.assertIsNone((trace.get("error_y") or {"array": [None] * 9})["array"][index])
            self.assertIn("estimated by the cost model", trace["customdata"][index][0])
            self.assertIn(views.ESTIMATED, [t["name"] for t in self.plots[name]["data"] if "name" in t])
            other, index = self.mark(name, self.run_.cases[0])
            self.assertFalse(other["marker"]["symbol"][index].endswith("-dot"))
        self.assertNotIn(views.ESTIMATED, [t.get("name") for t in self.plots["memory"]["data"]])

    def test_text_and_csv_mark_them_too(self):
        _, out, _ = run_main(self.folder, "--text")
        group = out.split("estimated by the cost model (~)")[1].split("\n\n")[0]
        self.assertIn(f"~{style.text_number(self.priced.tokens_per_s)} tokens/s", group)
        self.assertNotIn("~", out.split("Fastest with a certificate")[1].split("\n\n")[0])
        rows = {r["case_id"]: r for r in csv.DictReader(io.StringIO(export.csv_text([self.run_], ["run"])))}
        for case in (self.priced, self.two):
            self.assertEqual(rows[case.id]["step_time_s.ci95.0"], "")
            self.assertNotEqual(rows[case.id]["step_time_s.median"], "")

    def test_ratios_of_estimates_are_marked(self):
        ratio = ratios.ratio_of(self.priced, self.run_.cases[0])
        self.assertTrue(ratios.shown_speed(ratio).startswith("~"))
        self.assertIsNone(ratio.speed_interval)
        self.assertFalse(ratios.shown_speed(ratios.ratio_of(self.wide, self.run_.cases[0])).startswith("~"))

    def test_two_rounds_give_no_interval(self):
        self.assertIsNone(self.two.tokens_interval)
        self.assertIn("<small>two rounds: no interval</small>", self.row(self.two))
        trace, index = self.mark("tokens_per_second", self.two)
        self.assertIsNone((trace.get("error_y") or {"array": [None] * 9})["array"][index])
        _, out, _ = run_main(self.folder, "--text")
        for said in (self.page, " ".join(out.split())):
            self.assertIn("1 of 6 finished cases ran in two rounds, which give no interval", said)
        paired = ratios.ratio_of(self.two, self.wide)
        self.assertEqual((paired.rounds, paired.speed_interval), (2, None))

    def test_wide_intervals_are_cut_with_an_arrow(self):
        highest = max(c.tokens_per_s for c in self.run_.finished)
        self.assertGreater(self.wide.tokens_interval[1], 2 * highest)
        for name in ("tokens_per_second", "tradeoff"):
            top = self.plots[name]["layout"]["yaxis"]["range"][1]
            self.assertLess(top, 1.5 * highest)
            arrows = [t for t in self.plots[name]["data"] if t.get("name") == reach.CUT]
            self.assertEqual([(t["y"], t["marker"]["symbol"]) for t in arrows], [([top], ["arrow-up"])])


class Axes(unittest.TestCase):
    def test_limits_hold_every_value_and_little_of_wide_intervals(self):
        self.assertEqual(reach.limits([1, 5], [(0.9, 5.5)]), (0.9, 5.5))
        self.assertEqual(reach.limits([1, 5], [(-90, 90)]), (0, 6))
        self.assertEqual(reach.limits([4], [(-90, 90)], origin=0), (-1, 5))
        low, high = reach.limits([1, 16], [(1e-9, 1e9)], is_log=True)
        self.assertAlmostEqual(low, 0.5)
        self.assertAlmostEqual(high, 32)

    def test_cuts_name_the_end(self):
        found = reach.cuts([(1, (0, 9), "red"), (2, (2, 3), "red"), (3, None, "red")], (1, 5))
        self.assertEqual(found, [(1, 1, "down", "red"), (1, 5, "up", "red")])


class Work(unittest.TestCase):
    """A suite of `ranks` whose batch follows from them."""

    def cases(self, **more):
        found = []
        for strategy, ranks in itertools.product(("one", "other"), (1, 2, 4)):
            plan = synthetic.plan_of("none", 1, ranks, 4 * ranks, 32, "none")
            for key, value in more.items():
                section, name = key.split("__")
                plan[section][name] = value * ranks
            name = f"{strategy}, {ranks}"
            found.append(record.case_of(synthetic.case_line(name, {"strategy": strategy, "ranks": ranks}, {
                "status": "ok", "plan": plan, "ranks": ranks, "world": "threads"})))
        return found

    def test_what_a_formula_makes_of_it_tells_work_apart(self):
        groups = views.workloads(self.cases())
        self.assertEqual([label for label, _ in groups], ["batch 4", "batch 8", "batch 16"])
        for _, members in groups:
            self.assertEqual(len({c.ranks for c in members}), 1)

    def test_a_key_that_follows_from_another_is_not_told(self):
        self.assertEqual(views.varied_keys(self.cases(optimizer__lr=0.001)), ["train.batch"])

    def test_where_work_goes_is_no_work(self):
        cases = self.cases(train__micro_batch=1, train__seed=3, memory__device=2**30)
        self.assertEqual(views.varied_keys([c for c in cases if c.ranks == 2]), [])
        self.assertEqual(views.varied_keys(cases), ["train.batch"])

    def test_rows_that_say_where_work_goes_are_no_work_whatever_they_are_called(self):
        def named(axis, works):
            return [record.case_of(synthetic.case_line(f"{row}, batch {batch}", {axis: row, "train.batch": batch}, {
                "status": "ok", "plan": synthetic.plan_of("none", 1, 2, work * batch, 32, "none"), "ranks": 2, "world": "threads"}))
                for row, work in works for batch in (4, 8)]
        alike = named("layout", [("two ranks, data", 1), ("two ranks, tensor", 1)])
        self.assertEqual(views.varied_keys(alike), ["train.batch"])
        self.assertEqual({c.strategy for c in alike}, {"two ranks, data", "two ranks, tensor"})
        self.assertIn("layout", views.varied_keys(named("layout", [("small", 1), ("large", 3)])))

    def test_data_that_was_not_read_is_no_other_work(self):
        cases = [c for c in self.cases() if c.ranks == 2]
        for case, known in zip(cases, ("31e89e48", "")):
            case.plan["data"] = {"hash": known}
        self.assertEqual(views.varied_keys(cases), [])
        cases[1].plan["data"]["hash"] = "other"
        self.assertEqual(views.varied_keys(cases), ["data.hash"])

    def test_numbers_are_told_in_few_digits(self):
        self.assertEqual(views.setting_label("optimizer.lr", 0.1 + 0.2), "lr 0.3")
        self.assertEqual(views.setting_label("train.batch", 4096), "batch 4096")


class Names(unittest.TestCase):
    def test_long_ones_keep_what_tells_them_apart(self):
        short = short_names([LONG.format(i) for i in range(15)] + ["1D"])
        self.assertEqual(short["1D"], "1D")
        self.assertEqual(len(set(short.values())), 16)
        for i in range(15):
            self.assertRegex(short[LONG.format(i)], rf"ZeRO {i}\b")
            self.assertLessEqual(len(short[LONG.format(i)]), LETTERS)

    def test_those_that_look_alike_are_numbered(self):
        short = short_names(["x" * 40 + end for end in "abc"])
        self.assertEqual(len(set(short.values())), 3)
        self.assertLessEqual(max(map(len, short.values())), LETTERS)

    def test_legends_cut_no_name_that_they_have_room_for(self):
        told = ["against deepspeed_style zero3", "runs/quickstart over results/quickstart"]
        for name in told:
            legend, figure = panels.Legend(), panels.grid([("", [])], 250)[0]
            legend.show(figure, {name: (style.BLUE, "square")})
            self.assertEqual([t.name for t in figure.data], [name])
            self.assertEqual(figures.legend_names([name]), {name: name})
        long = ["a" * 40, "b" * 40]
        self.assertEqual(panels.legend_rows(long), 2)
        both = fitting_names(long, panels.legend_rows, 80)
        self.assertEqual(panels.legend_rows(both.values()), 1)             # as cut ones take
        self.assertGreater(min(map(len, both.values())), LETTERS)


if __name__ == "__main__":
    unittest.main()
