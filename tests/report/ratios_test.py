# SPDX-License-Identifier: Apache-2.0
"""Ratios to baselines: who is compared with whom, what the ratios are, what the page says."""

import contextlib
import copy
import csv
import io
import math
import random
import re
import sys
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "report")]

import export
import junit
import page
import plots
import ratios
import record
import report
import style
import synthetic
import text_report
import timings


def with_baselines(seed=3):
    """The synthetic record with a baseline beside every piece of work on 4 ranks, and one that was refused on 2."""
    rng, rows = random.Random(seed), []
    for batch, sequence, recompute in ((8, 32, "none"), (8, 64, "none"), (16, 64, "none"), (8, 64, "full")):
        policy = "plain" if recompute == "none" else "full recomputation"
        name = f"megatron_style interleaved, 4 ranks, batch {batch}, sequence {sequence}, {policy}"
        settings = {"strategy": "megatron_style interleaved", "baseline": "megatron_style", "ranks": 4, "train.batch": batch,
                    "model.sequence": sequence, "policy": policy, "world": "threads"}
        plan = synthetic.plan_of("1d-sp", 2, 2, batch, sequence, recompute)
        plan["train"]["micro_batch"] = 1
        rows.append(synthetic.case_line(name, settings, synthetic.document_of(rng, plan, 4, name)))
    rows.append(synthetic.case_line("megatron_style interleaved, 2 ranks", {"baseline": "megatron_style", "ranks": 2},
                                    {"status": "refused", "ranks": 2, "reason": "2 ranks hold no <4>"}))
    lines = synthetic.lines() + rows
    lines[0] = synthetic.suite_line(len(lines) - 1)
    return lines


