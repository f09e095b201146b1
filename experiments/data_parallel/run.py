#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ring, tree, hierarchical sums and parameter servers over ranks and sizes; and what a slow replica costs each.

    .venv/bin/python experiments/data_parallel/run.py [--build build/release] [--out results/data_parallel] [--draw]
        [--parts counts,times,none,constant,rotating]

Writes result.json, table.md and the figures; --draw only draws what result.json holds. All parts but `counts` are timed: each can
be run on its own, when the machine is quiet, and replaces what the result has of it. Exits with 1 where a claim does not hold."""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import closed_forms

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "scripts" / "report"))

import experiment
import provenance
import style

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20]     # bytes of gradients
REAL = [(2, 1), (3, 3), (4, 2), (5, 5), (6, 3), (8, 4)]   # thread ranks, ranks a node
TIMED = (2, 4)
SIMULATED = [(8, 8), (16, 8), (64, 8), (256, 8), (1024, 8)]
STRAGGLERS = dict(ranks=4, base=20, factor=3, steps=16, rounds=5)
STALE = (1, 4, 8)                                  # bounds compared
COMPARED = ["ring", "tree", "parameter_server:1"] + [f"parameter_server:1:{k}" for k in STALE]
SCENARIOS = ("none", "constant", "rotating")
PARTS = ("counts", "times", *SCENARIOS)


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


def count(program):
    """Every way, size and number of ranks, in both worlds."""
    rows = []
    for ranks, per_node in REAL:
        print(f"{ranks} thread ranks", file=sys.stderr)
        rows += map(digest, sums(program, ranks, per_node, "threads", 1)["rows"])
    for ranks, per_node in REAL + SIMULATED:
        print(f"{ranks} simulated ranks", file=sys.stderr)
        rows += map(digest, sums(program, ranks, per_node, "simulated", 1)["rows"])
    return rows


def time_sums(program):
    return [digest(r) for ranks, per_node in REAL if ranks in TIMED
            for r in sums(program, ranks, per_node, "threads", 30)["rows"]]


def time_straggler(program, scenario):
    s = STRAGGLERS
    print(f"straggler: {scenario}", file=sys.stderr)
    return ask(program, "straggler", "--ranks", s["ranks"], "--ways", ",".join(COMPARED), "--scenario", scenario, "--base", s["base"],
               "--factor", s["factor"], "--steps", s["steps"], "--rounds", s["rounds"],
               "--certify")


def measure(program, part, result):
    """The result with this part of it measured anew."""
    if part == "counts":
        return {**result, "sizes": SIZES, "rows": count(program)}
    if part == "times":
        return {**result, "times": time_sums(program)}
    answer = time_straggler(program, part)
    others = [r for r in result.get("stragglers", []) if r["scenario"] != part]
    rows = sorted(others + answer["rows"], key=lambda r: SCENARIOS.index(r["scenario"]))
    return {**result, "stragglers": rows}


def place(row):
    """What a row is of, but for its world."""
    return row["ranks"], row["ranks_per_node"], row["way"], row["bytes"]


def by_case(rows):
    """Rows by world, ranks, way and bytes; where ranks stand in nodes of two sizes, those of 8."""
    return {(r["world"], r["ranks"], r["way"], r["bytes"]): r for r in sorted(rows, key=lambda r: r["ranks_per_node"])}


def verdicts(result):
    """Each a claim, what was found and whether it holds."""
    rows, slow = result["rows"], result["stragglers"]
    by = by_case(rows)
    small, large = SIZES[0], SIZES[-1]
    twins = {place(r): r for r in rows if r["world"] == "simulated"}
    pairs = [(r, twins[place(r)]) for r in rows if r["world"] == "threads"]
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
         "holds": abs(constant / f - 1) < 0.15, "is_timed": True},
        {"claim": "a slow replica that stays slow is waited for under every bound: within 25 % of the ring",
         "found": f"{step('constant', stale) / step('constant', 'ring'):.2f} of the ring's step",
         "holds": 0.6 < step("constant", stale) / step("constant", "ring") < 1.25, "is_timed": True},
        {"claim": f"slowness that goes around costs a ring the slowest of each step, {f} x, and stale pushes little more than the mean, "
                  f"{mean:.2f} x (within 20 %)",
         "found": f"ring {rotating['ring']:.2f} x, synchronous server {rotating['parameter_server:1']:.2f} x, "
                  f"staleness {STALE[-1]} {rotating[stale]:.2f} x",
         "holds": rotating["ring"] > 0.85 * f and rotating[stale] < 1.2 * mean, "is_timed": True},
    ]


def table(result):
    timed = {place(r): r for r in result["times"]}
    real = {place(r) for r in result["rows"] if r["world"] == "threads"}
    cells = []
    for r in result["rows"]:
        if r["world"] == "threads":
            continue
        case = place(r)
        cells.append((r["ranks"], r["ranks_per_node"], r["way"], f"{r['bytes'] >> 10} KiB", "both" if case in real else "simulated",
                      f"{r['received']['mean']:.0f}", r["received"]["most"], f"{r['received']['mean'] / r['bytes']:.3f}", r["messages"],
                      f"{timed[case]['seconds'] * 1e6:.0f}" if case in timed else "-", f"{r['seconds'] * 1e6:.0f}"))
    lines = experiment.markdown(("ranks", "nodes of", "way", "gradients", "worlds", "received a rank, mean bytes", "most", "/ gradients",
                                 "messages", "threads, us", "simulated, us"), cells)
    base = {r["way"]: statistics.median(r["seconds_per_step"]) for r in result["stragglers"] if r["scenario"] == "none"}
    cells = []
    for r in result["stragglers"]:
        ms = [1e3 * s for s in r["seconds_per_step"]]
        behind = r.get("behind", {})
        total = sum(behind.values())
        mean = sum(int(k) * v for k, v in behind.items()) / total if total else 0
        cells.append((r["scenario"], r["way"], f"{statistics.median(ms):.1f}", f"{min(ms):.1f}, {max(ms):.1f}",
                      f"{statistics.median(ms) / 1e3 / base[r['way']]:.2f}", f"{statistics.median(r['loss']):.3f}",
                      f"mean {mean:.1f} updates" if total else "-"))
    lines += ["", *experiment.markdown(("straggler", "way", "ms a step, median", "fastest, slowest round", "of no straggler", "last loss",
                                        "pushes behind"), cells)]
    return "\n".join([*experiment.claims(result["verdicts"]), "", *lines]) + "\n"


WAYS = {"ring": (style.BLUE, "s", "ring"), "tree": (style.GREEN, "^", "tree"),
        "hierarchical": (style.VERMILION, "D", "inside nodes, then between"), "one": (style.ORANGE, "v", "one server"),
        "all": (style.PINK, "P", "all serve")}


def way_of(look, ranks):
    return {"one": "parameter_server:1", "all": f"parameter_server:{ranks}"}.get(look, look)


def draw_received(panel, by, ranks):
    large = SIZES[-1]
    for look, (color, marker, label) in WAYS.items():
        panel.plot(ranks, [by["simulated", n, way_of(look, n), large]["received"]["most"] / large for n in ranks], marker=marker,
                   color=color, label=label)
    panel.plot(ranks, [2 * (n - 1) / n for n in ranks], color=style.INK, linewidth=0.8, label="2 (n-1)/n")
    panel.set(title="the busiest rank receives", yscale="log", xscale="log", xlabel="replicas", ylabel="bytes received / bytes of gradients")
    panel.minorticks_off()
    panel.set_xticks([2, 4, 8, 64, 1024], ["2", "4", "8", "64", "1024"])
    panel.set_yticks([1, 2, 10, 100, 1000], ["1", "2", "10", "100", "1000"])
    panel.legend()


def draw_seconds(panel, by, size):
    many = [n for n, _ in SIMULATED]
    for look, (color, marker, _) in WAYS.items():
        panel.plot(many, [by["simulated", n, way_of(look, n), size]["seconds"] * 1e3 for n in many], marker=marker, color=color)
    text = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
    panel.set(title=f"{text} of gradients, nodes of 8, simulated", yscale="log", xscale="log", xlabel="replicas", ylabel="ms")
    panel.minorticks_off()
    panel.set_xticks(many, [str(n) for n in many])


def draw_stragglers(panel, rows):
    shades = {"none": (style.GREY, "nobody slow"), "constant": (style.VERMILION, f"one replica {STRAGGLERS['factor']} x slower"),
              "rotating": (style.SKY, "another one each step")}
    for i, (scenario, (color, label)) in enumerate(shades.items()):
        own = {r["way"]: [1e3 * s for s in r["seconds_per_step"]] for r in rows if r["scenario"] == scenario}
        middle = [statistics.median(own[w]) for w in COMPARED]
        around = [[m - min(own[w]) for m, w in zip(middle, COMPARED)], [max(own[w]) - m for m, w in zip(middle, COMPARED)]]
        places = [x + 0.27 * (i - 1) for x in range(len(COMPARED))]
        panel.bar(places, middle, 0.26, yerr=around, color=color, label=label, error_kw={"elinewidth": 0.8, "capsize": 1.5})
    short = [w.replace("parameter_server:1:", "server,\nstale ").replace("parameter_server:1", "server,\nin step") for w in COMPARED]
    panel.set_xticks(range(len(COMPARED)), short)
    panel.grid(visible=False, axis="x")
    panel.set(title="training on 4 thread ranks, measured", ylabel="ms a step: median, fastest, slowest round")
    panel.legend()


def draw(result, out):
    by = by_case(result["rows"])
    figure, panels = experiment.subplots(2, 2, figsize=(10.4, 7.6))
    draw_received(panels[0, 0], by, sorted({r["ranks"] for r in result["rows"]}))
    draw_seconds(panels[0, 1], by, SIZES[0])
    draw_seconds(panels[1, 0], by, SIZES[-1])
    draw_stragglers(panels[1, 1], result["stragglers"])
    experiment.save(figure, out, "data_parallel")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "data_parallel")
    experiment.add_draw(parser)
    parser.add_argument("--parts", default=",".join(PARTS), help="of the measurement")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        sys.exit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "result.json"
    result = json.loads(file.read_text()) if file.exists() else {}
    if not options.draw:
        result = provenance.kept_parts(result, options.build, options.out, ("data_parallel",))
    for part in () if options.draw else parts:
        result = measure(options.build / "bin" / "data_parallel", part, result)
        provenance.write(file, result)
    if missing := {"rows", "times", "stragglers"} - set(result) or set(SCENARIOS) - {r["scenario"] for r in result["stragglers"]}:
        print(f"not measured yet: {', '.join(sorted(missing))}", file=sys.stderr)
        return 0
    result["verdicts"] = verdicts(result)
    provenance.write(file, result)
    (options.out / "table.md").write_text(table(result))
    if options.draw != "tables":
        draw(result, options.out)
    print("\n".join(experiment.claims(result["verdicts"])))
    # What a stopwatch says is a finding, whichever way it goes; what is counted or certified must hold.
    return 0 if all(v["holds"] or v.get("is_timed") for v in result["verdicts"]) else 1


if __name__ == "__main__":
    sys.exit(main())
