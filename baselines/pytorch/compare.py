# SPDX-License-Identifier: Apache-2.0
"""Times a GPT step of Kuafu against PyTorch's, interleaved, in one run.

All programs stay alive and take turns of a few steps (A B, B A, A B, ...), so that the drift of a
machine hits all alike; a program that is not asked is stopped, for PyTorch's threads wake up
hundreds of times a second even where nothing is to be done, and MPI ranks wait by looking.

  kuafu            Kuafu's ranks as threads of one process
  kuafu_mpi        as MPI processes, as PyTorch's ranks are processes
  limit            the threads computing without any communication; nothing that it computes is right
  limit_mpi        the same of the MPI processes, which is their limit
  unmetered        the threads with ledger and meters off
  other            the threads of another build of Kuafu (--other), as of a commit before a change
  pytorch          eager PyTorch
  pytorch_compile  with forward, loss and backward through torch.compile; what the first step takes,
                   the compiler's work included, is told and left out

All but limits begin with the same parameters and train on the same tokens: losses of every step are
compared, and a side that trains something else ends the comparison. Ratios come with a 95 % interval:
whole rounds are drawn again with replacement, 2000 times, seeded. A limit that is beaten beyond its
interval is none: nothing is written and the program ends with 1."""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.append(str(ROOT / "scripts" / "report"))

import provenance
from side import Side

PEERS = {"single": "single.py", "data": "ddp.py", "pipeline": "pipelining.py",
         "1d": "dtensor_tp.py", "zero1": "zero_redundancy.py", "zero3": "fsdp2.py"}
MODES = (*PEERS, "zero2", "1d-sp", "2d")
MODEL = ("layers", "hidden", "heads", "sequence", "batch")
SIDES = {"kuafu": [], "kuafu_mpi": ["--world", "mpi"], "limit": ["--no-communication"],
         "limit_mpi": ["--world", "mpi", "--no-communication"],
         "unmetered": ["--no-meter"], "other": [], "pytorch": [], "pytorch_compile": ["--compile"]}
PYTORCH, MPI, LIMITS = ("pytorch", "pytorch_compile"), ("kuafu_mpi", "limit_mpi"), ("limit", "limit_mpi")
RESAMPLES = 2000


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
    parser.add_argument("--other", type=Path, metavar="PROGRAM",
                        help="kuafu-bench-step of another build, for --sides kuafu,other")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one answer")
    parser.add_argument("--json", type=Path, help="default: results/benchmarks/step-*.json")
    options = parser.parse_args(arguments)
    options.sides = options.sides.split(",")
    unknown = set(options.sides) - set(SIDES)
    if unknown or len(options.sides) < 2 or len(set(options.sides)) != len(options.sides):
        parser.error(f"--sides {','.join(options.sides)}: name two or more of {', '.join(SIDES)}")
    if set(options.sides) & set(PYTORCH) and options.mode not in PEERS:
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
    if not options.kuafu.is_file():
        parser.error(f"no program {options.kuafu}: build it first (scripts/setup.sh --build)")
    if ("other" in options.sides) != (options.other is not None):
        parser.error("--other PROGRAM and the side other go together: --sides kuafu,other --other PROGRAM")
    if options.other is not None and not options.other.is_file():
        parser.error(f"--other {options.other}: no such program")
    return options


def words_of(options, names):
    return [word for n in names for word in (f"--{n}", str(getattr(options, n.replace("-", "_"))))]


def shape_of(options):
    placement = ["ranks", "micro-batch"] if options.mode == "pipeline" else ["ranks"]
    return words_of(options, [*MODEL, *placement])


def peer_of(options, start):
    """PyTorch's program with everything but how to run it."""
    return [sys.executable, str(HERE / PEERS[options.mode]), *shape_of(options),
            "--implementation", options.implementation, "--start", str(start)]


def command_of(side, options, start=Path("START")):
    shape = shape_of(options)
    if side in PYTORCH:
        return [*peer_of(options, start), *SIDES[side], "--serve"]
    launcher = ([str(ROOT / "scripts/mpirun.sh"), "--exec", "-n", str(options.ranks)] if side in MPI else [])
    program = options.other if side == "other" else options.kuafu
    return [*launcher, str(program), *shape, "--mode", options.mode, *SIDES[side], "--serve"]


