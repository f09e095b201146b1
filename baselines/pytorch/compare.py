# SPDX-License-Identifier: Apache-2.0
"""Times a GPT step of Kuafu against PyTorch's, interleaved, in one run.

Both programs stay alive and take turns of a few steps (A B, B A, A B, ...), so that the drift of a
machine hits both alike; a program that is not asked is stopped, for PyTorch's threads wake up
hundreds of times a second even where nothing is to be done. `limit` is Kuafu's own program computing
without any communication, `unmetered` the same program with its ledger and meters off. Ratios come with a 95 % interval: whole rounds are drawn again with
replacement, 2000 times, seeded."""

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEERS = {"single": "single.py", "data": "ddp.py", "pipeline": "pipelining.py",
         "1d": "dtensor_tp.py", "zero1": "zero_redundancy.py", "zero3": "fsdp2.py"}
STARTS_TOGETHER = ("pipeline", "zero1", "zero3")  # same parameters and tokens: losses are compared
MODES = (*PEERS, "zero2", "1d-sp", "2d")
MODEL = ("layers", "hidden", "heads", "sequence", "batch")
SIDES = {"kuafu": [], "limit": ["--no-communication"], "unmetered": ["--no-meter"], "pytorch": None}
RESAMPLES = 2000


class Side:
    """One running program that answers "run K" with a line of samples, and is stopped in between."""

    def __init__(self, name, command, timeout):
        self.name, self.command, self.timeout = name, command, timeout
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, bufsize=1, start_new_session=True)
        self.is_late = False
        self.losses, self.resident, self.tensor_bytes = [], [], None

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
        """To the program and the processes it has started."""
        try:
            os.killpg(self.process.pid, number)
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


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: .venv/bin/python baselines/pytorch/compare.py --mode data --ranks 2")
    parser.add_argument("--mode", choices=MODES, default="single")
    for name, default in (("layers", 4), ("hidden", 256), ("heads", 4), ("sequence", 128),
                          ("batch", 8), ("ranks", 1), ("rounds", 10), ("steps", 5), ("warmup", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--micro-batch", type=int,
                        help="samples of a micro-batch of --mode pipeline; default 1")
    parser.add_argument("--sides", default="kuafu,pytorch",
                        help=f"which take turns, from {', '.join(SIDES)}; default %(default)s")
    parser.add_argument("--implementation", choices=("default", "foreach", "fused"),
                        default="default", help="loop of PyTorch's AdamW")
    parser.add_argument("--kuafu", type=Path, default=ROOT / "build/release/bin/kuafu-bench-step")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one answer")
    parser.add_argument("--json", type=Path, help="default: results/benchmarks/step-*.json")
    options = parser.parse_args(arguments)
    options.sides = options.sides.split(",")
    unknown = set(options.sides) - set(SIDES)
    if unknown or len(options.sides) < 2 or len(set(options.sides)) != len(options.sides):
        parser.error(f"--sides {','.join(options.sides)}: name two or more of {', '.join(SIDES)}")
    if "pytorch" in options.sides and options.mode not in PEERS:
        parser.error(f"--mode {options.mode} has no PyTorch peer; those with one: {', '.join(PEERS)}")
    if min(options.rounds, options.steps, options.ranks) < 1 or options.warmup < 1:
        parser.error("--rounds, --steps, --ranks and --warmup are at least 1")
    if options.mode == "single" and options.ranks != 1:
        parser.error(f"--mode single has one rank, not {options.ranks}")
    if options.mode == "pipeline" and options.ranks < 2:
        parser.error("--mode pipeline has two ranks or more; give --ranks")
    if options.mode != "pipeline" and options.micro_batch is not None:
        parser.error(f"--micro-batch {options.micro_batch} is of --mode pipeline, not of {options.mode}")
    if options.mode == "pipeline" and options.micro_batch is None:
        options.micro_batch = 1
    if set(options.sides) - {"pytorch"} and not options.kuafu.is_file():
        parser.error(f"no program {options.kuafu}: build it first (scripts/setup.sh --build)")
    return options


def words_of(options, names):
    return [word for n in names for word in (f"--{n}", str(getattr(options, n.replace("-", "_"))))]


def shape_of(options):
    placement = ["ranks", "micro-batch"] if options.mode == "pipeline" else ["ranks"]
    return words_of(options, [*MODEL, *placement])


def peer_of(options, start):
    """PyTorch's program with everything but how to run it."""
    begin = ["--start", str(start)] if options.mode in STARTS_TOGETHER else []
    return [sys.executable, str(HERE / PEERS[options.mode]), *shape_of(options),
            "--implementation", options.implementation, *begin]


def command_of(side, options, start=Path("START")):
    shape = shape_of(options)
    if side == "pytorch":
        return [*peer_of(options, start), "--serve"]
    return [str(options.kuafu), *shape, "--mode", options.mode, *SIDES[side], "--serve"]


def turns_of(sides, number):
    """The order of a round. Over 2 n rounds of n sides each is in every place twice, and up to three
    follow each other about as often: what a program leaves behind is nobody's advantage."""
    first = number // 2 % len(sides)
    order = [*sides[first:], *sides[:first]]
    return order if number % 2 == 0 else order[::-1]


def measure(options, start):
    """{side: [samples of each round]}, {side: {losses, memory}} where they begin together"""
    sides = []
    try:
        for name in options.sides:
            sides.append(Side(name, command_of(name, options, start), options.timeout))
        for side in sides:
            side.run(options.warmup)
        rounds = {side.name: [] for side in sides}
        for number in range(options.rounds):
            for side in turns_of(sides, number):
                rounds[side.name].append(side.run(options.steps))
            shown = ", ".join(f"{name} {statistics.median(r[-1]) * 1e3:.1f} ms"
                              for name, r in rounds.items())
            print(f"round {number + 1} of {options.rounds}: {shown}", file=sys.stderr)
    finally:
        for side in sides:
            side.end()
    found = {}
    if options.mode in STARTS_TOGETHER:
        found = {s.name: {"losses": s.losses, "resident_bytes": max(s.resident[1:]),
                          "tensor_bytes": s.tensor_bytes} for s in sides}
        if "pytorch" in found:
            found["pytorch"]["tensor_bytes"] = counted(options, start)
    return rounds, found


def write_start(options, folder):
    """Parameters and tokens of all steps, from Kuafu, for both."""
    start = Path(folder) / "start.safetensors"
    if options.mode in STARTS_TOGETHER and "pytorch" in options.sides:
        count = options.warmup + options.rounds * options.steps
        subprocess.run([str(options.kuafu), *words_of(options, MODEL), "--export", str(start),
                        "--steps", str(count)], check=True, timeout=options.timeout)
    return start


def counted(options, start):
    """Bytes of PyTorch's tensors on each rank at the peak of a step; it is not timed meanwhile."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([*peer_of(options, start), "--warmup", "2", "--steps", "1",
                        "--count-memory", "--json", file.name], check=True,
                       stdout=subprocess.DEVNULL, timeout=options.timeout)
        return json.loads(Path(file.name).read_text(encoding="utf-8"))["tensor_bytes"]


def losses_apart(kuafu, pytorch, hidden):
    """Largest relative difference of the losses of the same steps. Exits where it is too large for
    one training: f32 sums of up to 4 H terms, four after each other, as far as rounding may go."""
    tolerance = 4 * 4 * hidden * 1.2e-7
    apart = [abs(a - b) / abs(b) for a, b in zip(kuafu, pytorch, strict=True)]
    if not apart or not all(difference <= tolerance for difference in apart):
        raise SystemExit(f"losses of Kuafu and PyTorch are not within {tolerance:.1e} of each other: "
                         f"{kuafu}, {pytorch}")
    return max(apart)


def compared(found, hidden):
    """How far losses are apart, and memory: what all ranks hold, PyTorch's over Kuafu's. Exits where
    the two programs did not train the same."""
    if not {"kuafu", "pytorch"} <= set(found):
        return {}
    ours, theirs = found["kuafu"], found["pytorch"]
    return {"largest relative difference of losses":
                losses_apart(ours["losses"], theirs["losses"], hidden),
            "steps compared": len(ours["losses"]),
            "peak tensor bytes, pytorch / kuafu":
                sum(theirs["tensor_bytes"]) / sum(ours["tensor_bytes"]),
            "peak resident bytes, pytorch / kuafu":
                theirs["resident_bytes"] / ours["resident_bytes"]}


def pooled(rounds, picks=None):
    chosen = rounds if picks is None else [rounds[i] for i in picks]
    return statistics.median(s for samples in chosen for s in samples)


def summary(rounds):
    """Median and spread of one side, seconds."""
    samples = sorted(s for r in rounds for s in r)
    quartiles = (statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1
                 else samples * 3)
    return {"median": statistics.median(samples), "quartiles": [quartiles[0], quartiles[2]],
            "minimum": samples[0], "maximum": samples[-1], "rounds": rounds}


def ratio(slow, fast, seed=1):
    """{value, ci95}: median of `slow` over median of `fast`; the interval resamples whole rounds."""
    rng, count, drawn = random.Random(seed), len(slow), []
    for _ in range(RESAMPLES):
        picks = [rng.randrange(count) for _ in range(count)]
        drawn.append(pooled(slow, picks) / pooled(fast, picks))
    drawn.sort()
    return {"value": pooled(slow) / pooled(fast),
            "ci95": [drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES) - 1]]}


def ratios(rounds):
    """Every pair that answers a question, by name "slower / faster"."""
    pairs = (("pytorch", "kuafu"), ("kuafu", "limit"), ("kuafu", "unmetered"), ("pytorch", "limit"))
    return {f"{a} / {b}": ratio(rounds[a], rounds[b]) for a, b in pairs
            if a in rounds and b in rounds}


def _git(*arguments):
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True,
                          check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def provenance(options):
    model = next((line.split(":", 1)[1].strip() for line in
                  Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
                  if line.startswith("model name")), platform.processor())
    from importlib.metadata import version
    status = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": _git("rev-parse", "HEAD"), "dirty": None if status is None else bool(status),
            "host": platform.node(), "cpu": model, "cores": os.cpu_count(),
            "system": platform.platform(), "python": platform.python_version(),
            "torch": version("torch"), "load_average": os.getloadavg(),
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commands": {s: _portable(command_of(s, options)) for s in options.sides}}


def _portable(command):
    """The command as typed at the root of the source tree."""
    words = [os.path.relpath(w, ROOT) if os.path.isabs(w) and w.startswith(str(ROOT)) else w
             for w in command]
    if os.path.basename(words[0]).startswith("python"):
        words[0] = "python"
    return " ".join(words)


def show(document):
    print(f"{'side':10} {'median':>10} {'quartiles':>22} {'min':>9} {'max':>9}   (ms a step)")
    for name, side in document["step_time_s"].items():
        low, high = (q * 1e3 for q in side["quartiles"])
        print(f"{name:10} {side['median'] * 1e3:10.2f} {low:10.2f} to {high:8.2f} "
              f"{side['minimum'] * 1e3:9.2f} {side['maximum'] * 1e3:9.2f}")
    for name, value in document["ratios"].items():
        low, high = value["ci95"]
        print(f"{name}: {value['value']:.3f}  (95 %: {low:.3f} to {high:.3f})")
    for name, value in document.get("compared", {}).items():
        print(f"{name}: {value:.4g}")


def main(arguments=None):
    options = parse(arguments)
    before = provenance(options)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rounds, found = measure(options, write_start(options, folder))
    settings = {n: getattr(options, n) for n in ("mode", "layers", "hidden", "heads", "sequence",
                                                 "batch", "ranks", "rounds", "steps", "warmup",
                                                 "implementation")}
    if options.mode == "pipeline":
        settings["micro_batch"] = options.micro_batch
    document = {"benchmark": "step", "settings": settings,
                "step_time_s": {name: summary(r) for name, r in rounds.items()},
                "ratios": ratios(rounds), "seconds": round(time.monotonic() - begin, 1),
                "provenance": before}
    if found:
        document |= {"sides": found, "compared": compared(found, options.hidden)}
    show(document)
    target = options.json or (ROOT / "results/benchmarks" /
                              f"step-{options.mode}-{options.ranks}ranks-h{options.hidden}.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"written: {target}")


if __name__ == "__main__":
    main()
