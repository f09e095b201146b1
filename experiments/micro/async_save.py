#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a save costs the step beside it, asynchronous and not, against the quiet steps of the same run.

    .venv/bin/python experiments/micro/async_save.py [--print]

The steps that are timed are certified.

Trains a GPT on two data-parallel thread ranks and saves after every 8th step, with --async and without, in turns in
one go. A step with a save is the time that saving held the run up plus the step that runs while files are written; a
quiet step is one of the last four before the next save. Keeps the times under results/benchmarks/ and prints medians
and ratios; --print only prints those that are there."""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts" / "report"))

import provenance

OUT = ROOT / "results" / "benchmarks" / "async_save.json"
EVERY, STEPS, TURNS = 8, 64, 5
PLAN = """
[model]
layers = 4
hidden = 256
heads = 8
vocab = 256
sequence = 128
[parallel]
data = 2
[data]
kind = "synthetic"
[train]
batch = 8
validation_batches = 0
"""


def run(options: list) -> dict:
    """Step and saving times of one run, and the bytes of a save."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        plan, document = Path(folder) / "plan.toml", Path(folder) / "document.json"
        plan.write_text(PLAN)
        subprocess.run([ROOT / "build/release/bin/kuafu", "run", plan, "--steps", str(STEPS), "--json", document,
                        "--checkpoint", Path(folder) / "saved", "--every", str(EVERY), "--keep", "1", "--certify",
                        *options],
                       cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        d = json.loads(document.read_text())
    saves = d["checkpoint"]
    return {"steps": d["step_time_s"]["samples"], "saving": saves["samples"],
            "bytes": sum(saves["bytes"]) // saves["saves"],
            "certificate": {key: d["certificate"].get(key) for key in ("verdict", "level", "reason")}}


def measure() -> None:
    before = provenance.begin(ROOT / "build" / "release", OUT)
    runs = []
    for turn in range(TURNS):
        for save, options in (("async", ["--async"]), ("waiting", [])):
            print(f"turn {turn + 1} of {TURNS}: {save}", file=sys.stderr)
            runs.append({"save": save} | run(options))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    provenance.write(OUT, {"benchmark": "async_save", "provenance": before, "runs": runs})


def summary(runs: list) -> dict:
    quiet, loaded, held = [], [], []
    for r in runs:
        for save in range(EVERY, STEPS, EVERY):  # the last one is waited for: the run ends
            held.append(r["saving"][save - 1])
            loaded.append(r["saving"][save - 1] + r["steps"][save])
            quiet += r["steps"][save - 4:save]
    return {"quiet": statistics.median(quiet), "loaded": statistics.median(loaded),
            "held": statistics.median(held)}


def table() -> str:
    runs = json.loads(OUT.read_text())["runs"]
    rows = [f"a save is {runs[0]['bytes'] / 1e6:.1f} MB", "",
            "| save | quiet step, ms | step with a save, ms | of it held up, ms | ratio |", "|" + "---|" * 5]
    for kind, label in (("async", "asynchronous"), ("waiting", "waited for")):
        s = summary([r for r in runs if r["save"] == kind])
        rows.append(f"| {label} | {s['quiet'] * 1e3:.1f} | {s['loaded'] * 1e3:.1f} | {s['held'] * 1e3:.1f} "
                    f"| {s['loaded'] / s['quiet']:.3f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--print"]):
        sys.exit(__doc__)
    if not sys.argv[1:]:
        measure()
    print(table())