def turns_of(sides, number):
    """The order of a round. Over 2 n rounds of n sides each is in every place twice, and up to three
    follow each other about as often: what a program leaves behind is nobody's advantage."""
    first = number // 2 % len(sides)
    order = [*sides[first:], *sides[:first]]
    return order if number % 2 == 0 else order[::-1]


def measure(options, start):
    """{side: [samples of each round]}, {side: {losses, memory, first step}}"""
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
    found = {s.name: {"losses": s.losses, "resident_bytes": max(s.resident[1:]),
                      "tensor_bytes": s.tensor_bytes, "first_step_s": s.first_s} for s in sides}
    if "pytorch" in found:
        found["pytorch"]["tensor_bytes"] = counted(options, start)
    return rounds, found


def write_start(options, folder):
    """Parameters and tokens of all steps, from Kuafu, for PyTorch."""
    start = Path(folder) / "start.safetensors"
    if set(options.sides) & set(PYTORCH):
        count = options.warmup + options.rounds * options.steps
        subprocess.run([str(options.kuafu), *words_of(options, MODEL), "--export", str(start),
                        "--steps", str(count)], check=True, timeout=options.timeout)
    return start


def commit_of(program, timeout):
    """What a kuafu-bench-step says it was built from: {git_commit, git_dirty}."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([str(program), "--layers", "1", "--hidden", "16", "--steps", "1", "--json", file.name], check=True,
                       stdout=subprocess.DEVNULL, timeout=timeout)
        said = json.loads(Path(file.name).read_text(encoding="utf-8"))["provenance"]
    return {key: said[key] for key in ("git_commit", "git_dirty")}


def counted(options, start):
    """Bytes of PyTorch's tensors on each rank at the peak of a step; it is not timed meanwhile."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([*peer_of(options, start), "--warmup", "2", "--steps", "1",
                        "--count-memory", "--json", file.name], check=True,
                       stdout=subprocess.DEVNULL, timeout=options.timeout)
        return json.loads(Path(file.name).read_text(encoding="utf-8"))["tensor_bytes"]


def tolerance_of(layers, hidden):
    """Relative. n roundings to f32 at random are within l sqrt(n) 2^-24 but for a chance of 2 exp(-l^2 / 2) [Higham and Mary,
    SIAM J. Sci. Comput. 41 (2019), theorem 2.4]: sums of up to 4 H terms, 8 of them in each layer and the head, l = 4. Losses
    were 5.5e-7 apart at most at H = 256 (allowed: 4.8e-5), 9.5e-6 at H = 1024 (7.5e-5); training without AdamW's decay moves
    them by 7.6e-5 within 12 steps at H = 256."""
    return 4 * (4 * hidden * 8 * (layers + 1)) ** 0.5 * 2 ** -24


def losses_apart(name, mine, reference, tolerance):
    """Largest relative difference of the losses of the same steps. Exits where it is too large for
    one training."""
    apart = [abs(a - b) / abs(b) for a, b in zip(mine, reference, strict=True)]
    if not apart or not all(difference <= tolerance for difference in apart):
        raise SystemExit(f"losses of {name} are not within {tolerance:.1e} of the first side's: "
                         f"{mine}, {reference}")
    return max(apart)


def compared(found, layers, hidden):
    """The verdict on what the sides trained, against the first of them that trains: how far losses
    are apart, and memory of all ranks over the first's. Exits where two did not train the same."""
    trained = {name: side for name, side in found.items() if name not in LIMITS}
    if len(trained) < 2:
        return {"verdict": "not_run", "reason": "one side alone trains"}
    first, *others = trained
    reference, tolerance = trained[first], tolerance_of(layers, hidden)

    def over(key, mine):
        mine, whole = (side[key] if isinstance(side[key], int) else sum(side[key] or []) for side in (mine, reference))
        return mine / whole if mine and whole else None

    return {"verdict": "equal", "reference": first, "tolerance": tolerance,
            "steps": len(reference["losses"]),
            "losses": {name: losses_apart(name, trained[name]["losses"], reference["losses"], tolerance)
                       for name in others},
            "peak tensor bytes": {name: over("tensor_bytes", trained[name]) for name in others},
            "peak resident bytes": {name: over("resident_bytes", trained[name]) for name in others}}


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


