# SPDX-License-Identifier: Apache-2.0
"""What scripts/mpirun.sh prints where ranks end as asked, and where they do not."""

import contextlib
import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("KUAFU_SOURCE_DIR", Path(__file__).resolve().parents[2]))
RANK = "trap 'echo saved >&2; exit {}' USR2; exec 3<> <(:); echo begun; while :; do read -r -t 0.05 -u 3 || :; done"


@unittest.skipUnless(shutil.which("mpirun"), "no mpirun")
class Ends(unittest.TestCase):
    def stopped(self, code):
        """(exit code, standard error) of two ranks that answer SIGTERM with this exit code."""
        child = subprocess.Popen([ROOT / "scripts" / "mpirun.sh", "-n", "2", "bash", "-c", RANK.format(code)], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, start_new_session=True)
        for _ in range(2):
            self.assertEqual(child.stdout.readline(), "begun\n")
        os.killpg(child.pid, signal.SIGTERM)
        said = child.communicate(timeout=30)[1]
        return child.returncode, said

    def test_as_asked_is_told_by_the_ranks_alone(self):
        code, said = self.stopped(130)
        self.assertEqual(code, 130)
        self.assertEqual(set(said.splitlines()), {"saved"})

    def test_ranks_draw_on_the_terminal_and_are_told_the_signal(self):
        rank = ("trap 'tail -c 2 \"$KUAFU_RANKS_LISTEN\" >&2; echo >&2; exit 130' USR2; printf '\\r\\033[K%s of 80' $KUAFU_TERMINAL_COLUMNS >&2; "
                "exec 3<> <(:); while :; do read -r -t 0.05 -u 3 || :; done")
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 77, 0, 0))
        child = subprocess.Popen([ROOT / "scripts" / "mpirun.sh", "-n", "1", "bash", "-c", rank], stdin=subprocess.DEVNULL,
                                 stderr=theirs, start_new_session=True)
        os.close(theirs)
        drawn = b""
        while b"of 80" not in drawn:        # a line that has no end
            drawn += os.read(ours, 1000)
        os.killpg(child.pid, signal.SIGINT)
        self.assertEqual(child.wait(timeout=30), 130)
        with contextlib.suppress(OSError):  # nobody has the other end any more
            while more := os.read(ours, 1000):
                drawn += more
        os.close(ours)
        self.assertEqual(drawn, b"\r\x1b[K77 of 8002\r\n")

    def test_words_of_ranks_are_passed_on_whatever_stands_around_them(self):
        words = ["-" * 74, "  Exit code:    130", "my own reason", "-" * 74, "-------------- my table", "row"]
        ended = subprocess.run([ROOT / "scripts" / "mpirun.sh", "-n", "1", "bash", "-c", 'printf "%s\\n" "$@" >&2; exit 130', "rank", *words],
                               capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(ended.returncode, 130)
        self.assertEqual(ended.stderr.splitlines(), words)

    def test_a_reason_that_kuafu_told_is_the_only_one(self):
        for words, code in (("kuafu: refused: no", 3), ("kuafu: no", 2)):
            ended = subprocess.run([ROOT / "scripts" / "mpirun.sh", "-n", "1", "bash", "-c", f"echo '{words}' >&2; exit {code}"],
                                   capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual(ended.returncode, code)
            self.assertEqual(ended.stderr.splitlines(), [words])

    def test_otherwise_mpirun_says_which_rank(self):
        for _ in range(4):   # mpirun does not always say it
            code, said = self.stopped(3)
            self.assertEqual(code, 3)
            if "Exit code" in said:
                break
        self.assertIn("saved", said)
        self.assertIn("Primary job", said)
        self.assertRegex(said, r"Exit code: *3\n-+\n")

    def test_killed_while_it_starts_it_starts_nothing(self):
        """With a setpriv that asks for the signal only when the script is gone."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            stand_ins = {"setpriv": 'echo here; read -r go; exec "$SETPRIV" "$@"', "mpirun": f"touch {folder}/started"}
            for program, body in stand_ins.items():
                (folder / program).write_text(f"#!/bin/sh\n{body}\n")
                (folder / program).chmod(0o755)
            env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SETPRIV": shutil.which("setpriv")}
            child = subprocess.Popen([ROOT / "scripts" / "mpirun.sh", "-n", "1", "true"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     text=True, start_new_session=True)
            self.assertEqual(child.stdout.readline(), "here\n")
            child.kill()
            child.wait()
            child.stdin.write("go\n")
            child.stdin.close()
            self.assertEqual(child.stdout.read(), "")    # all that it started has ended
            self.assertFalse((folder / "started").exists())
            child.stdout.close()


if __name__ == "__main__":
    unittest.main()
