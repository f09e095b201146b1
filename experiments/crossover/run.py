#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which tensor scheme is fastest, over ranks x batch x sequence x link; and the papers' speed-ups on their clusters.

    .venv/bin/python experiments/crossover/run.py [--build build/release] [--out results/crossover] [--draw]

Every number is a simulated run of the rank program (its ledger replayed by the alpha-beta clock). Under that clock a step
takes a latency + b / bandwidth + c: three runs give a, b, c of a case, a fourth on another link checks them, and the map over
links follows. --draw only draws what result.json holds."""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "scripts" / "report"))

import experiment
import provenance

SCHEMES = {
    4: [("1d", 1), ("1d-sp", 1), ("2d", 1)],
    8: [("1d", 1), ("1d-sp", 1), ("2.5d", 2), ("3d", 1)],
    16: [("1d", 1), ("1d-sp", 1), ("2d", 1), ("2.5d", 4)],
    64: [("1d", 1), ("1d-sp", 1), ("2d", 1), ("2.5d", 4), ("3d", 1)],
}
WORK = [(16, 512), (256, 512), (16, 4096)]                  # batch, sequence
PROBES = {"slow": (100.0, 1.0), "late": (200.0, 1.0), "wide": (100.0, 2.0)}  # latency us, bandwidth GB/s
CHECK = (20.0, 10.0)
LATENCIES = [0.5, 1, 2, 5, 10, 20, 50, 100]                 # us
BANDWIDTHS = [1, 2, 5, 10, 25, 50, 100, 200]                # GB/s
NAMES = {"1d": "1D tensor", "1d-sp": "1D-sp", "2d": "2D tensor", "2.5d": "2.5D tensor", "3d": "3D tensor"}


def simulate(kuafu, sets):
    """Seconds of a step and bytes received by the busiest rank."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        words = [kuafu, "run", HERE / "plan.toml", "--world", "simulated", "--json", out]
        for key, value in sets.items():
            words += ["--set", f"{key}={value}"]
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{sets}: {done.stderr.strip()}")
        doc = json.loads(out.read_text())
    received = [sum(r) for r in zip(*(axis["bytes_received"] for axis in doc["ledger"].values()))]
    return doc["step_time_s"]["median"], max(received, default=0)


def tensor(mode, size, depth):
    return f'{{ mode = "{mode}", size = {size}, depth = {depth} }}'


def link(latency_us, bandwidth_gbs):
    return {f"cluster.{where}_{what}": value for where in ("intra", "inter")
            for what, value in (("latency_us", latency_us), ("bandwidth_gbs", bandwidth_gbs))}


def coefficients(kuafu, ranks, mode, depth, batch, sequence):
    """a, b, c of seconds = a latency_us + b / bandwidth_gbs + c."""
    sets = {"parallel.tensor": tensor(mode, ranks, depth), "train.batch": batch, "model.sequence": sequence}
    times, received = {}, 0
    for name, at in PROBES.items():
        times[name], received = simulate(kuafu, sets | link(*at))
    a = (times["late"] - times["slow"]) / 100
    b = (times["slow"] - times["wide"]) / 0.5
    c = times["slow"] - 100 * a - b
    row = {"ranks": ranks, "scheme": mode, "depth": depth, "batch": batch, "sequence": sequence, "per_latency_us": a,
           "per_bandwidth_gbs": b, "compute_s": c, "received_bytes": received}
    if (batch, sequence) == WORK[0]:
        checked, _ = simulate(kuafu, sets | link(*CHECK))
        row["check_error"] = seconds(row, *CHECK) / checked - 1
    return row


def seconds(row, latency_us, bandwidth_gbs):
    return row["per_latency_us"] * latency_us + row["per_bandwidth_gbs"] / bandwidth_gbs + row["compute_s"]


def claims(kuafu):
    papers = tomllib.loads((HERE / "papers.toml").read_text())
    rows = []
    for claim in papers["claim"]:
        time = {}
        for side in ("fast", "slow"):
            sets = {f"model.{k}": v for k, v in papers["assumed"].items()}
            sets |= {f"cluster.{k}": v for k, v in papers["cluster"][claim["cluster"]].items()}
            t = claim[side]
            sets |= {"model.hidden": claim["hidden"], "train.batch": claim["batch"], "memory.recompute": "full",
                     "parallel.tensor": tensor(t["mode"], t["size"], t["depth"])}
            time[side], _ = simulate(kuafu, sets)
        ratio = time["slow"] / time["fast"]
        rows.append({"id": claim["id"], "source": claim["source"], "published": claim["published"], "simulated": ratio,
                     "error": ratio / claim["published"] - 1, "fast_s": time["fast"], "slow_s": time["slow"],
                     "direction_holds": ratio > 1, "within_20_percent": abs(ratio / claim["published"] - 1) <= 0.2})
    return rows


