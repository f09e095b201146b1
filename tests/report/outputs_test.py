# SPDX-License-Identifier: Apache-2.0
"""The report as text, CSV, JUnit XML and Parquet, several folders side by side, and what is said of bad input."""

import copy
import csv
import dataclasses
import importlib.util
import io
import json
import re
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "report")]

import export
import junit
import multiplied
import page
import ratios
import record
import side_by_side
import style
import suite_facts
import synthetic
import text_report
import timings
from program import run_main


def other_times(lines, factor):
    """The same cases, `factor` times as fast."""
    lines = copy.deepcopy(lines)
    for line in lines[1:]:
        if line["status"] == "ok":
            step = line["document"]["step_time_s"]
            step |= {"median": step["median"] / factor, "ci95": [v / factor for v in step["ci95"]]}
            line["document"]["tokens_per_s"] *= factor
    return lines


FACTS = {"order": [], "references": [
    {"what": "loss.last below loss.first", "checked": 4, "broken": []},
    {"what": "tokens_per_s equals 1 (a paper)", "checked": 2, "broken": ["A, 2 ranks: tokens_per_s is 2, expected 1"]},
    {"what": "status equals \"ok\" where ranks = 64", "checked": 0, "broken": []}]}


class Folders(unittest.TestCase):
    """Two folders of the same suite."""

    @classmethod
    def setUpClass(cls):
        keeper = tempfile.TemporaryDirectory()
        cls.addClassCleanup(keeper.cleanup)
        cls.root = Path(keeper.name)
        cls.lines = multiplied.lines(7, 38)
        cls.lines[4]["document"]["certificate"] = None
        cls.lines[8] |= {"status": "failed", "reason": "rank 1: \x1b[31mkilled\x00 <by 9>"}
        cls.first = synthetic.write(cls.root / "first", cls.lines)
        cls.second = synthetic.write(cls.root / "second", other_times(cls.lines[:1] + cls.lines[2:], 1.25))
        cls.run_ = record.read_run(cls.first)
        cls.facts = cls.root / "facts.json"
        cls.facts.write_text(json.dumps([FACTS]))


