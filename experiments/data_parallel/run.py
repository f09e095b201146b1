#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ring, tree, hierarchical sums and parameter servers over ranks and sizes; and what a slow replica costs each.

    .venv/bin/python experiments/data_parallel/run.py [--build build/release] [--out results/data_parallel] [--draw]

Writes result.json, table.md and the figures; --draw only draws what result.json holds."""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import closed_forms

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20]     # bytes of gradients
REAL = [(2, 1), (3, 3), (4, 2), (5, 5), (6, 3), (8, 4)]   # thread ranks, ranks a node
TIMED = (2, 4)
SIMULATED = [(8, 8), (16, 8), (64, 8), (256, 8), (1024, 8)]
STRAGGLERS = dict(ranks=4, base=10, factor=3, steps=24, rounds=7)
STALE = (1, 2, 4, 8)                               # bounds compared


def ways(ranks):
    """Every way for so many replicas to agree."""
    servers = sorted({1, max(1, ranks // 2), ranks})
    return ["auto", "ring", "tree", "hierarchical"] + [f"parameter_server:{s}" for s in servers]


def ask(program, *words):
    done = subprocess.run([str(w) for w in (program, *words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def sums(program, ranks, per_node, world, rounds):
    return ask(program, "sums", "--world", world, "--ranks", ranks, "--ranks-per-node", per_node, "--rounds", rounds,
               "--ways", ",".join(ways(ranks)), "--bytes", ",".join(map(str, SIZES)))


def digest(row):
    """A row with its closed form; traffic a rank becomes what claims and figures need."""
    n, m = row["ranks"], row["ranks_per_node"]
    form = closed_forms.received(row["way"], row["bytes"] // closed_forms.ELEMENT, n, m)
    counted = {label: [received for _, received, _ in ranks] for label, ranks in row["traffic"].items()}
    empty = [0] * n
    per_rank = [sum(columns) for columns in zip(*counted.values())]
    return {
        "world": row["world"], "ranks": n, "ranks_per_node": m, "way": row["way"], "bytes": row["bytes"],
        "received": {"mean": sum(per_rank) / n, "most": max(per_rank)},
        "between_nodes": max(counted.get("data.inter", empty)),
        "messages": max(sum(messages) for messages in
                        zip(*([k for _, _, k in ranks] for ranks in row["traffic"].values()))),
        "equals_closed_form": all(counted.get(label, empty) == form.get(label, empty)
                                  for label in set(counted) | set(form)),
        "traffic_of_all": {label: ranks for label, ranks in row["traffic"].items()} if n <= 8 else None,
        "seconds": statistics.median(row["seconds"]), "samples": len(row["seconds"]),
        "spread": [min(row["seconds"]), max(row["seconds"])],
    }


def measure(program):
    rows = []
    for ranks, per_node in REAL:
        print(f"{ranks} thread ranks", file=sys.stderr)
        rounds = 30 if ranks in TIMED else 3
        rows += [digest(r) for r in sums(program, ranks, per_node, "threads", rounds)["rows"]]
    for ranks, per_node in REAL + SIMULATED:
        print(f"{ranks} simulated ranks", file=sys.stderr)
        rows += [digest(r) for r in sums(program, ranks, per_node, "simulated", 1)["rows"]]
    slow, s = [], STRAGGLERS
    compared = ["auto", "ring", "tree", "parameter_server:1"] + [f"parameter_server:1:{k}" for k in STALE]
    for scenario in ("none", "constant", "rotating"):
        print(f"straggler: {scenario}", file=sys.stderr)
        answer = ask(program, "straggler", "--ranks", s["ranks"], "--ways", ",".join(compared), "--scenario", scenario,
                     "--base", s["base"], "--factor", s["factor"], "--steps", s["steps"], "--rounds", s["rounds"],
                     "--certify" if scenario == "none" else "--no-certify")
        slow += answer["rows"]
    return {"sizes": SIZES, "rows": rows, "stragglers": slow, "provenance": answer["provenance"]}


def verdicts(result):
    """Each a claim, what was found and whether it holds."""
    rows, slow = result["rows"], result["stragglers"]
    by = {(r["world"], r["ranks"], r["way"], r["bytes"]): r for r in rows}
    small, large = SIZES[0], SIZES[-1]
    pairs = [(r, by["simulated", r["ranks"], r["way"], r["bytes"]]) for r in rows if r["world"] == "threads"]
    rings = [r for r in rows if r["way"] == "ring" and r["bytes"] // 4 % r["ranks"] == 0]
    ring_error = max(abs(r["received"]["mean"] / (2 * (r["ranks"] - 1) / r["ranks"] * r["bytes"]) - 1) for r in rings)
    last = SIMULATED[-1][0]

    def at(way, size, ranks=last):
        return by["simulated", ranks, way, size]

    def step(scenario, way):
        return statistics.median(next(r for r in slow if (r["scenario"], r["way"]) == (scenario, way))["seconds_per_step"])

    constant = step("constant", "ring") / step("none", "ring")
    stale = f"parameter_server:1:{STALE[-1]}"
    rotating = {w: step("rotating", w) / step("none", w) for w in ("ring", "parameter_server:1", stale)}
    n, f = STRAGGLERS["ranks"], STRAGGLERS["factor"]
    mean = 1 + (f - 1) / n
    hub, all_serve = at("parameter_server:1", large), at(f"parameter_server:{last}", large)
    return [
        {"claim": "counted bytes equal the closed forms, every rank, way, size and world", "found": f"{len(rows)} rows",
         "holds": all(r["equals_closed_form"] for r in rows)},
        {"claim": "simulated ranks count what thread ranks do", "found": f"{len(pairs)} pairs",
         "holds": all(a["traffic_of_all"] == b["traffic_of_all"] for a, b in pairs)},
        {"claim": "a ring receives 2(n-1)/n of the gradients", "found": f"largest relative error {ring_error:.1e}",
         "holds": ring_error < 1e-12},
        {"claim": f"one server receives n - 1 times the gradients; where all {last} serve, what a ring does",
         "found": f"{hub['received']['most'] / large:.1f} x, {all_serve['received']['mean'] / at('ring', large)['received']['mean']:.6f} of the ring",
         "holds": hub["received"]["most"] == (last - 1) * large
         and all_serve["received"]["mean"] == at("ring", large)["received"]["mean"]},
        {"claim": f"small gradients: on {last} ranks a tree beats a ring (latencies 2 log n against 2 (n-1))",
         "found": f"{at('ring', small)['seconds'] / at('tree', small)['seconds']:.1f} x",
         "holds": at("tree", small)["seconds"] < at("ring", small)["seconds"]},
        {"claim": f"large gradients: on {last} ranks in nodes of 8, sums inside nodes first beat a flat ring and a tree",
         "found": " < ".join(f"{at(w, large)['seconds'] * 1e3:.1f} ms" for w in ("hierarchical", "ring", "tree")),
         "holds": at("hierarchical", large)["seconds"] < min(at("ring", large)["seconds"], at("tree", large)["seconds"])},
        {"claim": "one server's time grows with the ranks, a ring's bandwidth part does not: 64 against 8 ranks, large",
         "found": f"{at('parameter_server:1', large, 64)['seconds'] / at('parameter_server:1', large, 8)['seconds']:.1f} x against "
                  f"{at('ring', large, 64)['seconds'] / at('ring', large, 8)['seconds']:.1f} x",
         "holds": at("parameter_server:1", large, 64)["seconds"] / at("parameter_server:1", large, 8)["seconds"]
         > at("ring", large, 64)["seconds"] / at("ring", large, 8)["seconds"]},
        {"claim": "every way trains as one rank does (certificates)", "found": ", ".join(
            f"{r['way']}: {r['verdict']}" for r in slow if r["scenario"] == "none"),
         "holds": all(r["verdict"] == "equal" for r in slow if r["scenario"] == "none")},
        {"claim": f"a replica {f} times slower slows a ring's step {f} times (within 15 %)", "found": f"{constant:.2f} x",
         "holds": abs(constant / f - 1) < 0.15},
        {"claim": "a slow replica that stays slow is waited for under every bound: within 25 % of the ring",
         "found": f"{step('constant', stale) / step('constant', 'ring'):.2f} of the ring's step",
         "holds": 0.6 < step("constant", stale) / step("constant", "ring") < 1.25},
        {"claim": f"slowness that goes around costs a ring the slowest of each step, {f} x, and stale pushes little more than the mean, "
                  f"{mean:.2f} x (within 20 %)",
         "found": f"ring {rotating['ring']:.2f} x, synchronous server {rotating['parameter_server:1']:.2f} x, "
                  f"staleness {STALE[-1]} {rotating[stale]:.2f} x",
         "holds": rotating["ring"] > 0.85 * f and rotating[stale] < 1.2 * mean},
    ]


def table(result):
    lines = ["| ranks | nodes of | way | gradients | worlds | received a rank, mean | most | / gradients | messages | "
             "threads, us | simulated, us |", "|" + "---|" * 11]
    by = {(r["world"], r["ranks"], r["way"], r["bytes"]): r for r in result["rows"]}
    for (world, ranks, way, size), r in by.items():
        if world == "threads":
            continue
        real = by.get(("threads", ranks, way, size))
        lines.append(f"| {ranks} | {r['ranks_per_node']} | {way} | {size >> 10} KiB | {'both' if real else 'simulated'} | "
                     f"{r['received']['mean']:.0f} | {r['received']['most']} | {r['received']['mean'] / size:.3f} | "
                     f"{r['messages']} | {'%.0f' % (real['seconds'] * 1e6) if real and ranks in TIMED else '-'} | "
                     f"{r['seconds'] * 1e6:.0f} |")
    lines += ["", "| straggler | way | ms a step, median | fastest, slowest round | of no straggler | last loss | pushes behind: how often |",
              "|" + "---|" * 7]
    base = {r["way"]: statistics.median(r["seconds_per_step"]) for r in result["stragglers"] if r["scenario"] == "none"}
    for r in result["stragglers"]:
        ms = [1e3 * s for s in r["seconds_per_step"]]
        behind = r.get("behind", {})
        total = sum(behind.values())
        mean = sum(int(k) * v for k, v in behind.items()) / total if total else 0
        lines.append(f"| {r['scenario']} | {r['way']} | {statistics.median(ms):.1f} | {min(ms):.1f}, {max(ms):.1f} | "
                     f"{statistics.median(ms) / 1e3 / base[r['way']]:.2f} | {statistics.median(r['loss']):.3f} | "
                     f"{'mean %.1f updates' % mean if total else '-'} |")
    lines += ["", "| claim | found | holds |", "|---|---|---|"]
    lines += [f"| {c['claim']} | {c['found']} | {'yes' if c['holds'] else 'NO'} |" for c in result["verdicts"]]
    return "\n".join(lines) + "\n"


def draw(result, out):
    sys.path.insert(0, str(ROOT / "scripts" / "report"))
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import style
    looks = {"ring": (style.BLUE, "s", "ring"), "tree": (style.GREEN, "^", "tree"),
             "hierarchical": (style.VERMILION, "D", "inside nodes, then between"),
             "one": (style.ORANGE, "v", "one server"), "all": (style.PINK, "P", "all serve")}

    def way_of(look, ranks):
        return {"one": "parameter_server:1", "all": f"parameter_server:{ranks}"}.get(look, look)

    by = {(r["world"], r["ranks"], r["way"], r["bytes"]): r for r in result["rows"]}
    ranks = sorted({r["ranks"] for r in result["rows"]})
    many = [n for n, _ in SIMULATED]
    figure, panels = plt.subplots(1, 3, figsize=(13.2, 4.2), layout="constrained")
    large, small = SIZES[-1], SIZES[0]
    for look, (color, marker, label) in looks.items():
        def series(size, value, over):
            return [value(by["simulated", n, way_of(look, n), size]) for n in over]
        panels[0].plot(ranks, series(large, lambda r: r["received"]["most"] / large, ranks), marker=marker, color=color, label=label)
        panels[1].plot(many, series(large, lambda r: r["seconds"] * 1e3, many), marker=marker, color=color)
        panels[1].plot(many, series(small, lambda r: r["seconds"] * 1e3, many), marker=marker, color=color, linestyle=":")
    panels[0].plot(ranks, [2 * (n - 1) / n for n in ranks], color=style.INK, linewidth=0.8, label="2 (n-1)/n")
    panels[0].set(title="received by the busiest rank / gradients", yscale="log")
    panels[1].set(title="simulated ms; solid 16 MiB, dotted 4 KiB", yscale="log")
    for panel in panels[:2]:
        panel.set(xscale="log", xlabel="replicas")
        panel.minorticks_off()
        panel.grid(color=style.GRID)
    panels[0].set_xticks([2, 4, 8, 64, 1024], ["2", "4", "8", "64", "1024"])
    panels[1].set_xticks(many, [str(n) for n in many])
    panels[0].legend(frameon=False, fontsize=8)
    names = list(dict.fromkeys(r["way"] for r in result["stragglers"]))
    shades = {"none": style.GREY, "constant": style.VERMILION, "rotating": style.SKY}
    for i, (scenario, color) in enumerate(shades.items()):
        rows = {r["way"]: r for r in result["stragglers"] if r["scenario"] == scenario}
        middle = [1e3 * statistics.median(rows[w]["seconds_per_step"]) for w in names]
        low = [m - 1e3 * min(rows[w]["seconds_per_step"]) for m, w in zip(middle, names)]
        high = [1e3 * max(rows[w]["seconds_per_step"]) - m for m, w in zip(middle, names)]
        panels[2].bar([x + 0.27 * (i - 1) for x in range(len(names))], middle, 0.26, yerr=[low, high], color=color,
                      label={"none": "no straggler", "constant": "one replica slow", "rotating": "a slow replica each step"}[scenario])
    short = [w.replace("parameter_server:1:", "server, stale ").replace("parameter_server:1", "server") for w in names]
    panels[2].set_xticks(range(len(names)), short, rotation=40, ha="right", fontsize=8)
    panels[2].set(title="ms a step on 4 thread ranks")
    panels[2].legend(frameon=False, fontsize=8)
    for kind in ("svg", "png"):
        figure.savefig(out / f"data_parallel.{kind}", dpi=130, metadata={"Date": None} if kind == "svg" else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--out", default="results/data_parallel")
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    out = ROOT / options.out
    out.mkdir(parents=True, exist_ok=True)
    file = out / "result.json"
    if not options.draw:
        result = measure(ROOT / options.build / "bin" / "data_parallel")
        file.write_text(json.dumps(result, indent=1) + "\n")
    result = json.loads(file.read_text())
    result["verdicts"] = verdicts(result)
    file.write_text(json.dumps(result, indent=1) + "\n")
    (out / "table.md").write_text(table(result))
    draw(result, out)
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