def winners(rows, ranks, batch, sequence):
    """(latency, bandwidth) -> (scheme, how many times the second is slower)."""
    own = [r for r in rows if (r["ranks"], r["batch"], r["sequence"]) == (ranks, batch, sequence)]
    out = {}
    for latency in LATENCIES:
        for bandwidth in BANDWIDTHS:
            order = sorted(own, key=lambda r: seconds(r, latency, bandwidth))
            out[latency, bandwidth] = (order[0]["scheme"], seconds(order[1], latency, bandwidth)
                                       / seconds(order[0], latency, bandwidth))
    return out


def draw(rows, out):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch
    import style
    figure, panels = plt.subplots(len(WORK), len(SCHEMES), figsize=(13, 3.1 * len(WORK)), layout="constrained")
    for line, (batch, sequence) in zip(panels, WORK):
        for panel, ranks in zip(line, SCHEMES):
            for (latency, bandwidth), (scheme, lead) in winners(rows, ranks, batch, sequence).items():
                x, y = BANDWIDTHS.index(bandwidth), LATENCIES.index(latency)
                color, _ = style.STRATEGIES[NAMES[scheme]]
                panel.add_patch(plt.Rectangle((x, y), 1, 1, color=color, alpha=0.85))
                panel.text(x + 0.5, y + 0.5, f"{lead:.2f}", ha="center", va="center", fontsize=6)
            panel.set(xlim=(0, len(BANDWIDTHS)), ylim=(0, len(LATENCIES)))
            panel.set_title(f"{ranks} ranks, batch {batch}, sequence {sequence}", fontsize=9)
            panel.set_xticks([i + 0.5 for i in range(len(BANDWIDTHS))], BANDWIDTHS, fontsize=7)
            panel.set_yticks([i + 0.5 for i in range(len(LATENCIES))], LATENCIES, fontsize=7)
            panel.set_xlabel("GB/s", fontsize=7)
            panel.set_ylabel("latency, us", fontsize=7)
    figure.legend(handles=[Patch(color=style.STRATEGIES[n][0], label=n) for n in NAMES.values()], ncols=len(NAMES),
                  loc="outside upper center", title="fastest scheme; the number: how many times the second takes longer")
    for kind in ("svg", "png"):
        figure.savefig(out / f"map.{kind}", dpi=110, metadata={"Date": None} if kind == "svg" else None)


def page(rows, checks):
    lines = experiment.markdown(
        ("claim", "source", "published", "simulated", "error", "faster", "within 20 %"),
        [(c["id"], c["source"], c["published"], f"{c['simulated']:.2f}", f"{c['error']:+.0%}",
          "yes" if c["direction_holds"] else "NO", "yes" if c["within_20_percent"] else "no") for c in checks])
    worst = max(abs(r["check_error"]) for r in rows if "check_error" in r)
    lines += ["", f"Time is a latency + b / bandwidth + c; largest error of that on a link it was not made from: {worst:.1e}.", ""]
    lines += experiment.markdown(
        ("ranks", "batch", "sequence", "scheme", "s per us of latency", "s x GB/s", "compute, s", "received, bytes"),
        [(r["ranks"], r["batch"], r["sequence"], r["scheme"], f"{r['per_latency_us']:.2e}", f"{r['per_bandwidth_gbs']:.3e}",
          f"{r['compute_s']:.2e}", r["received_bytes"]) for r in rows])
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--out", default="results/crossover")
    experiment.add_draw(parser)
    options = parser.parse_args()
    out = ROOT / options.out
    out.mkdir(parents=True, exist_ok=True)
    if not options.draw:
        before = provenance.begin(ROOT / options.build, out)
        kuafu = ROOT / options.build / "bin" / "kuafu"
        cases = [(ranks, mode, depth, batch, sequence) for batch, sequence in WORK for ranks, schemes in SCHEMES.items()
                 for mode, depth in schemes]
        rows = []
        for i, case in enumerate(cases):
            print(f"[{i + 1}/{len(cases)}] {case[1]} on {case[0]} ranks, batch {case[3]}, sequence {case[4]}", file=sys.stderr)
            rows.append(coefficients(kuafu, *case))
        provenance.write(out / "result.json", {"trains": False, "provenance": before, "rows": rows, "claims": claims(kuafu)})
    result = json.loads((out / "result.json").read_text())
    (out / "table.md").write_text(page(result["rows"], result["claims"]))
    if options.draw != "tables":
        draw(result["rows"], out)
    print(page(result["rows"], result["claims"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
