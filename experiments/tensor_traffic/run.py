#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bytes, messages, peers and memory a rank for every tensor scheme over 1 to 64 ranks, beside the closed forms.

    .venv/bin/python experiments/tensor_traffic/run.py [--build build/release] [--out results/tensor_traffic] [--draw]

Runs `kuafu run` on threads up to 27 ranks and simulated everywhere, writes result.json, table.md and the figures; after
a kill the same command goes on with the cases that are missing. --draw only draws what result.json holds."""

import argparse
import json
import math
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

REAL = 27          # ranks that run as threads
EXACT = 1e-9       # relative: sums of integers below 2^53, divided
# Sizes that every rank count of a family divides. tokens = batch x sequence.
FAMILIES = {
    "powers of 2": dict(hidden=256, heads=64, sequence=64, batch=64),
    "powers of 3": dict(hidden=216, heads=54, sequence=54, batch=54),
}
CASES = (
    [("powers of 2", "1d", p, 1) for p in (1, 2, 4, 8, 16, 32, 64)]
    + [("powers of 2", "1d-sp", p, 1) for p in (2, 4, 8, 16, 32, 64)]
    + [("powers of 2", "2d", p, 1) for p in (4, 16, 64)]
    + [("powers of 2", "2.5d", p, d) for p, d in ((8, 2), (16, 4), (32, 2), (64, 4))]
    + [("powers of 2", "3d", p, 1) for p in (8, 64)]
    + [("powers of 3", "1d", p, 1) for p in (3, 9, 27)]
    + [("powers of 3", "1d-sp", p, 1) for p in (3, 9, 27)]
    + [("powers of 3", "2d", 9, 1), ("powers of 3", "2.5d", 27, 3), ("powers of 3", "3d", 27, 1)]
)
NAMES = {"1d": "1D tensor", "1d-sp": "1D-sp", "2d": "2D tensor", "2.5d": "2.5D tensor", "3d": "3D tensor"}


def document(kuafu, family, scheme, ranks, depth, layers, world):
    """The record of one run."""
    f = FAMILIES[family]
    mode = "none" if ranks == 1 else scheme
    sets = {"model.hidden": f["hidden"], "model.heads": f["heads"], "model.sequence": f["sequence"],
            "train.batch": f["batch"], "model.layers": layers, "parallel.data": 1,
            "parallel.tensor": f'{{ mode = "{mode}", size = {ranks}, depth = {depth} }}'}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        words = [kuafu, "run", HERE / "plan.toml", "--world", world, "--json", out]
        words += ["--certify"] if world == "threads" else []
        for key, value in sets.items():
            words += ["--set", f"{key}={value}"]
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{scheme} on {ranks} ranks, {world}: {done.stderr.strip()}")
        return json.loads(out.read_text())


def per_rank(doc, key):
    """Sum over axes of a ledger column, a number a rank."""
    columns = [axis[key] for axis in doc["ledger"].values()]
    return [sum(values) for values in zip(*columns)] if columns else [0] * doc["ranks"]


def peers(doc):
    return {name: axis["peers"][0] for name, axis in doc["ledger"].items()}


def counted(doc):
    """What must not depend on the world."""
    ledger = {name: {k: v for k, v in axis.items() if k not in ("wire_peers", "counting")}
              for name, axis in doc["ledger"].items()}
    return json.dumps([ledger, doc["memory"]["peak_bytes"], doc["flops_per_step"]], sort_keys=True)


def measure(kuafu, family, scheme, ranks, depth):
    f = FAMILIES[family]
    worlds = ["simulated"] + (["threads"] if ranks <= REAL else [])
    docs = {(w, n): document(kuafu, family, scheme, ranks, depth, n, w) for w in worlds for n in (1, 2)}
    one, two = docs["simulated", 1], docs["simulated", 2]
    layer = {key: [b - a for a, b in zip(per_rank(one, key), per_rank(two, key))]
             for key in ("bytes_received", "messages")}
    form = closed_forms.elements(scheme, ranks, depth, f["batch"] * f["sequence"], f["hidden"])
    mean = sum(layer["bytes_received"]) / ranks / 8
    return {
        "family": family, "scheme": scheme, "ranks": ranks, "depth": depth,
        "worlds": worlds,
        "same_in_both_worlds": all(counted(docs["simulated", n]) == counted(docs["threads", n]) for n in (1, 2))
        if ranks <= REAL else None,
        "trained": [{"layers": n, "certificate": experiment.proof(docs["threads", n])} for n in (1, 2) if ranks <= REAL],
        "layer_elements_received": {"mean": mean, "most": max(layer["bytes_received"]) / 8},
        "model_elements_received": sum(per_rank(two, "bytes_received")) / ranks / 8,
        "layer_messages": max(layer["messages"]),
        "closed_form": form,
        "closed_form_error": abs(mean - sum(form.values())) / max(sum(form.values()), 1),
        "peers": peers(two),
        "peak_bytes": max(two["memory"]["peak_bytes"]),
        "of_residual_stream": mean / (f["batch"] * f["sequence"] * f["hidden"]),
    }


def exponent(rows, scheme, family, term=None):
    """-slope of log(received) over log(ranks) between the two largest grids of a scheme."""
    own = sorted((r["ranks"], r["layer_elements_received"]["mean"]) for r in rows
                 if r["scheme"] == scheme and r["family"] == family and r["ranks"] > 1)
    (p, a), (q, b) = own[-2:]
    return math.log(a / b) / math.log(q / p)


def verdicts(rows):
    """Each a claim, what was found and whether it holds."""
    real = [r for r in rows if r["same_in_both_worlds"] is not None]
    worst = max(rows, key=lambda r: r["closed_form_error"])
    by = {(r["scheme"], r["ranks"], r["depth"]): r for r in rows}
    line, plane, cube = by["1d", 64, 1], by["2d", 64, 1], by["3d", 64, 1]
    flat = by["1d", 64, 1]["layer_elements_received"]["mean"] / by["1d", 16, 1]["layer_elements_received"]["mean"]
    plane_fall = by["2d", 16, 1]["layer_elements_received"]["mean"] / plane["layer_elements_received"]["mean"]
    cube_fall = by["3d", 8, 1]["layer_elements_received"]["mean"] / cube["layer_elements_received"]["mean"]
    # (q-1)/q^2 from q = 4 to 8 is 12/7; (q-1)/q^3 from q = 2 to 4 is 8/3: the finite-size forms of 1/sqrt(P), P^(-2/3).
    whole = {scheme: by[scheme, few, 1]["model_elements_received"] / by[scheme, 64, 1]["model_elements_received"]
             for scheme, few in (("1d", 16), ("2d", 16), ("3d", 8))}
    return [
        *experiment.proven(run["certificate"] for r in rows for run in r.get("trained", [])),
        {"claim": "simulated and thread ranks count the same, to the byte", "found": f"{len(real)} cases",
         "holds": all(r["same_in_both_worlds"] for r in real)},
        {"claim": "counted elements equal the closed forms",
         "found": f"largest relative error {worst['closed_form_error']:.1e} ({worst['scheme']}, {worst['ranks']} ranks)",
         "holds": worst["closed_form_error"] < EXACT},
        {"claim": "1D is constant as ranks grow: 63/64 / (15/16) from 16 to 64", "found": f"{flat:.4f}",
         "holds": abs(flat - (63 / 64) / (15 / 16)) < 1e-9},
        {"claim": "2D falls as 1/sqrt(P): 12/7 = 1.714 from 16 to 64 with (q-1)/q^2", "found": f"{plane_fall:.3f}",
         "holds": abs(plane_fall / (12 / 7) - 1) < 0.02},
        {"claim": "3D falls as P^(-2/3): 8/3 = 2.667 from 8 to 64 with (q-1)/q^3", "found": f"{cube_fall:.3f}",
         "holds": abs(cube_fall / (8 / 3) - 1) < 0.02},
        {"claim": "a whole model of two layers does as its layers do, embedding, head and loss included: 0.952, 1.714, 2.667",
         "found": ", ".join(f"{ratio:.3f}" for ratio in whole.values()),
         "holds": all(abs(whole[scheme] / ratio - 1) < 0.02
                      for scheme, ratio in (("1d", 20 / 21), ("2d", 12 / 7), ("3d", 8 / 3)))},
        {"claim": "at 64 ranks 3D receives less than 2D, and 2D less than 1D",
         "found": " < ".join(f"{r['layer_elements_received']['mean']:.0f}" for r in (cube, plane, line)),
         "holds": cube["layer_elements_received"]["mean"] < plane["layer_elements_received"]["mean"]
         < line["layer_elements_received"]["mean"]},
        {"claim": "peers a rank at 64 ranks: 63 in 1D, 7 + 7 in 2D, 3 on each of three axes in 3D",
         "found": ", ".join(str(sum(r["peers"].values())) for r in (line, plane, cube)),
         "holds": [sum(r["peers"].values()) for r in (line, plane, cube)] == [63, 14, 9]},
        {"claim": "peak memory at 64 ranks: 3D below 2D below 1D",
         "found": " < ".join(f"{r['peak_bytes']}" for r in (cube, plane, line)),
         "holds": cube["peak_bytes"] < plane["peak_bytes"] < line["peak_bytes"]},
    ]


def table(rows, checks):
    lines = ["| scheme | ranks | depth | worlds | received a layer, elements | / B S H | closed form: linears + norms + "
             "gradients | error | a model of two layers | messages | peers by axis | peak, bytes |", "|" + "---|" * 12]
    for r in rows:
        form = " + ".join(f"{v:.0f}" for v in r["closed_form"].values())
        axes = ", ".join(f"{k} {v}" for k, v in r["peers"].items()) or "-"
        lines.append(f"| {r['scheme']} | {r['ranks']} | {r['depth']} | {', '.join(r['worlds'])} | "
                     f"{r['layer_elements_received']['mean']:.0f} | {r['of_residual_stream']:.3f} | {form} | "
                     f"{r['closed_form_error']:.0e} | {r['model_elements_received']:.0f} | {r['layer_messages']} | {axes} | {r['peak_bytes']} |")
    return "\n".join([*lines, "", *experiment.claims(checks)]) + "\n"


def draw(rows, out):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import style
    figure, panels = plt.subplots(1, 3, figsize=(12.6, 4.2), layout="constrained")
    for scheme, name in NAMES.items():
        color, (marker, _) = style.STRATEGIES[name]
        own = sorted((r for r in rows if r["scheme"] == scheme and r["ranks"] > 1), key=lambda r: r["ranks"])
        ranks = [r["ranks"] for r in own]
        tokens = [FAMILIES[r["family"]]["batch"] * FAMILIES[r["family"]]["sequence"] for r in own]
        size = [t * FAMILIES[r["family"]]["hidden"] for t, r in zip(tokens, own)]
        form = [sum(r["closed_form"].values()) / n for r, n in zip(own, size)]
        panels[0].plot(ranks, [r["of_residual_stream"] for r in own], marker, color=color, label=name)
        panels[0].plot(ranks, form, "-", color=color, linewidth=0.8)
        panels[1].plot(ranks, [sum(r["peers"].values()) for r in own], marker, color=color)
        panels[2].plot(ranks, [r["peak_bytes"] / 8 / n for r, n in zip(own, size)], marker, color=color)
    titles = ("received a layer / B S H (lines: closed forms)", "peers a rank, all axes",
              "peak memory of a rank / B S H")
    for panel, title in zip(panels, titles):
        panel.set(xscale="log", yscale="log", xlabel="ranks", title=title)
        panel.set_xticks([2, 4, 8, 16, 27, 64], ["2", "4", "8", "16", "27", "64"])
        panel.minorticks_off()
        panel.grid(color=style.GRID)
    panels[0].legend(frameon=False)
    experiment.save(figure, out, "traffic")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--out", default="results/tensor_traffic")
    experiment.add_draw(parser)
    options = parser.parse_args()
    out = ROOT / options.out
    out.mkdir(parents=True, exist_ok=True)
    if not options.draw:
        before = provenance.begin(ROOT / options.build, out)
        kuafu = ROOT / options.build / "bin" / "kuafu"
        rows = experiment.measured(CASES, lambda *case: measure(kuafu, *case), out,
                                   [kuafu, kuafu.with_name("kuafu-worker"), Path(__file__), HERE / "plan.toml"])
        provenance.write(out / "result.json", {"provenance": before, "families": FAMILIES, "rows": rows,
                                               "verdicts": verdicts(rows)})
        experiment.finished(out)
    rows = json.loads((out / "result.json").read_text())["rows"]
    checks = verdicts(rows)
    (out / "table.md").write_text(table(rows, checks))
    if options.draw != "tables":
        draw(rows, out)
    print(table(rows, checks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
