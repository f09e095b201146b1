# SPDX-License-Identifier: Apache-2.0
"""Damaged records, and what is said of bad input."""

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "report")]

import multiplied
import progress
import record
import synthetic
from program import Folder, run_main


REPORT = HERE.parent.parent / "scripts" / "report" / "report.py"


class Progress(Folder):
    def told(self, is_terminal):
        """What is said of four parts of six seconds."""
        out = io.StringIO()
        out.isatty = lambda: is_terminal
        told = progress.Progress(4, out, iter(range(0, 60, 6)).__next__)
        for function in told.of({name: str for name in "abcd"}, "figure").values():
            function()
        told.close()
        return out.getvalue()

    def test_is_a_line_every_ten_seconds(self):
        self.assertEqual(self.told(False), "report: 1/4  figure b, after 12 s\nreport: 3/4  figure d, after 24 s\n")

    def test_is_one_line_on_a_terminal(self):
        self.assertEqual(self.told(True), "".join(f"\r\033[K{i}/4  figure {n}" for i, n in enumerate("abcd")) + "\r\033[K")


class Packages(Folder):
    def test_a_python_without_them_is_one_line_that_says_where_they_are(self):
        synthetic.write(self.folder, synthetic.few(1))
        ended = subprocess.run([sys.executable, "-S", REPORT, self.folder], capture_output=True, text=True, check=False)
        self.assertEqual((ended.returncode, ended.stdout), (2, ""))
        self.assertRegex(ended.stderr, r"\Areport: .+ cannot load .*\(No module named '\w+'\).*KUAFU_PYTHON.* -m pip install -r .*\n\Z")
        listed = ended.stderr.rpartition("-r ")[2].rstrip("`\n")
        self.assertIn("plotly", Path(listed).read_text(encoding="utf-8"))


class Outputs(Folder):
    def test_a_full_disk_is_one_line_and_a_code_of_its_own(self):
        synthetic.write(self.folder, synthetic.few(1))
        with open("/dev/full", "w", encoding="utf-8") as full:
            ended = subprocess.run([sys.executable, REPORT, self.folder, "--text"], stdout=full, stderr=subprocess.PIPE, text=True,
                                   check=False, env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"})
        self.assertEqual(ended.returncode, 7)
        self.assertEqual(ended.stderr, "report: cannot write all of the standard output: No space left on device\n")

    def test_what_a_full_disk_cuts_short_leaves_nothing(self):
        synthetic.write(self.folder, synthetic.few(1))
        written = Path.write_bytes

        def full(path, content):
            written(path, content[:10])
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

        with mock.patch.object(Path, "write_bytes", full):
            code, out, err = run_main(self.folder, "--csv", self.root / "cases.csv")
        self.assertEqual((code, out), (7, ""))
        self.assertIn("cases.csv': No space left on device", err)
        self.assertEqual(list(self.root.glob("cases.csv*")), [])

    def test_a_link_among_the_figures_leads_nowhere(self):
        synthetic.write(self.folder, synthetic.few(1))
        elsewhere = self.root / "elsewhere"
        elsewhere.mkdir()
        figures = self.folder / "figures"
        figures.symlink_to(elsewhere)
        code, _, err = run_main(self.folder)
        self.assertEqual((code, list(elsewhere.iterdir())), (2, []))
        self.assertIn(f"'{figures}' is a link", err)
        figures.unlink()
        figures.mkdir()
        (figures / "loss.svg").symlink_to(elsewhere / "loss.svg")
        code, _, err = run_main(self.folder)
        self.assertEqual((code, list(elsewhere.iterdir())), (2, []))
        self.assertIn("loss.svg' is a link", err)

    def test_an_interrupt_is_quiet(self):
        synthetic.write(self.folder, synthetic.few(1))
        with mock.patch.object(record, "read_run", side_effect=KeyboardInterrupt):
            self.assertEqual(run_main(self.folder), (130, "", ""))

    def test_a_pipe_is_written_and_stays_one(self):
        synthetic.write(self.folder, synthetic.few(1))
        pipe = self.root / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        self.assertEqual(run_main(self.folder, "--csv", pipe)[0], 0)
        self.assertTrue(os.read(reader, 100).startswith(b"case_id,name,"))
        self.assertTrue(pipe.is_fifo())


class Damage(Folder):
    def test_truncated_last_line_is_left_out_and_told(self):
        objects = synthetic.few()
        synthetic.write(self.folder, objects[:-4], tail=json.dumps(objects[-5])[:300])
        code, out, err = run_main(self.folder)
        self.assertEqual(code, 0)
        self.assertIn(f"{len(objects) - 5} cases", out)
        self.assertIn("last line of the record is cut off", err)
        page = (self.folder / "report.html").read_text(encoding="utf-8")
        self.assertIn("last line of the record is cut off", page)
        self.assertIn("The suite is not finished: 4 of 9 cases", page)

    def test_damaged_line_in_the_middle_is_named(self):
        path = synthetic.write(self.folder, synthetic.few()) / "run.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")
        lines[3] = lines[3][:100]
        path.write_text("\n".join(lines), encoding="utf-8")
        with self.assertRaises(record.RecordError) as caught:
            record.read_run(self.folder)
        self.assertIn(f"{path}:4: the line is damaged", str(caught.exception))
        self.assertEqual(run_main(self.folder)[0], 2)

    def test_changed_line_is_an_error_that_names_it(self):
        path = synthetic.write(self.folder, synthetic.few()) / "run.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")
        for wrong in (lines[3].replace('"wall_s": 4.2', '"wall_s": 4.1'), lines[3].replace('"checksum":"', '"checksum":"x'),
                      lines[3][:lines[3].rindex(',"checksum"')] + "}"):
            self.assertNotEqual(wrong, lines[3])
            json.loads(wrong)
            path.write_text("\n".join(lines[:3] + [wrong] + lines[4:]), encoding="utf-8")
            with self.assertRaises(record.RecordError) as caught:
                record.read_run(self.folder)
            self.assertIn(f"{path}:4: ", str(caught.exception))
            self.assertIn("checksum", str(caught.exception))

    def test_record_of_format_1_has_no_checksums(self):
        objects = synthetic.few()
        objects[0]["format"] = 1
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "run.jsonl").write_text("".join(json.dumps(o) + "\n" for o in objects), encoding="utf-8")
        self.assertEqual(len(record.read_run(self.folder).cases), 9)

    def test_last_line_of_a_case_wins(self):
        objects = synthetic.few()
        again = json.loads(json.dumps(objects[1]))
        again["document"]["tokens_per_s"] = 12345.0
        run = record.read_run(synthetic.write(self.folder, objects + [again]))
        self.assertEqual(len(run.cases), 9)
        self.assertEqual(run.cases[0].tokens_per_s, 12345.0)

    def test_names_are_text_never_markup(self):
        objects = synthetic.few()
        objects[1]["name"] = "</script><script>alert(1)</script>"
        synthetic.write(self.folder, objects)
        self.assertEqual(run_main(self.folder)[0], 0)
        self.assertNotIn("<script>alert", (self.folder / "report.html").read_text(encoding="utf-8"))

    def test_dirty_tree_is_told(self):
        objects = synthetic.few()
        objects[0]["provenance"]["git_dirty"] = True
        synthetic.write(self.folder, objects)
        self.assertEqual(run_main(self.folder)[0], 0)
        self.assertIn("uncommitted changes", (self.folder / "report.html").read_text("utf-8"))


