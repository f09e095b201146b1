#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ZeRO's memory table, the largest model a budget holds under each stage, and the traffic, counted.

    .venv/bin/python experiments/zero_memory/run.py [--build build/release] [--out results/zero_memory] [--draw] [--quick]
        [--parts counts,worlds,frontier]

Writes result.json, table.md and the figure; --draw only draws what result.json holds, --quick leaves out all but 4 ranks.
Exits with 1 where a claim does not hold."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import closed_forms

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "scripts" / "report"))

import experiment
import provenance
import style

STAGES = (0, 1, 2, 3)
PARTS = ("counts", "worlds", "frontier")
RANKS = (4, 64)
BUDGET = "32 GB"              # of a V100
MOST_LAYERS = 1024
BUCKET = 26214400             # bytes, the plan's default
SCALARS = 64                  # bytes: loss and norm, which every plan exchanges
KINDS = ("parameter", "gradient", "optimizer")
LOOKS = (style.GREY, style.BLUE, style.GREEN, style.VERMILION)     # by stage
MARKERS = "osD^"
FRONTIER = {"model.hidden": 4096, "model.vocab": 57344}      # a fifth of a billion a layer
# What threads hold and count next to what is simulated: an awkward model on 3 ranks, an even one on 4.
SMALL = {"model.layers": 3, "model.hidden": 64, "model.heads": 4, "model.vocab": 128, "model.sequence": 32}
ODD = {"model.layers": 2, "model.hidden": 28, "model.heads": 4, "model.vocab": 37, "model.sequence": 9}


def kuafu(build, command, ranks, stage, settings, *more, may_fail=False):
    """The document a command writes."""
    given = {"parallel.data": ranks, "parallel.zero": stage, "train.batch": ranks, **settings}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "document.json"
        words = [build / "bin" / "kuafu", command, HERE / "plan.toml", "--ranks", ranks, "--json", file, *more]
        for key, value in given.items():
            words += ["--set", f"{key}={value}"]
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
        if done.returncode != 0 and not may_fail:
            sys.exit(f"ZeRO-{stage} on {ranks} ranks: {done.stderr.strip()}")
        return json.loads(file.read_text())


def size_of(plan):
    m = plan["model"]
    return closed_forms.parameters(m["layers"], m["hidden"], m["vocab"], m["sequence"])


def largest(plan):
    """Elements of the largest parameter."""
    m = plan["model"]
    return max(4 * m["hidden"] * m["hidden"], m["vocab"] * m["hidden"])


def counted(document):
    """What must not depend on the world."""
    data = {k: v for k, v in document["ledger"]["data"].items() if k not in ("wire_peers", "counting")}
    return [data, document["memory"]["peak_bytes"], document["memory"]["peak_by_category"], document["flops_per_step"]]


def measure(build, ranks, stage, settings, world="simulated"):
    d = kuafu(build, "run", ranks, stage, settings, "--world", world, *(["--certify"] if world == "threads" else []))
    plan, steps = d["plan"], d["plan"]["train"]["steps"]
    # Parameters where the step needs most (at the start they are moved into their buckets), the others at their own peaks.
    held = [{"parameter": at["parameter"], "gradient": peak["gradient"], "optimizer": peak["optimizer"]}
            for at, peak in zip(d["memory"]["at_peak"], d["memory"]["peak_by_category"])]
    psi = size_of(plan)
    return {"ranks": ranks, "stage": stage, "parameters": psi, "held": held[0], "ranks_alike": all(h == held[0] for h in held),
            "closed_form": closed_forms.states(stage, psi, ranks), "in_transit": max(BUCKET, closed_forms.WEIGHT * largest(plan)),
            "peak_bytes": max(d["memory"]["peak_bytes"]), "step_s": d["step_time_s"]["median"],
            "received": max(d["ledger"]["data"]["bytes_received"]) // steps,
            "received_form": closed_forms.received(stage, psi, ranks, kept=2 * plan["model"]["hidden"])}, d


def same_in_both_worlds(build):
    found = []
    for settings, ranks in ((SMALL, 4), (ODD, 3)):
        for stage in STAGES:
            real, simulated = (measure(build, ranks, stage, settings, world)[1] for world in ("threads", "simulated"))
            found.append({"ranks": ranks, "stage": stage, "same": counted(real) == counted(simulated),
                          "certificate": experiment.proof(real)})
    return found


def frontier(build, ranks, stage):
    settings = FRONTIER | {"memory.device": f'"{BUDGET}"', "memory.recompute": '"full"'}
    d = kuafu(build, "frontier", ranks, stage, settings, "--vary", "model.layers", "--max", MOST_LAYERS, may_fail=True)
    layers = d["value"]
    return {"ranks": ranks, "stage": stage, "layers": layers, "peak_bytes": d.get("peak_bytes"),
            "is_capped": layers == MOST_LAYERS, "parameters": closed_forms.parameters(layers, *FRONTIER.values(), 2048)
            if layers else 0}