PAIRS = (("kuafu", "other"), ("pytorch", "kuafu"), ("pytorch", "kuafu_mpi"), ("pytorch_compile", "kuafu"),
         ("pytorch_compile", "kuafu_mpi"), ("pytorch", "pytorch_compile"), ("kuafu_mpi", "kuafu"),
         ("kuafu", "limit"), ("kuafu_mpi", "limit_mpi"), ("kuafu", "unmetered"), ("pytorch", "limit"), ("pytorch", "limit_mpi"))


def ratios(rounds):
    """Every pair that answers a question, by name "slower / faster"."""
    return {f"{a} / {b}": ratio(rounds[a], rounds[b]) for a, b in PAIRS
            if a in rounds and b in rounds}


def beaten(found):
    """Why a limit is none; empty where all stand. Threads and processes have each their own."""
    for pair in ("kuafu / limit", "kuafu_mpi / limit_mpi", "pytorch / limit", "pytorch / limit_mpi"):
        low, high = found.get(pair, {"ci95": [1, 1]})["ci95"]
        if high < 1:
            side, limit = pair.split(" / ")
            return f"{side} takes {low:.3f} to {high:.3f} of {limit}, which is none: mend the limit"
    return ""


def show(document):
    print(f"{'side':10} {'median':>10} {'quartiles':>22} {'min':>9} {'max':>9}   (ms a step)")
    for name, side in document["step_time_s"].items():
        low, high = (q * 1e3 for q in side["quartiles"])
        print(f"{name:10} {side['median'] * 1e3:10.2f} {low:10.2f} to {high:8.2f} "
              f"{side['minimum'] * 1e3:9.2f} {side['maximum'] * 1e3:9.2f}")
    for name, value in document["ratios"].items():
        low, high = value["ci95"]
        print(f"{name}: {value['value']:.3f}  (95 %: {low:.3f} to {high:.3f})")
    same = document["compared"]
    print(f"losses of {same.get('steps', 0)} steps: {same['verdict']}")
    for name, apart in same.get("losses", {}).items():
        memory = same["peak tensor bytes"][name]
        print(f"  {name} from {same['reference']}: {apart:.1e} apart (allowed {same['tolerance']:.1e})"
              + (f", peak tensor bytes {memory:.3f} of it" if memory else ""))
    if "pytorch_compile" in document["sides"]:
        print(f"pytorch_compile: first step, compiling, {document['sides']['pytorch_compile']['first_step_s']:.1f} s, left out")


def main(arguments=None):
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))   # sides are ended, stopped ones too
    target = options.json or (ROOT / "results/benchmarks" /
                              f"step-{options.mode}-{options.ranks}ranks-h{options.hidden}.json")
    commands = {s: provenance.portable(command_of(s, options)) for s in options.sides}
    before = provenance.begin(options.kuafu.parent.parent, target, ("kuafu-bench-step",), torch=version("torch"),
                              load_average=os.getloadavg(), commands=commands)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder    # or the first step would find what others compiled
        rounds, found = measure(options, write_start(options, folder))
    settings = {n: getattr(options, n) for n in ("mode", "layers", "hidden", "heads", "sequence",
                                                 "batch", "ranks", "rounds", "steps", "warmup",
                                                 "implementation")}
    if options.mode == "pipeline":
        settings["micro_batch"] = options.micro_batch
    document = {"benchmark": "step", "settings": settings,
                "step_time_s": {name: summary(r) for name, r in rounds.items()},
                "ratios": ratios(rounds), "seconds": round(time.monotonic() - begin, 1),
                **({"other": commit_of(options.other, options.timeout)} if options.other else {}),
                "provenance": before, "sides": found, "compared": compared(found, options.layers, options.hidden)}
    show(document)
    if wrong := beaten(document["ratios"]):
        raise SystemExit(wrong)
    target.parent.mkdir(parents=True, exist_ok=True)
    provenance.write(target, document)
    print(f"written: {target}")


if __name__ == "__main__":
    main()