class Outputs(Folders):
    def junit_of(self, runs, labels):
        root = ElementTree.fromstring(junit.xml(runs, labels))
        return root, {(t.get("classname"), t.get("name")): t for t in root.iter("testcase")}

    def test_text_fits_its_columns(self):
        for asked, widest in (("60", 80), ("80", 80), ("100", 100), ("300", 120)):
            code, out, err = run_main(self.first, self.second, "--text", columns=asked)
            self.assertEqual((code, err), (0, ""))
            longest = max(len(line) for line in out.split("\n"))
            self.assertLessEqual(longest, widest)
            self.assertGreater(longest, widest - 15)
        self.assertFalse((self.first / "report.html").exists())

    def test_text_counts_and_ranks(self):
        code, out, _ = run_main("--text", self.first, "--facts", self.facts)
        self.assertEqual(code, 0)
        finished = self.run_.finished
        equal = sum(c.is_certified for c in finished)
        counted = " ".join(out.split())
        self.assertIn(f"38 cases ended: {len(finished) - 1} ok, 1 different, 4 refused, 1 failed; certificates: {equal} equal, 1 different, "
                      f"{len(finished) - equal - 1} not run", counted)
        group = out.split("batch 8:")[1].split("  batch 16:")[0].strip().split("\n")[1:]
        proven = [c for c in finished if c.is_certified and c.settings["train.batch"] == 8]
        fastest = sorted(proven, key=lambda c: -c.tokens_per_s)[:3]
        self.assertEqual(len(group), 3)
        for line, case in zip(group, fastest):
            self.assertIn(f"{style.text_number(case.tokens_per_s)} tokens/s", line)
            self.assertIn(case.name, line)
        self.assertEqual(counted.count("model.heads = 4 does not divide over 3 ranks"), 1)
        self.assertIn("refused, 2 cases:", out)
        refuted = next(c for c in finished if c.is_different)
        self.assertRegex(out, rf"DIFFERENT, refuted by the certificate \(1\):\n  {re.escape(refuted.name)}: different")
        self.assertIn("holds    loss.last below loss.first: 4 of 4 cases", out)
        self.assertIn("broken   tokens_per_s equals 1 (a paper): 1 of 2 cases\n           A, 2 ranks: tokens_per_s is 2", out)
        self.assertIn('no case  status equals "ok" where ranks = 64: 0 of 0 cases', out)

    def test_what_a_certificate_is_blind_to_stands_in_its_row_and_below(self):
        lines = synthetic.few(2)
        lines[1]["document"]["certificate"]["native"] = {"verdict": "equal", "unseen": "the mask of documents"}
        run = record.read_run(synthetic.write(self.root / "blind", lines))
        said = f"certificates `equal` that are blind to something: the mask of documents ({run.cases[0].name})."
        self.assertIn(said, " ".join(text_report.text([run], ["blind"], 80).split()))
        self.assertEqual([c.how_certified for c in run.cases[:2]], [" (blind)", ""])
        code, _, _ = run_main(self.root / "blind")
        page = (self.root / "blind" / "report.html").read_text(encoding="utf-8")
        self.assertEqual(code, 0)
        self.assertIn(said, page)
        self.assertIn("equal (blind)", page)

    def test_text_says_the_work_of_a_group_once(self):
        out = text_report.text([record.read_run(synthetic.write(self.root / "named"))], ["named"], 80)
        group = out.split("batch 8, sequence 64, full recomputation:")[1].split("\n")[1:4]
        for line in group:
            self.assertRegex(line, r"iB [ *][^,]+, [124] ranks?$")

    def test_text_is_coloured_for_terminals_only(self):
        plain = text_report.text([self.run_], ["first"], 100)
        self.assertNotIn("\033", plain)
        self.assertIn(f"{text_report.RED}DIFFERENT", text_report.text([self.run_], ["first"], 100, True))

    def test_text_tells_what_the_last_update_did_to_layers(self):
        lines = copy.deepcopy(self.lines)
        good = [line for line in lines[1:] if line["status"] == "ok"]
        for line in good[:5]:
            line["document"]["telemetry"] = {"layers": ["a", "b", "c"], "steps": [0, 1, 2], "trust_ratio": None,
                                             "update_ratio": [[0.5, 0.5, 0.5], [0.01, None, 0.25], [None, None, None]]}
        out = run_main(synthetic.write(self.root / "layers", lines), "--text")[1]
        self.assertIn("3 layers, step 2: update over weight 0.01 (a) to 0.25 (c)", " ".join(out.split()))
        self.assertIn("2 more cases are left out; --layers 5 tells all", out)
        self.assertNotIn("trust ratio", out)
        self.assertNotIn("Layers in the last step", text_report.text([self.run_], ["first"], 100))

    def test_text_and_files_need_no_finished_case(self):
        lines = [self.lines[0]] + [line for line in self.lines[1:] if line["status"] != "ok"]
        folder = synthetic.write(self.root / "none", lines)
        code, out, err = run_main(folder, "--text", "--junit", folder / "x.xml", "--csv", folder / "x.csv")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("4 refused, 1 failed; certificates: 0 equal", " ".join(out.split()))
        self.assertEqual(ElementTree.parse(folder / "x.xml").getroot()[0].get("failures"), "1")

    def test_a_refuted_case_that_diverged_is_counted(self):
        """It has no throughput, and its certificate says that the reference did not diverge: the sweep fails."""
        lines = copy.deepcopy(self.lines)
        line = next(line for line in lines[1:] if line["status"] == "ok" and line["document"]["certificate"]["verdict"] == "equal")
        line["status"] = line["document"]["status"] = "diverged"
        line["reason"] = line["document"]["reason"] = "the loss is inf at step 2"
        line["document"]["certificate"] |= {"verdict": "different", "reason": "the reference has loss 5.5"}
        folder = synthetic.write(self.root / "diverged", lines)
        code, out, err = run_main(folder, "--text", "--junit", folder / "x.xml")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("1 diverged, 1 failed; certificates:", " ".join(out.split()))
        self.assertIn(" 2 different, ", " ".join(out.split()))
        self.assertIn("DIFFERENT, refuted by the certificate (2):", out)
        test = next(t for t in ElementTree.parse(folder / "x.xml").getroot()[0] if t.get("name") == line["name"]
                    and t.get("classname").endswith(".certificate"))
        self.assertIn("the reference has loss 5.5", test.find("failure").text)
        self.assertIn("<b>2</b><span>different</span>", page.tiles(record.read_run(folder)))

    def test_too_few_steps_have_no_interval(self):
        lines = copy.deepcopy(self.lines)
        few = next(line for line in lines[1:] if line["status"] == "ok")
        step = few["document"]["step_time_s"]
        step |= {"samples": step["samples"][:3], "ci95": None}
        run = record.read_run(synthetic.write(self.root / "few", lines))
        case = next(c for c in run.finished if c.id == few["case_id"])
        self.assertTrue(case.has_few_steps)
        self.assertEqual((case.step_interval, case.tokens_interval), (None, None))
        self.assertEqual(timings.step_ratio(case.step, case.step), (0.0, float("inf")))
        self.assertEqual(timings.over_rounds([(0.0, float("inf"))]), (1.0, None))
        self.assertIn("1 of ", timings.interval_sentences(run)[0])

    def test_csv_has_a_row_a_case_and_the_record_s_values(self):
        target = self.root / "cases.csv"
        self.assertEqual(run_main(self.first, "--csv", target), (0, "", ""))
        with target.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([r["case_id"] for r in rows], [c.id for c in self.run_.cases])
        for row, case in zip(rows, self.run_.cases):
            self.assertEqual(row["status"], "different" if case.is_refuted else case.status)
            self.assertEqual(row["settings.train.batch"], str(case.settings["train.batch"]))
            if case.status != "ok":
                self.assertEqual(row["reason"], case.reason)
                continue
            document = case.document
            self.assertEqual(float(row["tokens_per_s"]), document["tokens_per_s"])
            self.assertEqual(float(row["step_time_s.ci95.1"]), document["step_time_s"]["ci95"][1])
            self.assertEqual(float(row["loss.last"]), document["loss"][-1])
            self.assertEqual(int(row["memory.peak_bytes.max"]), max(document["memory"]["peak_bytes"]))
            self.assertEqual(int(row["memory.at_peak.activation.sum"]), sum(r["activation"] for r in document["memory"]["at_peak"]))
            self.assertEqual(row["plan.model.hidden"], str(document["plan"]["model"]["hidden"]))
            self.assertEqual(row["plan.model.bias"], "true")
            for axis, entry in document["ledger"].items():
                self.assertEqual(int(row[f"ledger.{axis}.bytes_sent.max"]), max(entry["bytes_sent"]))

    def test_csv_tells_a_refuted_case_as_the_table_does(self):
        case = next(c for c in self.run_.cases if c.status == "ok" and not c.is_different)
        self.assertEqual(export.row_of(case)["status"], "ok")
        refuted = dataclasses.replace(case, certificate={"verdict": "different"})
        self.assertEqual(export.row_of(refuted)["status"], "different")

    def test_csv_columns_are_paths_of_the_record(self):
        columns, _ = export.rows_of([self.run_], ["first"])
        self.assertEqual(len(set(columns)), len(columns))
        self.assertEqual(columns[:5], ["case_id", "name", "status", "reason", "wall_s"])
        areas = [c.split(".")[0] for c in columns]
        self.assertEqual(len(list(dict.fromkeys(areas))), sum(a != b for a, b in zip(areas, [""] + areas)))
        both, rows = export.rows_of([self.run_, self.run_], ["a", "b"])
        self.assertEqual(both[0], "folder")
        self.assertEqual([r["folder"] for r in rows], ["a"] * 38 + ["b"] * 38)

    def test_junit_has_a_test_each(self):
        run = suite_facts.ordered(self.run_, FACTS)
        root, tests = self.junit_of([run], ["first"])
        suite = root[0]
        finished = len(run.finished)
        self.assertEqual(int(suite.get("tests")), 38 + finished + 3)
        self.assertEqual(len(tests), 38 + finished + 3)
        self.assertEqual((suite.get("failures"), suite.get("errors")), ("3", "0"))
        self.assertEqual(int(suite.get("skipped")), 4 + 2 + 1)
        for case in run.cases:
            test = tests["multiplied.run", case.name]
            kind = {"ok": None, "failed": "failure"}.get(case.status, "skipped")
            self.assertEqual([e.tag for e in test], [kind] if kind else [])
            if kind:
                self.assertIn(case.reason.split("\x1b")[0], test[0].get("message"))
        refuted = next(c for c in run.finished if c.is_different)
        failure = tests["multiplied.certificate", refuted.name].find("failure")
        self.assertIn("gradient 2.5e-01", failure.text)
        broken = tests["multiplied.reference", "tokens_per_s equals 1 (a paper)"].find("failure")
        self.assertEqual(broken.get("message").split(":")[0], "broken by 1 of 2 cases")
        self.assertEqual(broken.text, "A, 2 ranks: tokens_per_s is 2, expected 1")

    def test_junit_of_several_folders_has_a_suite_each(self):
        root, _ = self.junit_of([self.run_, record.read_run(self.second)], ["first", "second"])
        self.assertEqual([s.get("name") for s in root], ["first", "second"])

    def test_parquet_names_what_to_install(self):
        with mock.patch.dict(sys.modules, {"pyarrow": None}):
            code, out, err = run_main(self.first, "--csv", self.root / "first.csv", "--parquet", self.root / "x.parquet")
        self.assertFalse((self.root / "first.csv").exists())
        self.assertEqual((code, out, len(err.strip().split("\n"))), (2, "", 1))
        self.assertIn("pip install pyarrow", err)

    def test_parquet_is_asked_for_the_rows_of_the_csv(self):
        """What the library is handed, which setup.sh does not install: the same names and values as in --csv."""
        asked, arrow = {}, types.ModuleType("pyarrow")
        arrow.table = lambda columns: asked.update(columns) or columns
        arrow.BufferOutputStream = lambda: mock.Mock(**{"getvalue.return_value.to_pybytes.return_value": b"written"})
        arrow.parquet = types.ModuleType("pyarrow.parquet")
        arrow.parquet.write_table = mock.Mock()
        target = self.root / "stand_in.parquet"
        with mock.patch.dict(sys.modules, {"pyarrow": arrow, "pyarrow.parquet": arrow.parquet}):
            self.assertEqual(run_main(self.first, "--parquet", target), (0, "", ""))
        self.assertEqual(target.read_bytes(), b"written")
        self.assertIs(arrow.parquet.write_table.call_args.args[0]["case_id"], asked["case_id"])
        rows = list(csv.DictReader(io.StringIO(export.csv_text([self.run_], ["first"]))))
        self.assertEqual(list(asked), list(rows[0]))
        self.assertEqual(asked["case_id"], [row["case_id"] for row in rows])
        for name, values in asked.items():
            self.assertLessEqual(len({type(v) for v in values if v is not None}), 1, name)
            self.assertEqual([v in (None, "") for v in values], [row[name] == "" for row in rows], name)

    @unittest.skipUnless(importlib.util.find_spec("pyarrow"),
                         "pyarrow is not installed: setup.sh leaves it out for its size; `.venv/bin/pip install pyarrow` runs this")
    def test_parquet_holds_the_rows(self):
        import pyarrow.parquet
        target = self.root / "x.parquet"
        self.assertEqual(run_main(self.first, "--parquet", target), (0, "", ""))
        table = pyarrow.parquet.read_table(target).to_pydict()
        self.assertEqual(table["tokens_per_s"], [c.tokens_per_s for c in self.run_.cases])

    def test_parquet_columns_have_one_type(self):
        self.assertEqual(export._column([1, None, 2]), [1, None, 2])
        self.assertEqual(export._column([1, None, 2.5]), [1.0, None, 2.5])
        self.assertEqual(export._column(["auto", 2, None, True]), ["auto", "2", None, "True"])


