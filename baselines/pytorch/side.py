# SPDX-License-Identifier: Apache-2.0
"""One of the programs that compare.py lets take turns: started once, asked for steps, stopped in between."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path


def _session(leader):
    """Processes of the session that `leader` began."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue                                  # it has ended meanwhile
            if int(fields[3]) == leader:
                found.append(int(entry.name))
    return found


class Side:
    """One running program that answers "run K" with a line of samples, and is stopped in between."""

    def __init__(self, name, command, timeout):
        self.name, self.command, self.timeout = name, command, timeout
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, bufsize=1, start_new_session=True)
        self.is_late, self.is_launched = False, Path(command[0]).name == "mpirun.sh"
        self.losses, self.resident, self.tensor_bytes, self.first_s = [], [], None, None

    def run(self, count):
        """Seconds of `count` steps. Exits with the reason where the program does not answer."""
        timer = threading.Timer(self.timeout, self._give_up)
        timer.start()
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write(f"run {count}\n")
            self.process.stdin.flush()
            for line in self.process.stdout:
                answer = self._answer(line)
                if answer is not None:
                    samples = answer["samples"]
                    if len(samples) != count:
                        raise SystemExit(f"{self.name}: asked for {count} steps, got "
                                         f"{len(samples)} samples")
                    if self.first_s is None:
                        self.first_s = samples[0]         # with what a first step makes, a compiler's work too
                    self.losses += answer.get("losses", [])
                    self.resident.append(sum(answer.get("resident_bytes", [])))
                    self.tensor_bytes = answer.get("tensor_bytes")
                    self._signal(signal.SIGSTOP)
                    return samples
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        code = self.process.wait()
        why = f"no answer within {self.timeout} s" if self.is_late else f"ended with code {code}"
        raise SystemExit(f"{self.name}: {why}; command: {' '.join(self.command)}")

    def _give_up(self):
        self.is_late = True
        self._signal(signal.SIGKILL)

    def _signal(self, number):
        """To the program and the processes it has started, whatever groups a launcher put them into; a
        launcher by itself uses no core, and would pass signals on and tell of each."""
        launched = [p for p in _session(self.process.pid) if p != self.process.pid or not self.is_launched]
        for process in launched or [self.process.pid]:
            try:
                os.kill(process, number)
            except ProcessLookupError:
                pass

    @staticmethod
    def _answer(line):
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            return None
        return answer if isinstance(answer, dict) and "samples" in answer else None

    def end(self):
        self._signal(signal.SIGCONT)
        try:
            with self.process.stdin as requests:
                requests.write("quit\n")
        except BrokenPipeError:
            pass
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()
