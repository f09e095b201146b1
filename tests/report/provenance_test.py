# SPDX-License-Identifier: Apache-2.0
"""The block that drivers in Python write beside their results, and when they refuse to."""

import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "scripts" / "report"))

import benchmark_tables
import provenance
import record_results

COMMIT = "1" * 40
DOCTOR = f"#!/bin/sh\necho '{{\"git_commit\": \"{COMMIT}\", \"git_dirty\": false, \"command\": \"kuafu doctor\", \"host\": \"vm\"}}'\n"


class Block(unittest.TestCase):
    def setUp(self):
        keeper = tempfile.TemporaryDirectory()
        self.addCleanup(keeper.cleanup)
        self.build = Path(keeper.name)
        (self.build / "bin").mkdir()
        for name, text in (("kuafu", DOCTOR), ("kuafu-worker", f"program of {COMMIT}")):
            (self.build / "bin" / name).write_text(text)
            (self.build / "bin" / name).chmod(0o755)

    def block(self, changes="", difference="", argv=("run.py",), head=COMMIT):
        answers = {"rev-parse": head, "status": changes, "diff": difference}
        with (mock.patch.object(provenance, "git", lambda verb, *_: answers[verb]), mock.patch.object(sys, "argv", list(argv))):
            return provenance.block(self.build, torch="2.11.0")

    def test_it_is_the_programs_with_the_command_of_the_driver(self):
        found = self.block(argv=(str(ROOT / "experiments" / "a" / "run.py"), "--out", "a b"))
        self.assertEqual((found["git_commit"], found["git_dirty"], found["host"], found["torch"]), (COMMIT, False, "vm", "2.11.0"))
        self.assertEqual(found["command"], ".venv/bin/python experiments/a/run.py --out 'a b'")

    def test_changes_and_programs_of_another_commit_make_it_dirty(self):
        self.assertTrue(self.block(changes=" M src/a.cpp")["git_dirty"])
        self.assertTrue(self.block(difference=None)["git_dirty"])
        (self.build / "bin" / "kuafu-worker").write_text("program of another commit")
        self.assertTrue(self.block()["git_dirty"])

    def test_a_tree_without_a_history_is_of_the_commit_that_it_is_said_to_be(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("KUAFU_COMMIT", None)
            self.assertTrue(self.block(head=None)["git_dirty"])
            os.environ["KUAFU_COMMIT"] = "2" * 40
            self.assertTrue(self.block(head=None)["git_dirty"])
            os.environ["KUAFU_COMMIT"] = COMMIT
            self.assertFalse(self.block(head=None)["git_dirty"])
            self.assertTrue(self.block(changes=" M src/a.cpp")["git_dirty"])     # a history counts for more

    def test_results_are_refused_from_a_changed_tree(self):
        clean, dirty = {"git_dirty": False}, {"git_dirty": True}
        kept = ROOT / "results" / "new.json"
        with mock.patch.dict(os.environ):
            os.environ.pop("KUAFU_EVEN_DIRTY", None)
            provenance.require_recordable(kept, clean)
            provenance.require_recordable(ROOT / "results" / "runs" / "new.json", dirty)
            provenance.require_recordable(self.build / "new.json", dirty)
            with self.assertRaisesRegex(SystemExit, "results that are kept come from a commit.*KUAFU_EVEN_DIRTY"):
                provenance.require_recordable(kept, dirty)
            os.environ["KUAFU_EVEN_DIRTY"] = "1"
            provenance.require_recordable(kept, dirty)

    def test_parts_of_two_commits_are_no_result(self):
        before = {"git_commit": COMMIT, "git_dirty": False, "host": "vm", "command": "a"}
        out = self.build / "result.json"
        for now, keeps in ((before, True), (before | {"git_commit": "2" * 40}, False), (before | {"git_dirty": True}, False)):
            with mock.patch.object(provenance, "begin", lambda *_, now=now: now | {"command": "b"}):
                found = provenance.kept_parts({"provenance": before, "rows": [1]}, self.build, out)
            self.assertEqual("rows" in found, keeps)
            self.assertEqual(found["provenance"]["command"], "a && b" if keeps else "b")


class Recording(unittest.TestCase):
    def test_what_is_recorded_leaves_the_waiting_list(self):
        entry = '[[waiting]]\nfile = "{}"\nwhy = "timed"\n'
        text = "# head\n\n" + entry.format("a.json") + "\n" + entry.format("b/c.json")
        self.assertEqual(record_results.without_waiting(text, ["a.json"]), "# head\n\n" + entry.format("b/c.json"))
        self.assertEqual(record_results.without_waiting(text, ["a-json"]), text)

    def test_everything_that_waits_can_be_recorded(self):
        import tomllib
        index = tomllib.loads((ROOT / "results" / "index.toml").read_text())
        known = {file for file, *_ in record_results.TIMED + record_results.COUNTED}
        self.assertEqual({w["file"] for w in index.get("waiting", [])} - known, set())

    def test_a_result_is_replaced_as_a_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            provenance.write(Path(folder) / "result.json", {"a": 1})
            self.assertEqual(json.loads((Path(folder) / "result.json").read_text()), {"a": 1})
            self.assertEqual(len(list(Path(folder).iterdir())), 1)


class Tables(unittest.TestCase):
    def test_rows_say_what_the_file_holds(self):
        ratio = {"value": 1.2, "ci95": [1.1, 1.3], "quartiles": [1.15, 1.25]}
        step = {"settings": {"mode": "data", "ranks": 2, "hidden": 256},
                "ratios": {"pytorch / kuafu_mpi": ratio, "kuafu / limit": ratio},
                "compared": {"losses": {"kuafu_mpi": 1e-8, "pytorch": 3e-7}, "steps": 9}}
        self.assertEqual(list(benchmark_tables.step(step)),
                         [("data", 2, 256, "pytorch / kuafu_mpi", "1.20 (1.10 to 1.30)", "3.0e-07", 9),
                          ("data", 2, 256, "kuafu / limit", "1.20 (1.10 to 1.30)", "-", 9)])
        side = {"median": 0.05, "gb_per_s": 37.04}
        world = {"rule": "lars", "ranks": 1, "bytes_per_element": 28, "step_s": {"kuafu": side, "limit": side, "peer": side},
                 "peer": "foreach", "limit / kuafu": ratio, "peer / kuafu": ratio}
        self.assertEqual(list(benchmark_tables.optimizer({"worlds": [world]})),
                         [("lars", 1, 28, "50.0", "50.0", "50.0", "foreach", "37.0", "1.20 (1.15 to 1.25)", "1.20 (1.15 to 1.25)")])

    def test_files_that_do_not_meet_the_rule_are_left_out_and_named(self):
        page, left_out = benchmark_tables.tables()
        index = benchmark_tables.tomllib.loads((ROOT / "results" / "index.toml").read_text())
        # What only lacks something that came later is still worth its tables.
        waiting = {Path(w["file"]).name for w in index.get("waiting", []) if w["file"].startswith("benchmarks/") and "lacks" not in w}
        self.assertEqual(set(left_out), waiting)
        self.assertEqual(page.count("\n## ") > 0, len(waiting) < len(list(benchmark_tables.FOLDER.glob("*.json"))))


if __name__ == "__main__":
    unittest.main()