class SideBySide(Folders):
    """Two folders: the second lacks a case and is 1.25 times as fast."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.runs = [record.read_run(cls.first), record.read_run(cls.second)]
        cls.labels = ["first", "second"]

    def test_cases_meet_by_id(self):
        self.assertEqual(side_by_side.met(self.runs), [line["case_id"] for line in self.lines[2:]])
        heads = [head.id for head, _ in side_by_side.rows(self.runs)]
        self.assertEqual(heads, [line["case_id"] for line in self.lines[1:]])
        back = side_by_side.rows(self.runs[::-1])
        self.assertEqual([c is None for c in back[-1][1]], [True, False])       # only in the later folder: last
        self.assertEqual(back[-1][0].id, self.lines[1]["case_id"])

    def test_ratios_are_those_of_the_record_and_none_is_of_a_refuted_case(self):
        found = side_by_side.ratios(self.runs, self.labels)
        wanted = [c.id for c in self.runs[1].finished if not c.is_different]
        self.assertEqual([r.case.id for r in found], wanted)
        for r in found:
            self.assertAlmostEqual(r.speed, 1.25)
            self.assertEqual((r.memory, r.label), (1, "second over first"))

    def test_page_has_a_column_a_folder_and_both_figures(self):
        out = self.root / "both"
        code, text, err = run_main(self.first, self.second, "--out", out)
        self.assertEqual((code, err), (0, ""))
        self.assertIn("2 folders, 37 cases in all of them, 2 figures", text)
        content = (out / "report.html").read_text(encoding="utf-8")
        for heading in ("tokens/s, first", "tokens/s, second", "peak, second", "sent, second", "verdict, first"):
            self.assertIn(f"<button>{heading}</button>", content)
        self.assertEqual(content.count("<button>ratio</button>"), 3)
        self.assertEqual(content.count('<tbody class="case"'), 38)
        self.assertEqual(content.count("not in this folder"), 1)
        self.assertIn("37 cases are in both first and second; 1 only in first, 0 only in second.", content)
        self.assertIn(f'style="--tone:{style.DIFFERENT}">different</span>', content)
        plots = json.loads(re.search(r"const PLOTS = (\{.*\});\nconst CONFIG", content, re.S).group(1))
        self.assertEqual(set(plots), {"tokens_per_second_ratios", "peak_memory_ratios"})
        lines = [t for t in plots["tokens_per_second_ratios"]["data"] if t.get("name") == ratios.REFERENCE]
        self.assertEqual(len(lines), 3)
        for name in plots:
            self.assertTrue((out / "figures" / f"{name}.png").is_file())

    def test_page_holds_columns_claims_and_references_of_each_folder(self):
        case = self.lines[6]["case_id"]
        facts = [FACTS | {"derived": {
            "columns": [{"name": "share", "formula": "tokens_per_s / 8", "unit": "", "values": {case: value}}], "figures": [],
            "claims": [{"name": "B wins", "what": "share above 1", "source": "a paper", "verdict": verdict, "checked": 1,
                        "held": held, "failing": [], "open": []}]}} for value, verdict, held in ((0.4375, "fails", 0), (7.625, "holds", 1))]
        path = self.root / "both.json"
        path.write_text(json.dumps(facts))
        code, _, err = run_main(self.first, self.second, "--facts", path, "--out", self.root / "asked")
        self.assertEqual((code, err), (0, ""))
        content = (self.root / "asked" / "report.html").read_text(encoding="utf-8")
        for folder, value, held in (("first", "0.4375", "0 of 1"), ("second", "7.625", "1 of 1")):
            self.assertIn(f"<button>share, {folder}</button>", content)
            self.assertEqual(content.count(f'data-sort="{value}">'), 1)
            claims = content.split(f"<h2>Claims: {folder}</h2>")[1].split("</section>")[0]
            self.assertIn(f">{held}</td>", claims)
            self.assertIn(f"<h2>References: {folder}</h2>", content)

    def test_text_tells_the_spread_of_the_ratios(self):
        _, out, _ = run_main(self.first, self.second, "--text")
        self.assertIn("37 cases in every folder; tokens/s over those of first:", out)
        self.assertRegex(out, r"  second: \d+ cases, 1\.25 to 1\.25, median 1\.25")

    def test_folders_are_called_by_the_ends_of_their_paths_that_differ(self):
        self.assertEqual(side_by_side.labels_of(["a/run", "b/run"]), ["a/run", "b/run"])
        self.assertEqual(side_by_side.labels_of(["x/a", "y/b", "z/c"]), ["a", "b", "c"])
