#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans of three to six axes at once on 16 to 32 thread ranks: certified, their memory and traffic counted.

    .venv/bin/python experiments/composition/run.py [--build build/release] [--out results/composition] [--draw] [--quick]

Every plan trains the same model and batch on threads, is certified against one rank, and runs simulated as well. Writes
result.json, table.md and the figure; --quick runs the smallest plan only. Exits with 1 where a claim does not hold."""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "scripts" / "report"))

import experiment
import provenance
import style

# The ledger's axes by the kind of parallelism they belong to; every tensor scheme has its own.
AXES = {"data": ("data", "replica"), "pipeline": ("pipeline",), "tensor": ("tensor", "row", "col", "dep", "x", "y", "z"),
        "sequence": ("sequence",), "expert": ("expert",)}
HELD = ("parameter", "gradient", "optimizer", "activation")

def tensor(mode, size, depth=1):
    # 2.5D cuts a micro-batch's samples by rows and layers of its grid, 3D by two of its axes.
    samples = 4 if size == 8 else 2
    return {"parallel.tensor.mode": f'"{mode}"', "parallel.tensor.size": size, "parallel.tensor.depth": depth,
            "train.micro_batch": samples}


def pipeline(size, schedule, chunks=1):
    return {"parallel.pipeline.size": size, "parallel.pipeline.schedule": f'"{schedule}"', "parallel.pipeline.chunks": chunks}


def sequence(mode, size):
    return {"parallel.sequence.mode": f'"{mode}"', "parallel.sequence.size": size}


def data(size, zero=0, experts=1):
    return {"parallel.data.size": size, "parallel.zero": zero, "parallel.expert.size": experts}


# Name, ranks, axes. The batch of 24 divides by 1, 2, 3 and 4 replicas of micro-batches of 2, by 1 and 2 of 4.
CASES = (
    ("one rank", 1, data(1)),
    ("data 2 x pipeline 2 x 2.5D 4", 16, data(2) | pipeline(2, "1f1b") | tensor("2.5d", 4)),
    ("data 2 x pipeline 2 x 1D 2 x sequence 2", 16,
     data(2) | pipeline(2, "interleaved", 2) | tensor("1d", 2) | sequence("ring", 2)),
    ("data 2, experts over 2, x pipeline 2 x 2.5D 4, ZeRO-1", 16, data(2, 1, 2) | pipeline(2, "1f1b") | tensor("2.5d", 4)),
    ("pipeline 2 x 2.5D 8", 16, data(1) | pipeline(2, "gpipe") | tensor("2.5d", 8, 2)),
    ("data 3 x pipeline 2 x 2.5D 4, ZeRO-3", 24, data(3, 3) | pipeline(2, "1f1b") | tensor("2.5d", 4)),
    ("data 3 x pipeline 2 x 2D 4, ZeRO-2", 24, data(3, 2) | pipeline(2, "zbv", 2) | tensor("2d", 4)),
    ("pipeline 3 x 3D 8", 24, data(1) | pipeline(3, "1f1b") | tensor("3d", 8)),
    ("data 2 x pipeline 2 x 2.5D 8", 32, data(2) | pipeline(2, "1f1b") | tensor("2.5d", 8, 2)),
    ("data 2 x pipeline 2 x 2.5D 4 x sequence 2", 32, data(2) | pipeline(2, "1f1b") | tensor("2.5d", 4) | sequence("ulysses", 2)),
    ("data 2, experts over 2, x pipeline 2 x 2.5D 4 x sequence 2", 32,
     data(2, 0, 2) | pipeline(2, "1f1b") | tensor("2.5d", 4) | sequence("ring", 2)),
    ("data 4, experts over 2, x pipeline 2 x 1D-sp 2 x sequence 2, ZeRO-1", 32,
     data(4, 1, 2) | pipeline(2, "zero_bubble") | tensor("1d-sp", 2) | sequence("ring-zigzag", 2)),
)
QUICK = ("one rank", "data 2 x pipeline 2 x 1D 2 x sequence 2")


def run(build, ranks, settings, world):
    """The document of one run; refused plans end with their reason."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "document.json"
        words = [build / "bin" / "kuafu", "run", HERE / "plan.toml", "--ranks", ranks, "--world", world, "--json", file]
        words += ["--certify"] if world == "threads" else []
        for key, value in settings.items():
            words += ["--set", f"{key}={value}"]
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{settings} on {ranks} ranks, {world}: {done.stderr.strip()}")
        return json.loads(file.read_text())


