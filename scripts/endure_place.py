# SPDX-License-Identifier: Apache-2.0
"""Where one training of scripts/endure.py lives, and its processes."""

import json
import os
import signal
import struct
import subprocess
import time
from pathlib import Path

COMPARED = ("loss", "grad_norm", "lr", "loss_scale", "skipped", "validation_loss")   # of every step


class Place:
    """Where one training lives: its checkpoints, documents, log and a temporary folder of its own."""

    def __init__(self, build, folder, training):
        self.kuafu, self.library = build / "bin" / "kuafu", build / "lib" / "libcut_disk.so"
        self.folder, self.training, self.guards, self.told_before = folder, training, [], 0
        self.output = folder / "output.txt"
        self.disk, self.disk_state, self.temporary = folder / "disk", folder / "disk_state", folder / "t"
        self.saved, self.log, self.document = self.disk / "saved", self.disk / "log.jsonl", self.disk / "run.json"
        for made in (self.temporary, self.disk):
            made.mkdir(parents=True)
        (folder / "plan.toml").write_text("", encoding="utf-8")

    def start(self, options=(), environment=None):
        words = [str(self.kuafu), "run", str(self.folder / "plan.toml"), "--world", self.training["world"], "--ranks",
                 str(self.training["ranks"]), "--checkpoint", str(self.saved), "--log", str(self.log), "--json", str(self.document),
                 *self.training["saving"], *options]
        for key, value in self.training["settings"].items():
            words += ["--set", f"{key}={value}"]
        self.document.unlink(missing_ok=True)
        self.told_before = self.output.stat().st_size if self.output.exists() else 0
        with open(self.output, "ab") as out:
            guard = subprocess.Popen(words, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
                                     env=os.environ | {"TMPDIR": str(self.temporary)} | (environment or {}))
        self.guards.append(guard)
        return guard

    def disk_that_fills(self, change, counted):
        """The environment of a run whose disk has no room for change `change` of a path with `counted` in it, nor for any after it."""
        self.disk_state.write_bytes(bytes(16 + 4096))   # as tests/app_worker/cut_disk.c has it
        return {"LD_PRELOAD": str(self.library), "KUAFU_TEST_DISK": f"from:{change}", "KUAFU_TEST_DISK_FOLDER": str(self.disk),
                "KUAFU_TEST_DISK_COUNTED": counted, "KUAFU_TEST_DISK_STATE": str(self.disk_state)}

    def disk_changes(self):
        """What a disk that fills has counted, and the first file that it refused to change, "" where none."""
        done, _, first = struct.unpack("qq4096s", self.disk_state.read_bytes())
        path = first.split(b"\0")[0].decode()
        return done, path and str(Path(path).relative_to(self.disk))

    def stop(self):
        """Ends what still runs where the campaign itself is ended."""
        for guard in self.guards:
            if guard.poll() is None:
                for pid in [guard.pid, *(p for p, _ in descendants(guard.pid))]:
                    os.kill(pid, signal.SIGKILL)
                guard.wait()

    def told(self):
        """What the last run said."""
        return self.output.read_bytes()[self.told_before:].decode(errors="replace")

    def rows(self):
        """What the log says of each step, the last word where a step was made again."""
        found = {}
        for line in self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []:
            row = json.loads(line)
            found[row["step"]] = [row[key] for key in COMPARED]
        return found

    def logged_steps(self):
        return [json.loads(line)["step"] for line in self.log.read_text(encoding="utf-8").splitlines()]

    def log_file(self):
        """Which file the log is: a run makes a new one at its first step."""
        return self.log.stat().st_ino if self.log.exists() else None

    def unfinished_saves(self):
        return {(f.name, f.stat().st_ino) for f in self.saved.glob("step-*.partial")}

    def newest_step(self):
        found = self.checkpoints()
        return int(found[-1].name[5:]) if found else None

    def checkpoints(self):
        return sorted(f for f in self.saved.glob("step-*") if f.name[5:].isdigit() and (f / "index.json").is_file())

    def state(self):
        """Checksums of every piece of the last checkpoint, and the run's strings but for who saved it."""
        index = json.loads((self.checkpoints()[-1] / "index.json").read_text(encoding="utf-8"))
        return {"step": index["step"], "tensors": index["tensors"],
                "state": {k: v for k, v in index["state"].items() if k != "program"}}

    def is_readable(self):
        """Whether every weight of the newest checkpoint is read and has its checksum; none yet is fine."""
        if not self.checkpoints():
            return True
        weights = self.folder / "weights.safetensors"
        weights.unlink(missing_ok=True)  # an export replaces nothing
        words = [str(self.kuafu), "export", str(self.saved), "--out", str(weights)]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def was_cut_off(self):
        """Whether the clock ended the last run in the middle of a step: it took too long, and nothing is saved."""
        found = json.loads(self.document.read_text(encoding="utf-8")) if self.document.exists() else {}
        return found.get("status") == "timeout" and ": ended after step" not in found.get("reason", "")

    def left_over(self):
        """Files that no one needs any more, after a run that ended well."""
        found = [str(f.relative_to(self.folder)) for f in self.temporary.rglob("*")]
        found += [f.name for f in self.disk.iterdir() if f.name.endswith(".new")]
        found += [f"saved/{f.name}" for f in self.saved.iterdir() if f.name.endswith(".partial") or f.name == "lock"]
        found += [f.name for guard in self.guards for f in Path("/dev/shm").glob(f"kuafu-run-{guard.pid}*")]
        return found


def descendants(pid):
    """Processes below one, the nearest first: [(pid, name)]."""
    below = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text(encoding="utf-8")
            except OSError:
                continue
            name = words[words.index("(") + 1:words.rindex(")")]
            below.setdefault(int(words[words.rindex(")") + 2:].split()[1]), []).append((int(entry.name), name))
    found = list(below.get(pid, []))
    for child, _ in found:
        found += below.get(child, [])
    return found


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill_one(draw, guard):
    """SIGKILL to the guard, the launcher, the worker or a rank; which one."""
    below = descendants(guard.pid)
    targets = {"guard": [guard.pid], "launcher": [p for p, name in below if name in ("mpirun", "orterun")],
               "worker": [p for p, name in below if name.startswith("kuafu-worker")]}
    who = draw.choice([name for name, pids in targets.items() if pids])
    try:
        os.kill(draw.choice(targets[who]), signal.SIGKILL)
    except ProcessLookupError:
        pass
    return who


def wait_for_all(guard, pids, limit=60):
    """The guard's code; None where a process hangs, which is ended then."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if guard.poll() is not None and not any(is_alive(p) for p in pids):
            return guard.returncode if guard.returncode >= 0 else 128 - guard.returncode
        time.sleep(0.02)
    for pid in [guard.pid, *pids]:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
    guard.wait()
    return None
