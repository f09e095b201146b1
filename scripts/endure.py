#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ends trainings at random moments and lets them go on, until they are done: to the same bits as undisturbed ones?

    .venv/bin/python scripts/endure.py --kills 100 --seed 1 --out results/endurance

Plans (model, parallelism, ZeRO, type, optimizer, memory, telemetry, world) and what ends them are drawn by the seed. Each training is made once
undisturbed, then again: killed (SIGKILL to the guard, the launcher, a worker or a rank), asked to stop (SIGTERM, SIGINT, time-out,
--stop-after), told to save (SIGUSR1, which goes on), or cut off by a full disk, at a moment of its wall time, and resumed each time. A full disk
ends one save and has room again (`full disk`), or is full for every file of the run from one change of a checkpoint, of the log or
of the document on, until the run is resumed (`filled disk`). Every end is held to its exit code and to a whole checkpoint; at the end each step's loss, gradient norm and validation
loss, each tensor of the last checkpoint and the optimizer's state must be those of the undisturbed training, bit by bit, and no
file may be left in shared memory or the temporary folder. A call after a kill goes on behind the trainings of the file."""

import argparse
import json
import math
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "report"))
import provenance  # noqa: E402
from endure_place import Place, descendants, kill_one, wait_for_all  # noqa: E402

SIGNALS = {"sigterm": signal.SIGTERM, "sigint": signal.SIGINT}
KINDS = ("sigkill", "sigkill", "sigterm", "sigint", "sigusr1", "full disk", "time-out", "stop-after", "filled disk")
CLOCKS = {"time-out": "--timeout", "stop-after": "--stop-after"}
# Where a disk fills, and what counts there: of five, two in checkpoints, two in the log, one in the document.
FILES = {"saved/": "a save", "log.jsonl": "the log", "run.json": "the document"}
FILLS = ("saved/", "saved/", "log.jsonl", "log.jsonl", "run.json")
NO_SPACE = "No space left on device"
# How a run may end that was stopped so: its own code; before it listens, that of the signal. 0: it was done before. 1: the guard tells
# of a worker, launcher or rank that was killed; killed itself it tells nothing. SIGUSR1 ends nothing: a kill follows.
CODES = {"sigterm": {0, 130, 143}, "sigint": {0, 130}, "full disk": {0, 1}, "filled disk": {0, 7}, "time-out": {0, 5}, "stop-after": {0, 130}, "none": {0},
         "sigkill": {0, 1}, "sigusr1": {0, 1}, "guard": {0, 137}}
IN_ORDER = (5, 130)   # ends after a step, which is saved
MODELS = ({}, {"model.kind": "bert"}, {"model.kind": "moe_gpt", "model.experts": 4, "model.balance_loss": 0.1},
          {"model.mlp": "swiglu", "model.norm": "rms", "model.tied": "false"},
          {"model.kind": "vit", "model.image": 12, "model.patch": 4, "model.sequence": 10})
PARALLEL = ({"data": 2, "zero": 3}, {"tensor.mode": "1d", "tensor.size": 2}, {"pipeline.size": 2}, {"data": 2},
            {"sequence.mode": "ring", "sequence.size": 2}, {"data": 2, "pipeline.size": 2, "zero": 1}, {"data": 2, "zero": 2}, {},
            {"tensor.mode": "1d-sp", "tensor.size": 2}, {"data": 2, "tensor.mode": "1d", "tensor.size": 2}, {"data": 2, "zero": 1},
            {"tensor.mode": "2d", "tensor.size": 4})
OPTIMIZERS = ("adamw", "adamw", "sgd", "adam", "lars", "lamb", "muon")
SHAPE = {"model.layers": 2, "model.hidden": 48, "model.heads": 4, "model.sequence": 24, "train.batch": 8, "train.micro_batch": 4,
         "train.validation_batches": 1, "data.kind": "synthetic", "optimizer.schedule": "cosine", "model.dropout": 0.1}


def draw_training(draw, number, steps, worlds):
    """Options of `kuafu run` but for files. Models and placements come in turn, the rest by chance."""
    placed = PARALLEL[number % len(PARALLEL)]
    varied = {**MODELS[number % len(MODELS)], **{f"parallel.{key}": value for key, value in placed.items()},
              "model.dtype": draw.choice(("f32", "f32", "bf16", "f16")), "optimizer.kind": draw.choice(OPTIMIZERS),
              "memory.policy": draw.choice(("plain", "plain", "plain", "host")), "train.telemetry": draw.choice(("false", "false", "true")),
              "train.seed": draw.randrange(1000), "train.validate_every": draw.choice((0, 7, 20))}
    if varied["memory.policy"] == "host" and draw.random() < 0.5:
        varied |= {"memory.disk_path": "/var/tmp", "memory.chunk_size": "4 KiB"}
    more = random.Random(varied["train.seed"])    # leaves the draws of everything else as they are
    if "memory.disk_path" in varied:
        varied |= {"memory.gradients": more.choice(("host", "disk"))}
    if varied["memory.policy"] == "host" and more.random() < 0.5:    # most of a step is moves then
        varied |= {"memory.throttle": "true", "cluster.host_gbs": 0.05}
    ranks = math.prod(value for key, value in placed.items() if key == "data" or key.endswith(".size"))
    saving = ["--every", str(draw.choice((5, 10, 25)))]
    saving += draw.choice(([], ["--keep", "1"], ["--keep", "3"])) + draw.choice(([], ["--async"]))
    return {"world": draw.choice(worlds), "ranks": ranks, "varied": varied, "settings": {**SHAPE, **varied, "train.steps": steps},
            "saving": saving}


def draw_fill(draw, left):
    """Which change of which files finds the disk full."""
    files = draw.choice(FILLS)
    most = {"saved/": left["changes"], "log.jsonl": left["steps"] + 4, "run.json": 4}[files]   # to replace a file is four changes
    return {"files": files, "change": draw.randrange(most)}


def disturb(draw, place, kind, left):
    """One attempt that something ends, of which so much is left: what, when, and what was found after."""
    options, environment, entry = ["--resume"], {}, {"kind": kind, "from_step": place.newest_step()}
    wall_s = left["wall_s"]
    moment = round(draw.uniform(0.02, 0.98) * wall_s, 3)
    log_before, unfinished = place.log_file(), place.unfinished_saves()
    if kind == "full disk":
        entry["bytes"] = draw.randrange(int(1.5 * left["bytes"]))
        environment = {"LD_PRELOAD": str(place.library), "KUAFU_TEST_DISK": f"full:{entry['bytes']}"}
    elif kind == "filled disk":
        entry |= draw_fill(draw, left)
        environment = place.disk_that_fills(entry["change"], entry["files"])
    elif kind in CLOCKS:
        entry["at_s"] = max(moment, 0.5)
        options += [CLOCKS[kind], str(entry["at_s"])]
    elif kind != "none":
        entry["at_s"] = moment
    guard = place.start(options, environment)
    pids = set()
    if "at_s" in entry and kind not in CLOCKS:
        end = time.monotonic() + moment
        while time.monotonic() < end and guard.poll() is None:
            time.sleep(0.005)
        pids = {p for p, _ in descendants(guard.pid)}
        if guard.poll() is None and kind == "sigkill":
            entry["whom"] = kill_one(draw, guard)
        elif guard.poll() is None and kind == "sigusr1":
            guard.send_signal(signal.SIGUSR1)
            time.sleep(draw.uniform(0, 0.5) * (wall_s - moment))
            pids = {p for p, _ in descendants(guard.pid)}
            if guard.poll() is None:
                entry["whom"] = "SIGUSR1, then " + kill_one(draw, guard)
            elif guard.returncode != 0:
                entry["whom"] = "SIGUSR1 alone"
        elif guard.poll() is None:
            guard.send_signal(SIGNALS[kind])
    code = wait_for_all(guard, pids)
    has_steps, is_saving = place.log_file() != log_before, kind == "full disk" or place.unfinished_saves() - unfinished
    phase = "start-up" if not has_steps else "a save" if is_saving else "training"
    if kind == "filled disk":
        entry["first"] = place.disk_changes()[1]
        phase = next((what for name, what in FILES.items() if entry["first"].startswith(name)), "nowhere")
    entry |= {"exit_code": code, "phase": "done before" if code == 0 else phase,
              "last_step": max(place.rows(), default=0) if has_steps else None, "checkpoint": place.newest_step()}
    entry["problems"] = problems_of(place, entry)
    return entry


def problems_of(place, entry):
    """What must not be after an end."""
    kind, code, found = entry["kind"], entry["exit_code"], []
    whom = entry.get("whom", "")
    if code is None:
        found.append("a process was still there after 60 s")
    elif whom == "SIGUSR1 alone" or code not in CODES["guard" if whom.endswith("guard") else kind]:
        found.append(f"ended with {code}")
    elif code in IN_ORDER and entry["last_step"] is not None and entry["checkpoint"] != entry["last_step"] and not place.was_cut_off():
        found.append(f"step {entry['last_step']} was made and not saved, but {entry['checkpoint']}")
    if not place.is_readable():
        found.append("the newest checkpoint cannot be read")
    if code not in (0, None) and kind in (*CLOCKS, "full disk"):
        words = {"time-out": "took longer than", "stop-after": "--stop-after", "full disk": NO_SPACE}[kind]
        if words not in place.told()[-4000:]:
            found.append(f"nothing says: {words}")
    if kind == "filled disk":
        found += problems_of_filled(place, entry)
    return found


def problems_of_filled(place, entry):
    """What a run must not do whose disk had no room for the change of one file, nor for any after it."""
    first, lines, found = entry["first"], [line for line in place.told().splitlines() if NO_SPACE in line], []
    if first and entry["exit_code"] == 0:
        found.append(f"ended with 0 though {first} could not be written")
    named = next((place.disk / name for name in FILES if first.startswith(name)), None)   # of a save: another rank's file too
    if named and sum(str(named) in line for line in lines) != 1:
        found.append(f"not one line says that {first} could not be written: {lines}")
    if len(lines) != len(set(lines)) or any(str(place.disk) not in line for line in lines):
        found.append(f"a line is told twice or names no file: {lines}")
    if "exited with code" in place.told():
        found.append("the cause is told, and an exit code too")
    if place.document.exists():
        found.append("a document was written on a full disk")
    return found


def compare(reference, place):
    """Why the disturbed training is not the undisturbed one; empty where it is."""
    found = []
    mine, whole = place.rows(), reference.rows()
    if place.logged_steps() != sorted(whole):
        found.append("the log has not one row a step, in order")
    for step in sorted(set(mine) | set(whole)):
        if mine.get(step) != whole.get(step):
            found.append(f"step {step}: {mine.get(step)} instead of {whole.get(step)}")
            break
    here, there = place.state(), reference.state()
    found += [f"the last checkpoint's {part} differs" for part in there if here[part] != there[part]]
    left = place.left_over()
    if left:
        found.append(f"left behind: {', '.join(sorted(left)[:5])}")
    return found


def endure(build, folder, draw, training, most, kinds=KINDS):
    """One training, disturbed at most `most` times by these kinds; None where its plan is refused."""
    places = [Place(build, folder / name, training) for name in ("whole", "disturbed")]
    try:
        return disturbed_training(*places, draw, training, most, kinds)
    finally:
        for place in places:
            place.stop()


def disturbed_training(reference, place, draw, training, most, kinds):
    begin = time.monotonic()
    guard = reference.start(environment=reference.disk_that_fills(-1, "saved/"))   # which counts alone
    while guard.poll() is None and reference.log_file() is None:
        time.sleep(0.01)
    startup_s = time.monotonic() - begin
    code = wait_for_all(guard, set(), 600)
    wall_s = time.monotonic() - begin
    if code in (2, 3):
        return None                                              # the plan is refused
    row = training | {"startup_s": round(startup_s, 3), "wall_s": round(wall_s, 3), "ends": [], "too_late": None, "problems": []}
    if code != 0:
        return row | {"problems": [f"undisturbed, it ended with {code}"], "verdict": "different"}
    sizes = [f.stat().st_size for f in reference.checkpoints()[-1].iterdir()]
    size = max(sizes) if training["world"] == "mpi" else sum(sizes)   # of a process
    whole, changes = reference.newest_step(), reference.disk_changes()[0]
    while True:
        is_last = len(row["ends"]) == most or place.newest_step() == whole
        steps = whole - (place.newest_step() or 0)
        left = {"steps": steps, "wall_s": startup_s + steps / whole * (wall_s - startup_s), "bytes": size,
                "changes": max(1, changes * steps // whole)}
        entry = disturb(draw, place, "none" if is_last else draw.choice(kinds), left)
        row["problems"] += [f"end {len(row['ends'])}: {p}" for p in entry.pop("problems")]
        is_late = entry["checkpoint"] == whole and entry["kind"] != "filled disk"   # which meets the document too
        if entry["kind"] != "none" and (entry["exit_code"] == 0 or is_late):
            row["too_late"] = entry                              # all was saved before: no end of a training
        elif entry["kind"] != "none":
            row["ends"].append(entry)
        if entry["exit_code"] == 0 or is_last or row["problems"]:
            break
    row["problems"] = row["problems"] or compare(reference, place)
    return row | {"verdict": "different" if row["problems"] else "equal"}


def page(result):
    trainings = result["trainings"]
    ends = [(t, e) for t in trainings for e in t["ends"]]
    lines = ["# Trainings that are ended at random moments", "",
             f"{len(ends)} ends of {len(trainings)} trainings, drawn by seed {result['seed']}: killed, asked to stop, cut off by a full disk, and resumed until they "
             "were done. `full disk` ends one save and has room again; `filled disk` has no room for any file of the run from one change of a checkpoint, the log or the document on, "
             "until the next call. What came too late, to a training whose last step was saved, is no end, but for a disk that is full for the document. `sigusr1` asks for a save, which ends nothing: a kill follows. `scripts/endure.py` says what each end and each finished training is held to.", "",
             "```", result["provenance"]["command"] + "    # goes on behind the last training", "```", "",
             f"Commit `{result['provenance']['git_commit']}`, {'clean tree' if not result['provenance']['git_dirty'] else 'changed tree'}, "
             f"{result['provenance']['cpu_model']}. `result.json` has every end: moment, kind, whom, exit code, the last step in the log, the newest checkpoint.", "",
             "| end | threads | mpi | during start-up | between two saves | in a save | in the log | in the document |", "|---|---|---|---|---|---|---|---|"]
    for kind in sorted(set(KINDS)):
        mine = [(t["world"], e["phase"]) for t, e in ends if e["kind"] == kind]
        counts = [sum(part in words for words in mine) for part in ("threads", "mpi", "start-up", "training", *FILES.values())]
        lines.append(f"| {kind} | {' | '.join(map(str, counts))} |")
    equal = sum(t["verdict"] == "equal" for t in trainings)
    lines += ["", f"{equal} of {len(trainings)} trainings ended with the bits of the undisturbed one: losses, gradient norms and validation losses of all steps, "
              "every tensor of the last checkpoint; nothing was left in shared memory or the temporary folder.", ""]
    lines += [f"- training {n}: {problem}" for n, t in enumerate(trainings) for problem in t["problems"]]
    return "\n".join(lines).rstrip() + "\n"


def write(out, result):
    for name, text in (("result.json", json.dumps(result, indent=1) + "\n"), ("README.md", page(result))):
        fresh = out / f"{name}.new"
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(out / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="ends, of all trainings together (default 100)")
    parser.add_argument("--each", type=int, default=6, metavar="N", help="ends of one training, at most (default 6)")
    parser.add_argument("--steps", type=int, default=400, metavar="N", help="steps of a training (default 400)")
    parser.add_argument("--seed", type=int, default=1, help="draws plans, ends and moments (default 1)")
    parser.add_argument("--world", action="append", choices=("threads", "mpi"), help="only this; may be repeated")
    parser.add_argument("--kind", action="append", choices=sorted(set(KINDS)), help="only ends of this kind; may be repeated")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for result.json and README.md; goes on where they end")
    options = parser.parse_args()
    if min(options.kills, options.each, options.steps) < 1:
        parser.error("--kills, --each and --steps are whole numbers from 1")
    if not (options.build / "lib" / "libcut_disk.so").is_file():
        sys.exit(f"{options.build}/lib/libcut_disk.so is not there: build the target cut_disk, or name another --build")
    found = provenance.block(options.build)
    provenance.require_recordable(options.out, found)
    options.out.mkdir(parents=True, exist_ok=True)
    result = {"provenance": found, "seed": options.seed, "each": options.each, "steps": options.steps,
              "worlds": options.world or ["threads", "mpi"], "kinds": options.kind or list(KINDS), "draws": 0, "refused": [], "trainings": []}
    file = options.out / "result.json"
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        for key in ("seed", "each", "steps", "worlds", "kinds"):
            if before.get(key) != result[key]:
                sys.exit(f"{file} is of --{key} {before.get(key)}, not {result[key]}: go on with that, or name another --out")
        if before["provenance"]["git_commit"] != found["git_commit"]:
            sys.exit(f"{file} is of commit {before['provenance']['git_commit'][:12]}, the programs of {found['git_commit'][:12]}: name another --out")
        result |= {key: before[key] for key in ("draws", "refused", "trainings")}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))   # through every `finally`
    while (ends := sum(len(t["ends"]) for t in result["trainings"])) < options.kills:
        draw = random.Random(f"{options.seed} {result['draws']}")
        training = draw_training(draw, result["draws"], options.steps, result["worlds"])
        with tempfile.TemporaryDirectory(prefix="endure-") as folder:
            row = endure(options.build, Path(folder), draw, training, min(options.each, options.kills - ends), result["kinds"])
        result["draws"] += 1
        if row is None:
            result["refused"].append(training["varied"])
            print(f"refused: {training['varied']}", flush=True)
            if len(result["refused"]) > 20 + len(result["trainings"]):
                sys.exit("more plans are refused than are trained: call `kuafu run` with one of them")
            continue
        result["trainings"].append(row)
        write(options.out, result)
        print(f"[{ends + len(row['ends'])}/{options.kills}] {row['world']} {' '.join(f'{k}={v}' for k, v in row['varied'].items())} "
              f"{' '.join(row['saving'])}: {', '.join(e['kind'] for e in row['ends'])}: {row['verdict']}", flush=True)
        for problem in row["problems"]:
            print(f"  {problem}", flush=True)
    different = [t for t in result["trainings"] if t["verdict"] != "equal"]
    print(f"{len(result['trainings'])} trainings, {sum(len(t['ends']) for t in result['trainings'])} ends, {len(different)} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