def count(build, ranks, settings):
    rows = []
    for n in ranks:
        for stage in STAGES:
            row, _ = measure(build, n, stage, settings)
            rows.append(row)
            print(f"{n} ranks, ZeRO-{stage}: {sum(row['held'].values()) / 1e9:.4g} GB", file=sys.stderr)
    return {"rows": rows}


def frontiers(build):
    found = []
    for n in RANKS:
        for stage in STAGES:
            found.append(frontier(build, n, stage))
            print(f"{n} ranks, ZeRO-{stage}: {found[-1]['layers']} layers fit", file=sys.stderr)
    return found


def measure_part(options, part):
    if part == "counts":
        return count(options.build, RANKS[:1], SMALL) if options.quick else count(options.build, RANKS, {})
    if part == "worlds":
        return {"worlds": same_in_both_worlds(options.build)}
    return {"frontier": [] if options.quick else frontiers(options.build)}


def published_verdicts(rows):
    verdicts = []
    for n in sorted({r["ranks"] for r in rows}):
        own = sorted((r for r in rows if r["ranks"] == n), key=lambda r: r["stage"])
        found = [closed_forms.shown(sum(r["held"].values()), p) for r, p in zip(own, closed_forms.PUBLISHED[n])]
        verdicts.append({"claim": f"{' / '.join(closed_forms.PUBLISHED[n])} GB for 7.5 billion parameters on {n} devices",
                         "source": "1910.02054, table 1", "found": " / ".join(found),
                         "holds": found == list(closed_forms.PUBLISHED[n])})
    return verdicts


def verdicts(result):
    rows, worlds = result["rows"], result["worlds"]
    excess = [(r, k, r["held"][k] - r["closed_form"][k]) for r in rows for k in KINDS]
    exact = [(r, k, x) for r, k, x in excess if (r["stage"], k) != (0, "gradient")]
    moved = [(r, x) for r, k, x in excess if (r["stage"], k) == (0, "gradient")]
    extra = [r["received"] - r["received_form"] for r in rows]
    plain = {r["ranks"]: r["received"] for r in rows if r["stage"] == 0}
    ratios = {s: [r["received"] / plain[r["ranks"]] for r in rows if r["stage"] == s] for s in STAGES}
    spread = max(abs(x / closed_forms.TRAFFIC[s] - 1) for s, values in ratios.items() for x in values)
    checks = [
        {"claim": f"parameters, gradients and optimizer state equal the formulas to the byte ({len(exact)} numbers)",
         "source": "1910.02054, figure 1", "found": f"{sum(x != 0 for _, _, x in exact)} differ",
         "holds": all(x == 0 for _, _, x in exact) and all(r["ranks_alike"] for r in rows)},
        {"claim": "gradients of ZeRO-0 peak above the formula by a bucket on its way at most", "source": "-",
         "found": f"{max(x for _, x in moved)} bytes more", "holds": all(0 <= x <= r["in_transit"] for r, x in moved)},
        {"claim": "received bytes equal the formulas, but for the loss and the norm", "source": "1910.02054, section 7",
         "found": f"{min(extra)} to {max(extra)} bytes more", "holds": all(0 <= x <= SCALARS for x in extra)},
        {"claim": "traffic is 1x, 1x, 1.5x of plain data parallelism (within 1 %)", "source": "1910.02054, section 7",
         "found": ", ".join(f"{ratios[s][-1]:.5f}" for s in STAGES[1:]), "holds": spread <= 0.01},
        {"claim": "threads hold and count what simulated ranks do", "source": "-", "found": f"{len(worlds)} cases",
         "holds": all(w["same"] for w in worlds)},
        *experiment.proven(w["certificate"] for w in worlds if "certificate" in w),
    ]
    if rows[0]["parameters"] > 7e9:
        checks = published_verdicts(rows) + checks
    for n in sorted({f["ranks"] for f in result["frontier"]}):
        own = sorted((f for f in result["frontier"] if f["ranks"] == n), key=lambda f: f["stage"])
        sizes = [f["parameters"] / 1e9 for f in own]
        checks.append({"claim": f"every stage holds a larger model in {result['budget']} than the one before, {n} devices",
                       "source": "-", "found": ", ".join(f"{s:.1f}" for s in sizes) + " billion",
                       "holds": all(a < b for a, b in zip(sizes, sizes[1:]))})
    return checks


