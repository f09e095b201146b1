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


def measure(build, name, ranks, settings):
    simulated, real = (run(build, ranks, settings, world) for world in ("simulated", "threads"))
    steps = real["plan"]["train"]["steps"]
    peaks = real["memory"]["peak_bytes"]
    fullest = peaks.index(max(peaks))
    axes = {axis: {"received": sum(entry["bytes_received"]) / steps / ranks, "messages": max(entry["messages"]) / steps,
                   "peers": max(entry["peers"])} for axis, entry in real["ledger"].items()}
    certificate = {k: real["certificate"].get(k) for k in ("verdict", "level", "gradient_error", "tolerance")}
    return {"name": name, "ranks": ranks, "settings": settings, "certificate": certificate,
            "same_in_both_worlds": counted(real) == counted(simulated), "peak_bytes": max(peaks), "least_peak_bytes": min(peaks),
            "at_peak": real["memory"]["at_peak"][fullest], "axes": axes, "flops_per_step": real["flops_per_step"],
            "router_flops": router_flops(real["plan"]), "loss": real["loss"]}, real["provenance"]


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


def table(rows, checks):
    lines = ["| claim | found | holds |", "|---|---|---|"]
    lines += [f"| {c['claim']} | {c['found']} | {'yes' if c['holds'] else 'NO'} |" for c in checks]
    lines += ["", "| plan | ranks | certificate | gradient error | peak of the fullest rank, KiB | of one rank | parameters | gradients | "
              "optimizer | activations | received a rank and step by axis, KiB | messages |", "|" + "---|" * 12]
    for r in rows:
        c, kinds = r["certificate"], ("parameter", "gradient", "optimizer", "activation")
        axes = ", ".join(f"{name} {axis['received'] / 1024:.1f}" for name, axis in r["axes"].items()) or "-"
        error = "-" if c["gradient_error"] is None else f"{c['gradient_error']:.1e}"
        held = " | ".join(f"{r['at_peak'][k] / 1024:.1f}" for k in kinds)
        lines.append(f"| {r['name']} | {r['ranks']} | {c['verdict']} ({c['level']}) | {error} | {r['peak_bytes'] / 1024:.1f} | "
                     f"{r['peak_bytes'] / rows[0]['peak_bytes']:.3f} | {held} | {axes} | "
                     f"{sum(axis['messages'] for axis in r['axes'].values()):.0f} |")
    return "\n".join(lines) + "\n"


def draw(rows, out):
    sys.path.insert(0, str(ROOT / "scripts" / "report"))
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import style
    names = [f"{r['name']} ({r['ranks']})" if r["ranks"] > 1 else r["name"] for r in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 0.36 * len(rows) + 1.6), layout="constrained", sharey=True)
    past = [0.0] * len(rows)
    for kind, color in style.CATEGORIES.items():
        values = [r["at_peak"].get(kind, 0) / 1024 for r in rows]
        if max(values) == 0:
            continue
        left.barh(names, values, left=past, color=color, label=kind)
        past = [a + b for a, b in zip(past, values)]
    axes = list(dict.fromkeys(axis for r in rows for axis in r["axes"]))
    looks = style.palette(axes, style.AXES)
    past = [0.0] * len(rows)
    for axis in axes:
        values = [r["axes"].get(axis, {"received": 0})["received"] / 1024 for r in rows]
        right.barh(names, values, left=past, color=looks[axis][0], label=axis)
        past = [a + b for a, b in zip(past, values)]
    left.invert_yaxis()
    left.set(xlabel="KiB of the fullest rank at its peak", xscale="linear")
    right.set(xlabel="KiB a rank receives a step")
    for panel in (left, right):
        panel.grid(color=style.GRID, axis="x")
        panel.set_axisbelow(True)
        panel.legend(frameon=False, fontsize=8, loc="lower right")
    for kind in ("svg", "png"):
        figure.savefig(out / f"composition.{kind}", dpi=130, metadata={"Date": None} if kind == "svg" else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "composition")
    parser.add_argument("--draw", action="store_true", help="draw what result.json holds")
    parser.add_argument("--quick", action="store_true", help=f"of the plans: {QUICK[1]}")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "result.json"
    if not options.draw:
        result = {"rows": []}
        for name, ranks, settings in CASES:
            if options.quick and name not in QUICK:
                continue
            size = math.prod(v for k, v in settings.items() if k.endswith(".size") and "expert" not in k)
            assert size == ranks, (name, size)
            row, result["provenance"] = measure(options.build, name, ranks, settings)
            result["rows"].append(row)
            print(f"{name}: {row['certificate']['verdict']}", file=sys.stderr)
            file.write_text(json.dumps(result, indent=1) + "\n")
    rows = json.loads(file.read_text())["rows"]
    checks = verdicts(rows)
    (options.out / "table.md").write_text(table(rows, checks))
    draw(rows, options.out)
    print(table(rows, checks).split("\n\n")[0])
    return 0 if all(c["holds"] for c in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