def counted(document):
    """What must not depend on the world. A mixture's simulated traffic does not either: slots are full by capacity."""
    ledger = {name: {k: v for k, v in axis.items() if k not in ("wire_peers", "counting")}
              for name, axis in document["ledger"].items()}
    return [ledger, document["memory"]["peak_bytes"], document["memory"]["at_peak"], document["flops_per_step"]]


def received(document):
    """Of each axis: bytes a rank and step on the mean, the most messages, the most peers."""
    steps, ranks = document["plan"]["train"]["steps"], document["ranks"]
    return {axis: {"received": sum(entry["bytes_received"]) / steps / ranks, "messages": max(entry["messages"]) / steps,
                   "peers": max(entry["peers"])} for axis, entry in document["ledger"].items()}


def measure(build, name, ranks, settings):
    simulated, real = (run(build, ranks, settings, world) for world in ("simulated", "threads"))
    peaks = real["memory"]["peak_bytes"]
    fullest = peaks.index(max(peaks))
    certificate = {k: real["certificate"].get(k) for k in ("verdict", "level", "gradient_error", "tolerance")}
    return {"name": name, "ranks": ranks, "settings": settings, "certificate": certificate,
            "same_in_both_worlds": counted(real) == counted(simulated), "peak_bytes": max(peaks), "least_peak_bytes": min(peaks),
            "at_peak": real["memory"]["at_peak"][fullest], "axes": received(real), "flops_per_step": real["flops_per_step"],
            "router_flops": router_flops(real["plan"]), "loss": real["loss"]}