class OneFolder(Folder):
    """What is refused of one folder."""

    def test_missing_folder(self):
        self.assertIn(f"no folder '{self.folder}'", self.refused(self.folder))

    def test_missing_record(self):
        self.folder.mkdir()
        self.assertIn("no run.jsonl in", self.refused(self.folder))

    def test_empty_record(self):
        synthetic.write(self.folder, [])
        self.assertIn("neither a suite nor a case", self.refused(self.folder))

    def test_no_case_yet(self):
        synthetic.write(self.folder, synthetic.lines()[:1])
        self.assertIn("no case in", self.refused(self.folder))

    def test_no_finished_case(self):
        objects = [o for o in synthetic.lines() if o.get("status", "refused") != "ok"]
        synthetic.write(self.folder, objects)
        self.assertIn("1 failed, 1 out of memory, 1 refused, 1 timeout", self.refused(self.folder))
        self.assertFalse((self.folder / "report.html").exists())

    def test_output_that_cannot_be_written(self):
        synthetic.write(self.folder)
        blocked = self.folder / "blocked"
        blocked.write_text("a file")
        self.assertIn("blocked", self.refused(self.folder, "--out", blocked))


if __name__ == "__main__":
    unittest.main()


class Calls(Folder):
    """What is refused of options and of several folders."""

    def setUp(self):
        super().setUp()
        self.good = synthetic.write(self.root / "good", multiplied.lines(2, 8))

    def test_folder_that_is_no_result(self):
        (self.root / "other").mkdir()
        self.assertIn("no run.jsonl in", self.refused(self.root / "other", "--text"))
        self.assertIn("no folder", self.refused(self.good, self.root / "nothing", "--text"))

    def test_folder_without_a_case(self):
        empty = synthetic.write(self.root / "empty", multiplied.lines(2, 8)[:1])
        for option in ("--text", "--csv=x.csv", "--junit=x.xml"):
            self.assertIn("no case in", self.refused(empty, option))

    def test_folders_with_no_case_in_common(self):
        other = synthetic.write(self.root / "other", synthetic.few())
        told = self.refused(self.good, other, "--out", self.root / "out")
        self.assertIn("'good' (8 cases) and 'other' (9 cases) have no case in common", told)
        self.assertFalse((self.root / "out").exists())

    def test_the_same_folder_twice(self):
        self.assertIn("is given twice", self.refused(self.good, self.good, "--text"))

    def test_several_folders_without_a_place_for_the_page(self):
        self.assertIn("need --out DIR", self.refused(self.good, self.root / "b"))

    def test_output_that_cannot_be_written(self):
        for option in ("--csv", "--junit"):
            told = self.refused(self.good, option, self.root / "no" / "file")
            self.assertIn(f"cannot write '{self.root / 'no' / 'file'}'", told)
        self.assertIn("may be written", self.refused(self.good, "--out", self.good / "run.jsonl"))

    def test_unknown_option_has_the_nearest(self):
        self.assertIn("no option --jnuit; did you mean --junit?", self.refused(self.good, "--jnuit", "x"))
        self.assertIn("folder", self.refused())


if __name__ == "__main__":
    unittest.main()