def table(result, checks):
    plain = {r["ranks"]: r["received"] for r in result["rows"] if r["stage"] == 0}
    lines = experiment.markdown(
        ("ranks", "stage", "parameters, bytes", "gradients, bytes", "optimizer, bytes", "model states, GB", "peak of a step, GB",
         "received a step, bytes", "of stage 0"),
        [(r["ranks"], r["stage"], *(r["held"][k] for k in KINDS), f"{sum(r['held'].values()) / 1e9:.3f}", f"{r['peak_bytes'] / 1e9:.2f}",
          r["received"], f"{r['received'] / plain[r['ranks']]:.4f}") for r in result["rows"]])
    if result["frontier"]:
        lines += ["", f"Largest model in {result['budget']} a rank, everything recomputed, one sample of 2048 tokens a rank.", ""]
        lines += experiment.markdown(
            ("ranks", "stage", "layers", "billion parameters", "peak, GB"),
            [(f["ranks"], f["stage"], f"{f['layers']}{' (most tried)' if f['is_capped'] else ''}", f"{f['parameters'] / 1e9:.2f}",
              "-" if f["peak_bytes"] is None else f"{f['peak_bytes'] / 1e9:.2f}") for f in result["frontier"]])
    return "\n".join([*experiment.claims(checks), "", *lines]) + "\n"


def draw_states(panel, rows, kinds):
    bottom = [0.0] * len(rows)
    names = [f"ZeRO-{r['stage']}" for r in rows]
    for kind in kinds:
        values = [r["held"][kind] / 1e9 for r in rows]
        panel.bar(names, values, bottom=bottom, color=style.CATEGORIES[kind], label=kind, width=0.66)
        bottom = [b + v for b, v in zip(bottom, values)]
    for x, total in enumerate(bottom):
        panel.annotate(f"{total:.4g} GB", (x, total), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom")
    panel.set(title=f"held by each of {rows[0]['ranks']} ranks", ylabel="model states, GB", ylim=(0, max(bottom) * 1.1))
    panel.legend(loc="upper right")


def draw_frontier(panel, frontier, budget):
    """Lines labelled at their right ends."""
    ranks = sorted({f["ranks"] for f in frontier})
    for stage in STAGES:
        own = sorted((f for f in frontier if f["stage"] == stage), key=lambda f: f["ranks"])
        size = [f["parameters"] / 1e9 for f in own]
        panel.plot(ranks, size, marker=MARKERS[stage], color=LOOKS[stage])
        panel.annotate(f"ZeRO-{stage}: {size[-1]:.1f}", (ranks[-1], size[-1]), xytext=(7, 0), textcoords="offset points", va="center",
                       color=LOOKS[stage])
    panel.set(xscale="log", yscale="log", xlabel="ranks", xlim=(ranks[0] / 1.2, ranks[-1] * 4), ylabel="parameters, billions",
              title=f"largest model in {budget} a rank")
    panel.set_xticks(ranks, [str(n) for n in ranks])
    panel.set_yticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"])
    panel.minorticks_off()


def draw_traffic(panel, rows):
    plain = rows[0]["received"]
    panel.bar([f"ZeRO-{r['stage']}" for r in rows], [r["received"] / plain for r in rows], color=LOOKS, width=0.66)
    for x, r in enumerate(rows):
        panel.annotate(f"{r['received'] / plain:.3f}", (x, r["received"] / plain), xytext=(0, 2), textcoords="offset points", ha="center",
                       va="bottom")
    panel.set(title=f"received a step by each of {rows[0]['ranks']} ranks", ylabel="of plain data parallelism", ylim=(0, 1.7))


def draw(result, out):
    most = max(r["ranks"] for r in result["rows"])
    rows = sorted((r for r in result["rows"] if r["ranks"] == most), key=lambda r: r["stage"])
    count = 3 if result["frontier"] else 2
    figure, panels = experiment.subplots(1, count, figsize=(4.3 * count, 3.9))
    draw_states(panels[0], rows, KINDS)
    draw_traffic(panels[1], rows)
    if result["frontier"]:
        draw_frontier(panels[2], result["frontier"], result["budget"])
    for panel in panels[:2]:
        panel.grid(visible=False, axis="x")
    experiment.save(figure, out, "zero_memory")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "zero_memory")
    experiment.add_draw(parser)
    parser.add_argument("--quick", action="store_true", help="a small model on 4 ranks, no frontier")
    parser.add_argument("--parts", default=",".join(PARTS), help="of the measurement; the result keeps the others")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "result.json"
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        sys.exit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    known = json.loads(file.read_text()) if file.exists() else {}
    result = {"budget": BUDGET} | (known if options.draw else provenance.kept_parts(known, options.build, options.out))
    for part in () if options.draw else parts:
        result |= measure_part(options, part)
        provenance.write(file, result)
    if missing := {"rows", "worlds", "frontier"} - set(result):
        print(f"not measured yet: {', '.join(sorted(missing))}", file=sys.stderr)
        return 0
    checks = verdicts(result)
    (options.out / "table.md").write_text(table(result, checks))
    if options.draw != "tables":
        draw(result, options.out)
    print("\n".join(experiment.claims(checks)))
    return 0 if all(c["holds"] for c in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
