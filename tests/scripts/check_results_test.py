# SPDX-License-Identifier: Apache-2.0
"""What scripts/check_results.py lets pass under results/, and what it does not."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("KUAFU_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "scripts"))

import check_results

INDEX = """
[[trains]]
file = "trained.json"
cases = "rows"
verdict = "certificate.verdict"
accepts = ["equal"]
[trains_nothing]
"counted.json" = "counts"
[[drawn]]
files = ["table.md"]
from = "trained.json"
command = "python3 draw.py"
[texts]
files = ["index.toml"]
"""


class Tree(unittest.TestCase):
    """A source tree of one commit whose results/ meet the rule."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name) / "tree"
        (self.root / "results").mkdir(parents=True)
        (self.root / "draw.py").write_text("")
        self.git("init", "-q", "-b", "main")
        self.git("add", "draw.py")
        self.git("commit", "-q", "-m", "first")
        self.block = {"git_commit": self.git("rev-parse", "HEAD"), "git_dirty": False, "command": "python3 draw.py --all",
                      "host": "vm", "system": "Linux", "cpu_model": "a processor", "cores": 2, "memory_bytes": 1 << 34}
        self.index = INDEX
        self.trained = {"provenance": self.block, "rows": [{"certificate": {"verdict": "equal"}}]}
        self.counted = {"trains": False, "provenance": self.block, "rows": [1]}
        self.others = {"table.md": "| a |"}

    def git(self, *words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", *identity, "-C", self.root, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def checked(self, root=None):
        results = self.root / "results"
        (results / "index.toml").write_text(self.index)
        (results / "trained.json").write_text(json.dumps(self.trained))
        (results / "counted.json").write_text(json.dumps(self.counted))
        for name, text in self.others.items():
            (results / name).write_text(text)
        self.git("add", "results")
        root = root or self.root
        return check_results.check(root, check_results.History(root))

    def problems(self):
        return self.checked()[0]

    def refused(self, *words):
        found = self.problems()
        self.assertEqual(len(found), 1, found)
        for word in words:
            self.assertIn(word, found[0])


class Rule(Tree):
    def test_what_meets_the_rule_passes(self):
        bad, waiting, rows = self.checked()
        self.assertEqual((bad, waiting, len(rows)), ([], [], 4))

    def test_no_provenance(self):
        del self.counted["provenance"]
        self.refused("counted.json: no provenance")

    def test_a_commit_that_is_not_in_the_history(self):
        self.git("checkout", "-q", "--orphan", "other")
        self.git("commit", "-q", "-m", "second")
        self.counted["provenance"] = self.block | {"git_commit": self.git("rev-parse", "HEAD")}
        self.git("checkout", "-q", "main")
        self.refused("counted.json: commit", "is not in the history")

    def test_a_commit_that_is_none(self):
        for commit in ("unknown", None, "12ab"):
            self.counted["provenance"] = self.block | {"git_commit": commit}
            self.refused("counted.json: git_commit", "no commit")

    def test_a_dirty_tree(self):
        for dirty in (True, None):
            self.counted["provenance"] = self.block | {"git_dirty": dirty}
            self.refused("counted.json: git_dirty", "not false")

    def test_no_command_and_paths_outside_the_tree(self):
        self.counted["provenance"] = self.block | {"command": " "}
        self.refused("no command")
        self.counted["provenance"] = self.block | {"command": "kuafu run --out " + "/".join(["", "home", "me", "x"])}
        self.refused("path outside the tree")

    def test_no_machine(self):
        self.counted["provenance"] = self.block | {"cpu_model": ""}
        self.refused("the machine lacks cpu_model")

    def test_every_block_counts(self):
        self.counted["rows"] = [{"provenance": self.block | {"git_dirty": True}}]
        self.refused("git_dirty is True")

    def test_a_case_that_is_not_certified(self):
        for row in ({"certificate": {"verdict": "different"}}, {"certificate": {"verdict": "not_run"}}, {}):
            self.trained["rows"] = [*self.trained["rows"][:1], row]
            self.refused("trained.json: case 1: certificate.verdict is")
        self.trained["rows"] = []
        self.refused("no case at 'rows'")

    def test_losses_further_apart_than_now_allowed(self):
        self.index = INDEX.replace('file = "trained.json"\n', 'file = "trained.json"\nlosses = "compared.losses"\n', 1)
        allowed = check_results.compare.tolerance_of(4, 256)
        self.trained |= {"settings": {"layers": 4, "hidden": 256}, "compared": {"losses": {"peer": 0.9 * allowed}}}
        self.assertEqual(self.problems(), [])
        for apart in (1.1 * allowed, float("nan")):
            self.trained["compared"]["losses"]["peer"] = apart
            self.refused("trained.json: losses of peer are")

    def test_a_certificate_of_a_smaller_model(self):
        self.trained["rows"][0]["certificate"]["level"] = "scaled"
        self.refused("trained.json: case 0: its certificate is of a smaller model (scaled)")

    def test_cases_that_ended_otherwise_than_the_index_has(self):
        self.index = INDEX.replace('file = "trained.json"\ncases = "rows"', 'file = "run.jsonl"\nended = { ok = 1, refused = 1 }\ncases = "lines"', 1)
        self.index = self.index.replace('from = "trained.json"', 'from = "run.jsonl"').replace('"counted.json" = "counts"', '"counted.json" = "counts"\n"trained.json" = "counts"')
        self.trained |= {"trains": False}
        lines = [{"provenance": self.block, "kind": "suite"}, {"kind": "case", "status": "ok", "certificate": {"verdict": "equal"}}, {"kind": "case", "status": "refused"}]
        self.others["run.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines)
        self.assertEqual(self.problems(), [])
        lines[2]["status"] = "failed"
        self.others["run.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines)
        self.refused("run.jsonl: cases ended as {'ok': 1, 'failed': 1}")
        self.others["run.jsonl"] = json.dumps(lines[0])[:-1] + ',"checksum":"00000000"}\n'
        self.refused("run.jsonl: cannot be read: line 1 was changed")

    def test_a_commit_of_another_build(self):
        self.trained["other"] = {"git_commit": "0" * 40, "git_dirty": True}
        found = self.problems()
        self.assertEqual(len(found), 2, found)
        self.assertIn("is not in the history", found[0])
        self.assertIn("git_dirty is True", found[1])

    def test_a_rule_without_a_file_and_a_file_that_is_gone(self):
        self.index = INDEX.replace('"counted.json" = "counts"', '"counted.json" = "counts"\n"none.json" = "nothing"')
        self.refused("none.json: results/index.toml has it, and there is no such file")
        self.index = INDEX
        self.checked()
        (self.root / "results" / "counted.json").unlink()
        found = check_results.check(self.root, check_results.History(self.root))[0]
        self.assertEqual(found, ["counted.json: it is of the history and not here"])

    def test_a_share_below_its_limit(self):
        self.index = INDEX + """
[[shares]]
file = "counted.json"
values = "kits.*.fates.*.fate"
among = ["seen", "survived"]
counted = ["seen"]
at_least = 0.75
"""
        def fates(*words):
            self.counted["kits"] = [{"fates": [{"fate": word}]} for word in words]
        fates("seen", "seen", "seen", "survived", "changed nothing")
        self.assertEqual(self.problems(), [])
        fates("seen", "seen", "survived", "changed nothing", "changed nothing")
        self.refused("counted.json: seen is 0.6667 of 3", "at least 0.75")
        fates("changed nothing")
        self.refused("counted.json: no seen or survived at")

    def test_a_fact_that_does_not_hold(self):
        rule = '\n[[facts]]\nfile = "counted.json"\nat = "parts.*.{}"\n{}\n'
        self.index = INDEX + rule.format("wrong", "is = []\nnumber = 2") + rule.format("inputs", "least = 100")
        self.counted["parts"] = [{"wrong": [], "inputs": 100}, {"wrong": [], "inputs": 200}]
        self.assertEqual(self.problems(), [])
        for change, why in (({"wrong": ["a crash"]}, "counted.json: ['a crash'] at 'parts.*.wrong'"), ({"inputs": 99}, "counted.json: a value below 100"),
                            ({"inputs": None}, "counted.json: a value below 100")):
            self.counted["parts"] = [{"wrong": [], "inputs": 100} | change, {"wrong": [], "inputs": 200}]
            self.refused(why)
        self.counted["parts"] = [{"wrong": [], "inputs": 100}]
        self.refused("counted.json: 1 values at 'parts.*.wrong'; at least 2")

    def test_a_file_that_the_index_does_not_know(self):
        self.others["new.json"] = "{}"
        self.refused("new.json: results/index.toml does not say what it is")

    def test_the_block_may_stand_beside_lines(self):
        self.index = INDEX.replace('"counted.json"', '"lines.jsonl*" = "counts"\n"counted.json"')
        self.others["lines.jsonl"] = '{"a": 1}\n{"a": 2}\n'
        self.assertIn("lines.jsonl: no provenance", self.problems())
        self.others["lines.jsonl.provenance.json"] = json.dumps({"trains": False, "provenance": self.block})
        self.assertEqual(self.problems(), [])
        self.others["lines.jsonl.provenance.json"] = json.dumps({"trains": False, "provenance": self.block | {"git_dirty": True}})
        self.assertEqual(len(self.problems()), 2)

    def test_a_format_without_provenance(self):
        self.index = INDEX.replace('"counted.json"', '"words.txt" = "a format without provenance"\n"counted.json"')
        self.others["words.txt"] = "1 2 3"
        self.refused("words.txt: this format holds no provenance")

    def test_a_table_of_another_folder_or_program(self):
        self.index = INDEX.replace('from = "trained.json"', 'from = "else/where.json"')
        self.refused("table.md: drawn from else/where.json")
        self.index = INDEX.replace("draw.py", "gone.py")
        self.refused("table.md: drawn by gone.py, which is not there")

    def test_a_table_that_its_script_prints_otherwise(self):
        (self.root / "draw.py").write_text("import sys\nassert sys.argv[1:] == ['--print']\nprint('| a |\\nleft out, as a test: none')\n")
        for text in ("| b |\n", "| a |", ""):
            self.others["table.md"] = text
            self.refused("table.md: not what draw.py draws of the data beside it: python3 draw.py")
        self.others["table.md"] = "| a |\n"
        self.assertEqual(self.problems(), [])
        (self.root / "draw.py").write_text("import sys\nsys.exit('--print: no more')\n")
        self.refused("table.md: draw.py draws it no more: --print: no more")

    def test_a_table_that_its_script_draws_otherwise(self):
        self.index = INDEX.replace("draw.py", "draw.py --draw")
        (self.root / "draw.py").write_text("""
import argparse, json, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--draw", choices=["tables"])
parser.add_argument("--out", type=pathlib.Path)
options = parser.parse_args()
result = json.loads((options.out / "trained.json").read_text())
if result["rows"]:
    (options.out / "table.md").write_text(f"| {result['rows'][0]['certificate']['verdict']} |")
raise SystemExit(1)
""")
        self.others["table.md"] = "| equal |"
        self.assertEqual(self.problems(), [])
        self.others["table.md"] = "| other |"
        self.refused("table.md: not what draw.py draws of the data beside it: python3 draw.py --draw")
        self.trained["rows"] = []
        self.assertIn("table.md: draw.py draws it no more: it writes no such file", self.problems())


    def test_a_program_that_trains_nothing_and_does_not_say_so(self):
        for said in ({"trains": True}, {}):
            self.counted = {"provenance": self.block, "rows": [1], **said}
            self.refused('counted.json: does not say "trains": false')


class Waiting(Tree):
    LIST = '[[waiting]]\nfile = "counted.json"\nwhy = "the machine was busy"\n'

    def test_plan_keys_that_are_younger_than_a_campaign(self):
        page = self.root / "docs" / "plan.md"
        page.parent.mkdir()
        page.write_text("| `model.old` | a key |\n")
        self.git("add", "docs")
        self.git("commit", "-q", "-m", "a key")
        self.block["git_commit"] = self.git("rev-parse", "HEAD")
        page.write_text("| `model.old` | a key |\n| `memory.new_2` | another |\n")
        self.index += '[[younger]]\nfile = "counted.json"\nkeys = []\n'
        self.refused("counted.json: plan keys that its programs had not are ['memory.new_2']")
        self.index = self.index.replace("keys = []", 'keys = ["memory.new_2"]')
        self.assertEqual(self.problems(), [])

    def test_what_waits_is_told_and_no_problem(self):
        self.index = INDEX + self.LIST
        self.counted["provenance"] = self.block | {"git_dirty": True}
        bad, waiting, _ = self.checked()
        self.assertEqual((bad, waiting), ([], [("counted.json", "the machine was busy", "git_dirty is True, not false")]))

    def test_what_meets_the_rule_must_leave_the_list(self):
        self.index = INDEX + self.LIST
        self.refused("counted.json: waits to be recorded again, but it meets the rule")

    def test_what_waits_is_held_to_all_but_what_it_lacks(self):
        self.index = INDEX + self.LIST + 'lacks = "does not say"\n'
        del self.counted["trains"]
        self.assertEqual(self.checked()[0], [])
        self.counted["provenance"] = self.block | {"git_dirty": True}
        self.refused("counted.json: git_dirty is True")

    def test_what_is_gone_must_leave_the_list(self):
        self.index = INDEX + self.LIST.replace("counted", "gone")
        self.refused("gone.json: waits to be recorded again, but there is no such file")


class Histories(Tree):
    def test_a_shallow_clone_checks_the_form_only(self):
        self.problems()
        self.git("commit", "-q", "-m", "results")
        shallow = self.root.with_name("shallow")
        subprocess.run(["git", "clone", "-q", "--depth", "1", self.root.as_uri(), shallow], check=True, capture_output=True)
        history = check_results.History(shallow)
        self.assertIn("shallow clone", history.why_not)
        self.assertEqual(check_results.check(shallow, history)[0], [])

    def test_a_tarball_checks_the_form_only(self):
        self.counted["provenance"] = self.block | {"git_commit": "0" * 40}
        self.assertEqual(len(self.problems()), 1)
        bare = self.root.with_name("bare")
        bare.mkdir()
        (self.root / "results").rename(bare / "results")
        (bare / "draw.py").write_text("")
        history = check_results.History(bare)
        self.assertIn("no git checkout", history.why_not)
        self.assertEqual(check_results.check(bare, history)[0], [])


if __name__ == "__main__":
    unittest.main()