def router_flops(plan):
    """Of a step: tokens x hidden x experts, a multiply-add is two, forward and both gradients, every mixture block."""
    m = plan["model"]
    return plan["train"]["batch"] * m["sequence"] * m["hidden"] * m["experts"] * 2 * 3 * (m["layers"] // m["moe_every"])


def num_dimensions(row):
    """Kinds of parallelism with more than one rank; a scheme's own grid counts as one."""
    s = row["settings"]
    return sum(s.get(f"parallel.{kind}.size", 1) > 1 for kind in ("data", "pipeline", "tensor", "sequence", "expert"))


def verdicts(rows):
    one, others = rows[0], rows[1:]
    worst = max(others, key=lambda r: r["certificate"]["gradient_error"] / r["certificate"]["tolerance"])
    spread = max(abs(a / b - 1) for r in others for a, b in zip(r["loss"], one["loss"]))
    most = max(others, key=lambda r: r["peak_bytes"])
    again = [(r["flops_per_step"] - one["flops_per_step"]) / one["router_flops"] for r in others]
    return [
        {"claim": f"every plan is certified in full ({len(others)} plans, up to {max(map(num_dimensions, others))} kinds at once)",
         "found": f"largest gradient error {worst['certificate']['gradient_error']:.1e} of {worst['certificate']['tolerance']:.1e} "
                  f"({worst['name']})",
         "holds": all(r["certificate"]["verdict"] == "equal" and r["certificate"]["level"] == "full" for r in others)},
        {"claim": "traffic, messages, peaks and FLOPs are those of the simulated world, to the byte",
         "found": f"{sum(r['same_in_both_worlds'] for r in rows)} of {len(rows)}",
         "holds": all(r["same_in_both_worlds"] for r in rows)},
        {"claim": "FLOPs are one rank's, but for the router, which tensor ranks may repeat",
         "found": f"router {min(again):g} to {max(again):g} times more",
         "holds": all(a == int(a) and 0 <= a < r["settings"].get("parallel.tensor.size", 1) for a, r in zip(again, others))},
        {"claim": "losses equal one rank's (f64)", "found": f"{spread:.1e} apart", "holds": spread <= 1e-11},
        {"claim": "the fullest rank of every plan holds less than one rank alone",
         "found": f"at most {most['peak_bytes'] / one['peak_bytes']:.3f} ({most['name']})",
         "holds": most["peak_bytes"] < one["peak_bytes"]},
    ]


def by_kind(row):
    """KiB that a rank receives a step, by kind of parallelism; an axis of no kind is an error."""
    kinds = {axis: kind for kind, axes in AXES.items() for axis in axes}
    total = dict.fromkeys(AXES, 0.0)
    for axis, entry in row["axes"].items():
        total[kinds[axis]] += entry["received"] / 1024
    return total


def table(rows, checks):
    lines = [*experiment.claims(checks), ""]
    cells = []
    for r in rows:
        c, error = r["certificate"], r["certificate"]["gradient_error"]
        cells.append([r["name"], r["ranks"], f"{c['verdict']} ({c['level']})", "-" if error is None else f"{error:.1e}",
                      f"{r['peak_bytes'] / 1024:.1f}", f"{r['peak_bytes'] / rows[0]['peak_bytes']:.3f}",
                      *(f"{r['at_peak'][k] / 1024:.1f}" for k in HELD), *(f"{v:.1f}" for v in by_kind(r).values()),
                      f"{sum(by_kind(r).values()):.1f}", f"{sum(axis['messages'] for axis in r['axes'].values()):.0f}"])
    lines += ["KiB: what the fullest rank holds at its peak, and what a rank receives a step (mean of the ranks) by kind of parallelism.", ""]
    lines += experiment.markdown(["plan", "ranks", "certificate", "gradient error", "peak", "of one rank", *(f"{k}s" for k in HELD[:2]),
                                  HELD[2], f"{HELD[3]}s", *(f"{kind} received" for kind in AXES), "all received", "messages"], cells)
    return "\n".join(lines) + "\n"


def stack(panel, names, parts, colors, unit):
    """Horizontal bars made of parts, the sum written at the end of each."""
    past = [0.0] * len(names)
    for part, values in parts.items():
        if max(values) > 0:
            panel.barh(names, values, left=past, color=colors[part], label=part, height=0.72)
        past = [a + b for a, b in zip(past, values)]
    for y, total in enumerate(past):
        panel.annotate(f"{total:.0f}", (total, y), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7.5)
    panel.set(xlabel=unit, xlim=(0, max(past) * 1.1))
    panel.grid(visible=False, axis="y")
    panel.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=len(parts), fontsize=8, handlelength=1, columnspacing=1)


def draw(rows, out):
    names = [f"{r['name']}  ({r['ranks']} ranks)" if r["ranks"] > 1 else r["name"] for r in rows]
    figure, (left, right) = experiment.subplots(1, 2, figsize=(13, 0.36 * len(rows) + 1.6), sharey=True)
    stack(left, names, {kind: [r["at_peak"].get(kind, 0) / 1024 for r in rows] for kind in style.CATEGORIES}, style.CATEGORIES,
          "KiB that the fullest rank holds at its peak")
    received = [by_kind(r) for r in rows]
    stack(right, names, {kind: [r[kind] for r in received] for kind in AXES}, {kind: style.AXES[kind][0] for kind in AXES},
          "KiB that a rank receives a step, by kind of parallelism")
    left.invert_yaxis()
    experiment.save(figure, out, "composition")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "composition")
    experiment.add_draw(parser)
    parser.add_argument("--quick", action="store_true", help=f"of the plans: {QUICK[1]}")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "result.json"
    if not options.draw:
        result = {"provenance": provenance.begin(options.build, options.out), "rows": []}
        for name, ranks, settings in CASES:
            if options.quick and name not in QUICK:
                continue
            size = math.prod(v for k, v in settings.items() if k.endswith(".size") and "expert" not in k)
            assert size == ranks, (name, size)
            result["rows"].append(measure(options.build, name, ranks, settings))
            row = result["rows"][-1]
            print(f"{name}: {row['certificate']['verdict']}", file=sys.stderr)
            provenance.write(file, result)
    rows = json.loads(file.read_text())["rows"]
    checks = verdicts(rows)
    (options.out / "table.md").write_text(table(rows, checks))
    if options.draw != "tables":
        draw(rows, options.out)
    print("\n".join(experiment.claims(checks)))
    return 0 if all(c["holds"] for c in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
