#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory, traffic and step time a device as experts grow with devices, one expert a device, to 2048 simulated ranks.

    .venv/bin/python experiments/moe_scaling/run.py [--build build/release] [--out results/moe_scaling] [--draw]

Writes result.json, table.md and the figure; --draw only draws what result.json holds."""

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

RANKS = (2, 8, 32, 128, 512, 2048)
REAL = (2, 4)                 # spot-checks on threads, at a size that fits there
SAMPLES = 2                   # a device
LINKS, LINK_GBS = 4, 70.0     # of a core on the 2D torus
CLAIM = {"from": 128, "to": 2048, "time": 1.7}
# The smaller shape of the spot-checks: the counted numbers must be equal, not alike.
SMALL = {"model.layers": 2, "model.hidden": 32, "model.heads": 4, "model.ffn": 64, "model.vocab": 256,
         "model.sequence": 32}


def torus_gbs(ranks):
    """What a core of a sqrt(P) x sqrt(P) torus can send when all talk to all: a message crosses sqrt(P) / 2 links on
    average, so P cores with 4 links each share them out as 8 B / sqrt(P), at most all four."""
    return min(LINKS * LINK_GBS, 2 * LINKS * LINK_GBS / math.sqrt(ranks))


def run(build, ranks, world, settings):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "document.json"
        given = {"model.experts": max(2, ranks), "parallel.data": ranks, "parallel.expert.size": ranks,
                 "train.batch": SAMPLES * ranks, **settings}
        command = [str(build / "bin" / "kuafu"), "run", str(HERE / "plan.toml"), "--world", world, "--ranks", str(ranks),
                   "--json", str(file), *(["--certify"] if world == "threads" else [])]
        for key, value in given.items():
            command += ["--set", f"{key}={value}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(file.read_text())


def measure(build, ranks):
    row = {"ranks": ranks, "experts": max(2, ranks)}
    for network, gbs in (("flat", LINKS * LINK_GBS), ("torus", torus_gbs(ranks))):
        d = run(build, ranks, "simulated", {"cluster.inter_bandwidth_gbs": gbs, "cluster.intra_bandwidth_gbs": gbs})
        row[f"step_s_{network}"] = d["step_time_s"]["median"]
    steps = d["plan"]["train"]["steps"]
    row["peak_bytes"] = max(d["memory"]["peak_bytes"])
    row["at_peak"] = d["memory"]["at_peak"][0]
    row["flops_per_device"] = d["flops_per_step"] / ranks
    for axis in ("expert", "data"):
        row[f"{axis}_bytes"] = d["ledger"].get(axis, {"bytes_received": [0]})["bytes_received"][0] / steps
    return row


def spot_checks(build):
    checks = []
    for ranks in REAL:
        pair = [run(build, ranks, world, SMALL) for world in ("threads", "simulated")]
        same = (pair[0]["ledger"] == pair[1]["ledger"] and pair[0]["flops_per_step"] == pair[1]["flops_per_step"]
                and pair[0]["memory"]["peak_bytes"] == pair[1]["memory"]["peak_bytes"])
        checks.append({"ranks": ranks, "equal": same, "experts": pair[0]["experts"]["tokens"],
                       "certificate": experiment.proof(pair[0])})
    return checks


def verdicts(rows, checks):
    at = {row["ranks"]: row for row in rows}
    low, high = at[CLAIM["from"]], at[CLAIM["to"]]
    memory = high["peak_bytes"] / low["peak_bytes"]
    flat = high["step_s_flat"] / low["step_s_flat"]
    torus = high["step_s_torus"] / low["step_s_torus"]
    return [
        {"claim": "simulated ranks count what real ranks do", "value": all(c["equal"] for c in checks),
         "holds": all(c["equal"] for c in checks)},
        *({**claim, "value": claim["found"]} for claim in experiment.proven(c["certificate"] for c in checks if "certificate" in c)),
        {"claim": "memory a device stays constant from 128 to 2048 devices (within 5 %)", "value": memory,
         "holds": abs(memory - 1) <= 0.05},
        {"claim": "16x experts cost 1.7x the time (within 20 %), torus", "value": torus,
         "holds": abs(torus / CLAIM["time"] - 1) <= 0.2},
        {"claim": "16x experts cost 1.7x the time (within 20 %), links that never share", "value": flat,
         "holds": abs(flat / CLAIM["time"] - 1) <= 0.2},
    ]


def table(rows, judged):
    lines = ["| ranks = experts | peak, MiB | parameters, MiB | activations, MiB | GFLOP a device | all-to-all, MiB a step | "
             "all-reduce, MiB a step | step on a torus, s | step, flat, s |", "|" + "---|" * 9]
    for r in rows:
        mib = [r["peak_bytes"], r["at_peak"]["parameter"], r["at_peak"]["activation"]]
        lines.append(f"| {r['ranks']} | " + " | ".join(f"{b / 2**20:.1f}" for b in mib) +
                     f" | {r['flops_per_device'] / 1e9:.1f} | {r['expert_bytes'] / 2**20:.1f} | "
                     f"{r['data_bytes'] / 2**20:.1f} | {r['step_s_torus']:.4f} | {r['step_s_flat']:.4f} |")
    lines += ["", "| claim | value | holds |", "|---|---|---|"]
    lines += [f"| {v['claim']} | {v['value'] if isinstance(v['value'], bool) else round(v['value'], 3) if isinstance(v['value'], float) else v['value']} | "
              f"{'yes' if v['holds'] else 'no'} |" for v in judged]
    return "\n".join(lines) + "\n"


def draw(result, out):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    rows = result["rows"]
    ranks = [r["ranks"] for r in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for name in rows[0]["at_peak"]:
        values = [r["at_peak"][name] / 2**20 for r in rows]
        if max(values) > 0:
            left.plot(ranks, values, marker="o", label=name)
    left.plot(ranks, [r["peak_bytes"] / 2**20 for r in rows], marker="o", color="black", label="all")
    left.set(xscale="log", xlabel="devices = experts", ylabel="MiB a device at the peak", ylim=(0, None))
    base = next((r for r in rows if r["ranks"] == CLAIM["from"]), rows[-1])
    for network in ("torus", "flat"):
        key = f"step_s_{network}"
        right.plot(ranks, [r[key] / base[key] for r in rows], marker="o", label=network)
    right.plot([CLAIM["from"], CLAIM["to"]], [1, CLAIM["time"]], "k--", label="GShard, published")
    right.set(xscale="log", xlabel="devices = experts", ylabel=f"step time, of that of {base['ranks']}", ylim=(0, None))
    left.legend(fontsize=8, ncols=2, loc="upper right", bbox_to_anchor=(1, 0.9))     # between the curves
    right.legend(fontsize=8)
    for suffix in ("svg", "png"):
        figure.savefig(out / f"moe_scaling.{suffix}", metadata={"Date": None} if suffix == "svg" else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "moe_scaling")
    parser.add_argument("--most", type=int, default=max(RANKS), help="most simulated ranks")
    experiment.add_draw(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "result.json"
    if not options.draw:
        before = provenance.begin(options.build, options.out)
        rows = []
        for ranks in (r for r in RANKS if r <= options.most):
            rows.append(measure(options.build, ranks))
            print(f"{ranks} ranks: {rows[-1]['peak_bytes'] / 2**20:.1f} MiB", flush=True)
        checks = spot_checks(options.build)
        result = {"provenance": before, "rows": rows, "spot_checks": checks}
        if options.most >= CLAIM["to"]:
            result["verdicts"] = verdicts(rows, checks)
        provenance.write(file, result)
    result = json.loads(file.read_text())
    text = table(result["rows"], result.get("verdicts", []))
    (options.out / "table.md").write_text(text)
    if options.draw != "tables":
        draw(result, options.out)
    print(text)


if __name__ == "__main__":
    main()
