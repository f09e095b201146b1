# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu.sh with programs that only say that they were called."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ["KUAFU_SOURCE_DIR"])
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Gpu(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.place = Path(self.folder.name)
        self.programs = self.place / "programs"
        (self.programs / "bin").mkdir(parents=True)
        self.out = self.place / "out"
        for name in ("kuafu", "bench_card", "tensor_tests", "device_test", "nccl_test", "card_test"):
            self.make(name, 'echo "$(basename "$0") $*" >>"$0.calls"')

    def tearDown(self):
        self.folder.cleanup()

    def make(self, name, line):
        program = self.programs / "bin" / name
        program.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        program.chmod(0o755)

    def run_it(self, *words):
        return subprocess.run([str(SOURCE / "scripts" / "gpu.sh"), "--programs", str(self.programs), "--out", str(self.out),
                               "--commit", COMMIT, *words], capture_output=True, text=True, check=False)

    def calls(self, name):
        file = self.programs / "bin" / f"{name}.calls"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def test_passing_steps_are_not_run_again(self):
        for again in range(2):
            done = self.run_it("--limit", "5") if again else self.run_it("--only", "device_test", "--only", "ops")
            if not again:
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("all that was run has passed", done.stdout)
        self.assertEqual(len(self.calls("device_test")), 1)
        self.assertEqual(len(self.calls("tensor_tests")), 1)
        self.assertGreater(len(self.calls("kuafu")), 10)

    def test_a_failing_step_stops_no_other(self):
        self.make("device_test", "exit 3")
        done = self.run_it("--only", "device_test", "--only", "nccl_test")
        self.assertEqual(done.returncode, 1)
        self.assertIn("device_test: FAILED with 3", done.stdout)
        self.assertIn("failed: device_test", done.stdout)
        self.assertEqual(len(self.calls("nccl_test")), 1)

    def test_steps_are_named_by_their_beginning(self):
        done = self.run_it("--only", "conformance-r")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(self.calls("kuafu")), 2)     # ring and ring-zigzag
        done = self.run_it("--only", "confromance")
        self.assertEqual(done.returncode, 1)
        self.assertIn("--only confromance: no step begins so", done.stderr)

    def test_a_dry_run_runs_and_leaves_nothing(self):
        done = self.run_it("--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("gpt-1.3b (at most 300 s)", done.stdout)
        self.assertFalse(self.out.exists())
        self.assertEqual(self.calls("kuafu"), [])

    def test_wrong_words_are_named(self):
        for words, said in ((["--limit", "soon"], "--limit soon: a number of minutes"), (["--out"], "--out needs a value"),
                            (["--fast"], "unknown option --fast")):
            done = self.run_it(*words)
            self.assertEqual(done.returncode, 1, words)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
