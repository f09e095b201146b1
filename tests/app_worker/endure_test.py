# SPDX-License-Identifier: Apache-2.0
"""scripts/endure.py: a small campaign, what it records, and that it sees a training that went on to other bits."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE, BUILD = Path(os.environ["KUAFU_SOURCE_DIR"]), Path(os.environ["KUAFU_BINARY_DIR"])
sys.path.insert(0, str(SOURCE / "scripts"))
import endure  # noqa: E402
from endure_place import COMPARED, Place  # noqa: E402


def campaign(out, *words):
    command = [sys.executable, str(SOURCE / "scripts" / "endure.py"), "--build", str(BUILD), "--out", str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Endurance(unittest.TestCase):
    def setUp(self):
        keeper = tempfile.TemporaryDirectory()
        self.addCleanup(keeper.cleanup)
        self.out = Path(keeper.name) / "out"

    def test_goes_on_to_the_same_bits_and_behind_what_is_recorded(self):
        first = campaign(self.out, "--kills", "2", "--each", "2", "--steps", "60", "--world", "threads", "--seed", "105")
        self.assertEqual(first.returncode, 0, first.stdout + first.stderr)
        before = json.loads((self.out / "result.json").read_text())
        self.assertTrue(all(t["verdict"] == "equal" for t in before["trainings"]))
        self.assertEqual(sum(len(t["ends"]) for t in before["trainings"]), 2)
        filled = before["trainings"][0]["ends"][0]   # seed 105 begins with it
        self.assertEqual([filled[key] for key in ("kind", "phase", "exit_code")], ["filled disk", "the log", 7])
        self.assertIn("| filled disk | 1 | 0 | 0 | 0 | 0 | 1 | 0 |", (self.out / "README.md").read_text())
        again = campaign(self.out, "--kills", "2", "--each", "2", "--steps", "60", "--world", "threads", "--seed", "105")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(json.loads((self.out / "result.json").read_text())["trainings"], before["trainings"])
        other = campaign(self.out, "--kills", "3", "--each", "2", "--steps", "61", "--world", "threads", "--seed", "105")
        self.assertIn("is of --steps 60, not 61", other.stderr)

    def test_sees_other_bits_and_files_that_are_left(self):
        def place(name, loss, checksum):
            there = Place(BUILD, self.out / name, {"world": "threads", "ranks": 1, "settings": {}, "saving": []})
            saved = there.saved / "step-00000002"
            saved.mkdir(parents=True)
            (saved / "index.json").write_text(json.dumps({"step": 2, "tensors": {"w": checksum}, "state": {"program": name}}))
            rows = [{**dict.fromkeys(COMPARED), "step": s, "loss": loss * s} for s in (1, 2)]
            there.log.write_text("".join(json.dumps(row) + "\n" for row in rows))
            return there

        whole, same, twice = (place(name, 0.5, "aa") for name in ("whole", "same", "twice"))
        twice.log.write_text(whole.log.read_text() * 2)
        self.assertEqual(endure.compare(whole, twice), ["the log has not one row a step, in order"])
        self.assertEqual(endure.compare(whole, same), [])
        self.assertIn("step 1: [0.25", endure.compare(whole, place("loss", 0.25, "aa"))[0])
        self.assertEqual(endure.compare(whole, place("tensor", 0.5, "ab")), ["the last checkpoint's tensors differs"])
        (same.temporary / "kuafu-run-1").mkdir()
        (same.saved / "step-00000003.partial").mkdir()
        self.assertEqual(endure.compare(whole, same), ["left behind: saved/step-00000003.partial, t/kuafu-run-1"])

    def test_holds_every_kind_of_end_to_its_code_and_to_its_last_step(self):
        there = Place(BUILD, self.out, {})
        there.is_readable = lambda: True
        (self.out / "output.txt").write_text("kuafu: timeout: the case took longer than 1 s")

        def problems(kind, code, **more):
            return endure.problems_of(there, {"kind": kind, "exit_code": code, "last_step": 7, "checkpoint": 7, **more})

        self.assertEqual(set(endure.KINDS) - set(endure.CODES), set())
        self.assertEqual(problems("sigkill", 1, whom="worker") + problems("sigkill", 137, whom="guard"), [])
        self.assertEqual(problems("sigkill", 137, whom="rank"), ["ended with 137"])
        self.assertEqual(problems("sigkill", 1, whom="guard"), ["ended with 1"])
        self.assertEqual(problems("sigusr1", 1, whom="SIGUSR1, then worker") + problems("sigusr1", 137, whom="SIGUSR1, then guard"), [])
        self.assertEqual(problems("sigusr1", 1, whom="SIGUSR1 alone"), ["ended with 1"])
        self.assertEqual(problems("sigterm", 130) + problems("sigint", 130, last_step=None, checkpoint=None), [])
        self.assertEqual(problems("sigterm", 130, checkpoint=5), ["step 7 was made and not saved, but 5"])
        self.assertEqual(problems("sigkill", 1, whom="worker", checkpoint=5), [])
        for reason, found in ((": ended after step 7 of 9", ["step 7 was made and not saved, but None"]), ("", [])):
            there.document.write_text(json.dumps({"status": "timeout", "reason": f"the case took longer than 1 s{reason}"}))
            self.assertEqual(problems("time-out", 5, checkpoint=None), found)

    def test_holds_a_filled_disk_to_its_code_and_to_one_line_a_file(self):
        there = Place(BUILD, self.out, {})
        there.is_readable = lambda: True

        def problems(code, *files, first="log.jsonl", more=""):
            there.output.write_text("".join(f"kuafu: cannot write {there.disk / name}: {endure.NO_SPACE}\n" for name in files) + more)
            return endure.problems_of(there, {"kind": "filled disk", "first": first, "exit_code": code})

        self.assertEqual(problems(7, "log.jsonl", "run.json") + problems(7, "saved/x/rank-1", "run.json", first="saved/x/rank-0"), [])
        self.assertEqual(problems(0, first=""), [])
        self.assertEqual(problems(0, "log.jsonl"), ["ended with 0 though log.jsonl could not be written"])
        self.assertEqual(problems(1, "log.jsonl"), ["ended with 1"])
        self.assertIn("not one line says that log.jsonl", problems(7, "run.json")[0])
        self.assertIn("a line is told twice", problems(7, "log.jsonl", "run.json", "run.json")[0])
        self.assertIn("names no file", problems(7, "log.jsonl", more=f"kuafu: {endure.NO_SPACE}")[0])
        self.assertIn("an exit code too", problems(7, "log.jsonl", more="kuafu: failed: the worker exited with code 1")[0])
        there.document.write_text("{}")
        self.assertEqual(problems(7, "log.jsonl"), ["a document was written on a full disk"])

    def test_wrong_use_is_told(self):
        self.assertIn("--kills, --each and --steps are whole numbers from 1", campaign(self.out, "--kills", "0").stderr)
        missing = subprocess.run([sys.executable, str(SOURCE / "scripts" / "endure.py"), "--build", "/nowhere", "--out", str(self.out)],
                                 capture_output=True, text=True, check=False)
        self.assertIn("build the target cut_disk", missing.stderr)


if __name__ == "__main__":
    unittest.main()