def in_rounds(lines, number, slow_minute):
    """The lines as a sweep of so many rounds writes them: each case is slower by a minute of its own, and in each round all cases
    alike by slow_minute(round)."""
    rng = random.Random(7)
    for line in lines:
        if line.get("kind") != "case" or line["status"] != "ok":
            continue
        first = line["document"]["step_time_s"]["median"]
        rounds = []
        for index in range(number):
            median = first * slow_minute(index) * math.exp(rng.gauss(0, 0.002))
            rounds.append({"round": index + 1, "status": "ok", "step_time_s": {"median": median, "ci95": [median * 0.99, median * 1.01]},
                           "tokens_per_s": line["document"]["tokens_per_s"] * first / median})
        middle = sorted(r["step_time_s"]["median"] for r in rounds)[number // 2]
        line["rounds"] = rounds
        line["timing"] = {"rounds": number, "step_time_s": {"median": middle, "ci95": [middle / 2, middle * 2]},
                          "tokens_per_s": line["document"]["tokens_per_s"] * first / middle}
    return lines


def told(folder, *options):
    """What the program prints of a folder."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert report.main([str(folder), *map(str, options)]) == 0
    return out.getvalue()


class Rounds(unittest.TestCase):
    """Times over rounds; a ratio is made within a round."""

    def test_tables_for_other_programs_hold_the_times_over_all_rounds(self):
        with tempfile.TemporaryDirectory() as folder:
            lines = in_rounds(with_baselines(), 5, lambda r: 1 + 2 * (r == 0))
            run = record.read_run(synthetic.write(Path(folder), lines))
            for line, case in zip((x for x in lines if x.get("kind") == "case"), run.cases):
                if line["status"] != "ok":
                    continue
                row, timing = export.row_of(case), line["timing"]
                self.assertNotEqual(row["tokens_per_s"], line["document"]["tokens_per_s"])
                self.assertEqual((row["tokens_per_s"], row["rounds"]), (timing["tokens_per_s"], 5))
                self.assertEqual([row["step_time_s.median"], row["step_time_s.ci95.0"], row["step_time_s.ci95.1"]],
                                 [timing["step_time_s"]["median"], *timing["step_time_s"]["ci95"]])

    def test_a_later_round_that_failed_or_lost_other_bits_is_told_everywhere(self):
        lines = in_rounds(with_baselines(), 3, lambda r: 1)
        failed, other, good = [x for x in lines if x.get("kind") == "case" and x["status"] == "ok"][:3]
        failed["rounds"][1] |= {"status": "failed", "reason": "killed <by 9>"}
        other["rounds"][2]["losses"] = "different"
        with tempfile.TemporaryDirectory() as folder:
            run = record.read_run(synthetic.write(Path(folder), lines))
            tests = {(t.get("classname").split(".")[-1], t.get("name")): t for t in ElementTree.fromstring(junit.xml([run], [""])).iter("testcase")}
            self.assertIn("round 2: failed: killed <by 9>", tests["rounds", failed["name"]].find("failure").text)
            self.assertIn("round 3: other losses", tests["rounds", other["name"]].find("failure").text)
            self.assertEqual(list(tests["rounds", good["name"]]), [])
            words = " ".join(told(folder, "--text").split())
            self.assertIn(f"note: {failed['name']}: round 2: failed: killed <by 9>", words)
            self.assertIn(f"note: {other['name']}: round 3: other losses than in round 1", words)
            self.assertIn("round 2: failed: killed &lt;by 9&gt;", page.notes(run))

    def test_a_slow_minute_leaves_no_trace_in_a_ratio(self):
        with tempfile.TemporaryDirectory() as folder:
            run = record.read_run(synthetic.write(Path(folder), in_rounds(with_baselines(), 5, lambda r: 1 + 2 * (r == 3))))
        found = ratios.ratios(run)
        self.assertEqual(len(found), 5 * 4)
        for r in found:
            alone = r.case.document["tokens_per_s"] / r.base.document["tokens_per_s"]
            self.assertEqual(r.rounds, 5)
            self.assertLess(abs(math.log(r.speed / alone)), 0.01)
            self.assertLess(r.speed_interval[1] / r.speed_interval[0], 1.03)    # the cases' own intervals allow 16
            self.assertLessEqual(r.speed_interval[0], r.speed)
        self.assertIn("5 rounds", ratios.section(run))

    def test_a_round_that_one_side_lacks_is_left_out(self):
        lines = in_rounds(with_baselines(), 4, lambda r: 1)
        for line in lines:
            if line.get("settings", {}).get("baseline"):
                line["rounds"] = [dict(r, status="timeout" if r["round"] == 2 else "ok") for r in line.get("rounds", [])]
        with tempfile.TemporaryDirectory() as folder:
            run = record.read_run(synthetic.write(Path(folder), lines))
        self.assertEqual({r.rounds for r in ratios.ratios(run)}, {3})

    def test_rounds_of_two_calls_are_no_pair(self):
        lines = in_rounds(with_baselines(), 3, lambda r: 1)
        for line in lines:
            for r in line.get("rounds", []):
                r["sweep"] = f"2026-01-0{5 + bool(line['settings'].get('baseline'))}T12:00:00Z"
        with tempfile.TemporaryDirectory() as folder:
            run = record.read_run(synthetic.write(Path(folder), lines))
        self.assertEqual({(r.rounds, r.is_apart) for r in ratios.ratios(run)}, {(0, True)})
        for r in ratios.ratios(run):    # as `kuafu suite` prints it: errors of both, together
            half = math.hypot(*(math.log(high / low) / 2 for low, high in (r.case.step.interval, r.base.step.interval)))
            self.assertAlmostEqual(math.log(r.speed_interval[1] / r.speed), half)
            self.assertAlmostEqual(r.speed, r.base.step.median / r.case.step.median)
        self.assertIn(", apart</small>", ratios.section(run))
        for said in (ratios.section(run), " ".join(text_report.text([run], ["run"], 100).split())):
            self.assertIn(ratios.APART, said)

    def test_an_axis_may_be_called_as_a_table_of_the_plan_is(self):
        lines = [x for x in with_baselines() if not x.get("settings", {}).get("baseline")]
        cases = [x for x in lines if x.get("kind") == "case"]
        for line in cases:
            line["settings"]["model"] = "a row"
        del cases[-1]["settings"]["model"]      # a [[case]], which has none
        with tempfile.TemporaryDirectory() as folder:
            run = record.read_run(synthetic.write(Path(folder), lines))
            self.assertIsNone(run.cases[-1].setting("model"))
            self.assertIn(run.cases[-1].name, text_report.text([run], ["run"], 200))

    def test_no_ratio_is_said_where_no_baseline_finished(self):
        lines = with_baselines()
        for line in lines:
            if line.get("settings", {}).get("baseline") and line["status"] == "ok":
                line |= {"status": "refused", "document": {"status": "refused", "reason": "no such grid"}, "reason": "no such grid"}
        with tempfile.TemporaryDirectory() as folder:
            shown = ratios.section(record.read_run(synthetic.write(Path(folder), lines)))
        self.assertIn("There is no ratio: no baseline", shown)
        self.assertIn("no such grid", shown)
        self.assertNotIn("<table", shown)

    def test_page_text_and_csv_have_the_figures_of_the_console(self):
        """Medians and 95 % intervals of step times in rounds of a record, and what `kuafu suite` printed of it under "Beside baselines"."""
        slow = [(0.0166354, 0.0158703, 0.0231820), (0.00651347, 0.00643666, 0.00681094), (0.00668112, 0.00658179, 0.00739070)]
        even = [(0.020, 0.0160, 0.0260), (0.02002, 0.016016, 0.026026), (0.02004, 0.016032, 0.026052)]
        for mine, theirs, console in (
                ([(0.0117776, 0.00649303, 0.0214433), (0.0120472, 0.00801214, 0.0204377), (0.00605647, 0.00593558, 0.0103561)], slow,
                 "1.10 [0.234, 5.21] 3"),
                ([(0.021, 0.0168, 0.0273), (0.021021, 0.0168168, 0.0273273), (0.021042, 0.0168336, 0.0273546)], even,
                 "0.952 [0.743, 1.22] 3"),          # rounds that are closer than their processes
                ([(0.0118948, 0.00625808, 0.0126565)], slow, "1.40 [0.938, 2.09] 1"),
                ([(0.0165349, 0.0153006, 0.0221862), (0.0258849, 0.0232123, 0.0280219)], even, "0.967 [-] 2")):
            lines = with_baselines()
            own = next(x for x in lines[1:] if x["settings"].get("strategy") == "1D tensor" and x["settings"]["ranks"] == 4)
            base = next(x for x in lines[1:] if x["settings"].get("baseline") and x["status"] == "ok")
            for line, rounds in ((own, mine), (base, theirs)):
                line["rounds"] = [{"round": i + 1, "status": "ok", "step_time_s": {"median": m, "ci95": ends}, "tokens_per_s": 256 / m}
                                  for i, (m, *ends) in enumerate(rounds)]
            with tempfile.TemporaryDirectory() as folder:
                run = record.read_run(synthetic.write(Path(folder), [lines[0], own, base]))
            r, = ratios.ratios(run)
            ends = "-" if r.speed_interval is None else ", ".join(f"{end:.3g}" for end in r.speed_interval)
            self.assertEqual(f"{r.speed:#.3g} [{ends}] {r.rounds}", console)
            shown = "two rounds: no interval" if ends == "-" else " to ".join(ends.split(", ")) + (", 3 rounds" if r.rounds == 3 else "")
            self.assertIn(f"<br><small>{shown}</small></td>", ratios._table([r]))
            ratio, _, rounds = console.rpartition(" ")
            self.assertRegex(text_report.text([run], ["run"], 100), rf"\n +{re.escape(ratio)}  {rounds} rounds?  +{re.escape(r.case.name)}\n")
            row, other = ({k.removeprefix("ratios.megatron_style interleaved"): v for k, v in row.items() if k.startswith("ratios.")}
                          for row in csv.DictReader(io.StringIO(export.csv_text([run], ["run"]))))
            ends = ", ".join(style.console_number(float(row[end])) for end in (".ci95.0", ".ci95.1") if row[end]) or "-"
            self.assertEqual(f"{style.console_number(float(row['']))} [{ends}] {row['.rounds']}", console)
            self.assertEqual(set(other.values()), {""})             # the baseline's own

    def test_csv_tells_two_baselines_of_one_strategy_apart_by_their_cases(self):
        lines = with_baselines()
        base = next(x for x in lines[1:] if x["settings"].get("baseline") and x["status"] == "ok")
        again = copy.deepcopy(base)
        again["document"]["plan"]["train"]["micro_batch"] = 2
        again = synthetic.case_line(base["name"] + ", micro_batch 2", again["settings"], again["document"])
        with tempfile.TemporaryDirectory() as folder:
            columns, _ = export.rows_of([record.read_run(synthetic.write(Path(folder), lines + [again]))], ["run"])
        self.assertTrue({f"ratios.{name}" for name in (base["name"], again["name"], base["settings"]["strategy"])} <= set(columns))

    def test_the_text_tells_both_ends_of_many_ratios(self):
        with tempfile.TemporaryDirectory() as folder:
            run = record.read_run(synthetic.write(Path(folder), with_baselines()))
        shown = text_report.text([run], ["run"], 100).split("Beside baselines")[1].split("\n\n")[0].split("\n")[1:]
        speeds = sorted(r.speed for r in ratios.ratios(run))
        self.assertEqual(shown[0], "  against megatron_style interleaved, 6 of 20 cases, least and greatest")
        self.assertEqual([line.split()[0] for line in shown[1:]], list(map(style.console_number, speeds[:3] + speeds[-3:])))
        self.assertTrue(all(len(line) <= 100 for line in shown))

    def test_students_t_is_that_of_tables(self):
        for degrees, t in ((1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (30, 2.042)):
            self.assertAlmostEqual(timings.student_95(degrees), t, places=3)


class Ratios(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.keeper = tempfile.TemporaryDirectory()
        cls.folder = synthetic.write(Path(cls.keeper.name) / "run", with_baselines())
        cls.run_ = record.read_run(cls.folder)
        cls.found = ratios.ratios(cls.run_)
        report.write_report(cls.folder, cls.folder)
        cls.page = (cls.folder / "report.html").read_text(encoding="utf-8")

    @classmethod
    def tearDownClass(cls):
        cls.keeper.cleanup()

    def test_pair_equal_work_ranks_and_world_only(self):
        # Five strategies run on four ranks, under four kinds of work.
        self.assertEqual(len(self.found), 5 * 4)
        for r in self.found:
            self.assertFalse(r.case.baseline)
            self.assertEqual(r.base.baseline, "megatron_style")
            self.assertEqual((r.case.ranks, r.case.world), (r.base.ranks, r.base.world))
            for key in ("train.batch", "model.sequence", "policy"):
                self.assertEqual(r.case.settings[key], r.base.settings[key])

    def test_are_the_quotients_of_the_record(self):
        for r in self.found:
            mine, theirs = r.case.document, r.base.document
            self.assertAlmostEqual(r.speed, mine["tokens_per_s"] / theirs["tokens_per_s"], places=12)
            self.assertEqual(r.memory, max(mine["memory"]["peak_bytes"]) / max(theirs["memory"]["peak_bytes"]))
            # Of one round: both standard errors, which add as squares.
            widths = [math.log(d["step_time_s"]["ci95"][1] / d["step_time_s"]["ci95"][0]) for d in (mine, theirs)]
            low, high = r.speed_interval
            self.assertAlmostEqual(math.log(high / low), math.hypot(*widths), places=9)
            self.assertAlmostEqual(low * high, r.speed**2, places=9)

    def test_what_a_certificate_refutes_is_no_side_of_a_ratio(self):
        lines = copy.deepcopy(with_baselines())
        own = next(l for l in lines[1:] if l["settings"].get("strategy") == "1D tensor" and l["settings"]["ranks"] == 4)
        base = next(l for l in lines[1:] if l["settings"].get("baseline") and l["settings"].get("model.sequence") == 64)
        for line in (own, base):
            line["document"]["certificate"]["verdict"] = "different"
        run = record.read_run(synthetic.write(self.folder.parent / "refuted", lines))
        found = ratios.ratios(run)
        self.assertEqual(len(found), 5 * 4 - 1 - 5)
        self.assertFalse({own["case_id"], base["case_id"]} & {c.id for r in found for c in (r.case, r.base)})
        self.assertIn("their certificates say different", ratios.section(run))

    def test_other_work_is_not_compared(self):
        lines = copy.deepcopy(with_baselines())
        for line in lines[1:]:
            if line["settings"].get("baseline") and line["document"].get("plan"):
                line["document"]["plan"]["model"]["layers"] = 3
        run = record.read_run(synthetic.write(self.folder.parent / "other", lines))
        self.assertEqual(ratios.ratios(run), [])
        self.assertIsNone(ratios.FIGURES["speed_ratios"](run))
        self.assertIn("2 ranks hold no", ratios.section(run))

    def test_page_has_figures_table_and_refusals(self):
        for name in ("speed_ratios", "memory_ratios"):
            self.assertTrue((self.folder / "figures" / f"{name}.png").is_file())
            self.assertIn(f'id="plot-{name}"', self.page)
        section = re.search(r'<section id="ratios">.*?</section>', self.page, re.S).group(0)
        self.assertEqual(section.count("<tr>"), 1 + len(self.found))
        self.assertIn("2 ranks hold no &lt;4&gt;", section)
        self.assertIn("megatron_style interleaved", section)

    def test_plots_stand_where_the_ratios_are(self):
        for name, value in (("speed_ratios", "speed"), ("memory_ratios", "memory")):
            plot = ratios.PLOTS[name](self.run_)
            seen = sorted(x for t in plot.data if t.customdata is not None for x in t.x)
            self.assertEqual(seen, sorted(getattr(r, value) for r in self.found))

    def test_the_line_at_one_is_in_every_panel_of_the_page(self):
        for name in ratios.PLOTS:
            plot = ratios.PLOTS[name](self.run_)
            lines = [t for t in plot.data if t.name == ratios.REFERENCE]
            self.assertEqual(len(lines), 4)
            self.assertEqual({t.x for t in lines}, {(1, 1)})
            self.assertEqual(len({t.xaxis for t in lines}), 4)
            first_mark = next(i for i, t in enumerate(plot.data) if t.customdata is not None)
            self.assertLess(plot.data.index(lines[0]), first_mark)

    def test_baselines_without_a_result_share_their_reason(self):
        lines = copy.deepcopy(with_baselines())
        for i in range(3):
            lines.append(lines[-1] | {"case_id": f"{i}" * 16, "name": f"other {i}"})
        section = ratios.section(record.read_run(synthetic.write(self.folder.parent / "shared", lines)))
        self.assertEqual(section.count("2 ranks hold no"), 1)
        self.assertIn("other 0; other 1; other 2", section)

    def test_ticks_span_the_ratios_are_few_and_have_1(self):
        for low, high in ((1, 1), (0.7, 1.2), (0.26, 3.9), (0.04, 14), (3, 900), (0.001, 0.5)):
            ticks = ratios._ticks([low, high])
            self.assertTrue(ticks[0] <= low and high <= ticks[-1], (low, high, ticks))
            self.assertIn(1, ticks)
            self.assertLessEqual(len(ticks), 6)
            self.assertLessEqual(max(len(ratios._tick_text(t)) for t in ticks), 6)
        self.assertEqual([ratios._tick_text(t) for t in (1 / 64, 0.25, 1, 64)], ["1/64", "0.25", "1", "64"])

    def test_nothing_without_baselines(self):
        run = record.read_run(synthetic.write(self.folder.parent / "plain"))
        self.assertEqual(ratios.section(run), "")
        for name in ratios.FIGURES:
            self.assertIsNone(ratios.FIGURES[name](run))
            self.assertIsNone(ratios.PLOTS[name](run))
        self.assertNotIn('id="ratios"', page.render(run, {}))
        self.assertFalse(set(ratios.PLOTS) & set(plots.PLOTS))


if __name__ == "__main__":
    unittest.main()
