#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The largest GPT that trains in a budget of device memory under each policy of moves, what it moves, and published capacities beside it.

    .venv/bin/python experiments/gemini/run.py [--build build/release] [--out results/gemini] [--draw] [--quick]

Writes result.json, table.md and the figure. --draw only draws what result.json holds, --quick takes small models.
Exits with 1 where a claim does not hold."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "scripts" / "report"))

import experiment
import style

# Layers, hidden, heads: 12 L H^2 parameters and the tables.
MODELS = ((12, 768, 12), (24, 1024, 16), (24, 1536, 16), (24, 1792, 14), (48, 1600, 25), (40, 2048, 16), (32, 2560, 32), (32, 3200, 32), (30, 4096, 32),
          (40, 4096, 32), (50, 4096, 32), (60, 4096, 32), (75, 4096, 32), (90, 4096, 32), (120, 4096, 32), (150, 4096, 32), (200, 4096, 32))
BUDGETS = (6, 8, 11, 24, 32, 40, 80)      # GB of the device
POLICIES = ("plain", "static", "host", "lru", "belady", "auto", "auto, cycle")     # the last looks into the next step, as PatrickStar
RATES = {"cluster.host_gbs": 20, "cluster.host_memory_gbs": 100}      # beside those of plan.toml; keys of plans with tiers
SMALL = tuple((layers, 64, 4) for layers in (2, 4, 8, 16, 32, 64))
SMALL_PLAN = {"model.vocab": 128, "model.sequence": 32}
SMALL_BUDGETS = (0.0012, 0.004)

# Billions of parameters of a GPT-2 on one card, as its maker's demo has them: shared/published, gemini_colossalai_docs, rows 001 to 012
# (https://github.com/hpcaitech/ColossalAI, README, "GPT-2 single GPU"). Host memory is not stated there.
PUBLISHED = {6: ("RTX 2060", 0.1, 0.33, 1.5, "003"), 11: ("RTX 2080 Ti", 0.1, 0.38, 2.0, "006"), 24: ("RTX 3090", 1.0, 6.0, 18.0, "009"),
             32: ("V100", 1.5, 12.0, 24.0, "012")}
# Gemini's `auto` over a static offload with OPT of so many billions of parameters on one card: model, how many times as fast, row. 80 GB are assumed.
FASTER = {1.3: ((24, 2048, 32), 1.21, "048"), 6.7: ((32, 4096, 32), 1.41, "049"), 13: ((40, 5120, 40), 1.26, "050")}
FAST_BUDGET = 80


def settings_of(model, policy, budget, is_small):
    layers, hidden, heads = model
    name, _, horizon = policy.partition(", ")
    settings = {"model.layers": layers, "model.hidden": hidden, "model.heads": heads, "memory.policy": f'"{name}"', "memory.device": f'"{budget} GB"'}
    settings |= SMALL_PLAN if is_small else {}
    if policy != "plain":
        settings |= RATES | ({"memory.chunk_size": 65536} if is_small else {})
    return settings | ({"memory.horizon": f'"{horizon}"'} if horizon else {})


def tried(build, model, policy, budget, is_small, world="simulated"):
    """What one run says: whether it fits, what it holds and moves a step."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "document.json"
        words = [build / "bin" / "kuafu", "run", HERE / "plan.toml", "--world", world, "--ranks", 1, "--json", file]
        for key, value in settings_of(model, policy, budget, is_small).items():
            words += ["--set", f"{key}={value}"]
        if world != "simulated":
            words += ["--certify"]
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
        document = json.loads(file.read_text()) if file.exists() else {"status": "failed", "reason": done.stderr}
    if document["status"] not in ("ok", "out_of_memory"):
        sys.exit(f"{model}, {policy}, {budget} GB: {document['status']}: {document['reason']}")
    row = {"model": list(model), "policy": policy, "budget_gb": budget, "world": world, "fits": document["status"] == "ok"}
    if not row["fits"]:
        return row
    moves = document.get("moves") or {}
    one = lambda name: (moves.get(name) or [0])[0]
    row |= {"parameters": document["parameters"]["total"], "peak_bytes": document["memory"]["peak_bytes"][0], "host_bytes": one("host_peak_bytes"),
            "disk_bytes": one("disk_bytes"), "to_device_bytes": one("step_to_device_bytes"), "to_host_bytes": one("step_to_host_bytes"),
            "regret_bytes": (moves.get("regret_bytes") or [None])[0], "bound_bytes": one("bound_bytes"), "wait_s": one("wait_s")}
    if world == "simulated":
        row["step_s"] = document["step_time_s"]["median"]
        row["tflops"] = document["flops_per_step"] / row["step_s"] / 1e12
    return row if world == "simulated" else row | {"certificate": experiment.proof(document)}


def largest(build, models, policy, budget, is_small, known):
    """The last of `models`, which grow, that fits; what fits is looked for by halves. None: not even the first."""
    low, high = -1, len(models)
    while high - low > 1:
        middle = (low + high) // 2
        key = (middle, policy, budget)
        if key not in known:
            known[key] = tried(build, models[middle], policy, budget, is_small)
            size = f"{known[key]['parameters'] / 1e9:.3g} billion" if known[key]["fits"] else f"{models[middle]}: out of memory"
            print(f"{policy}, {budget} GB: {size}", file=sys.stderr)
        low, high = (middle, high) if known[key]["fits"] else (low, middle)
    return low


def measure(options):
    models, budgets = (SMALL, SMALL_BUDGETS) if options.quick else (MODELS, BUDGETS)
    known, rows, beside = {}, [], []
    for budget in budgets:
        found = {p: largest(options.build, models, p, budget, options.quick, known) for p in POLICIES}
        rows += [{"policy": p, "budget_gb": budget} | (known[at, p, budget] if at >= 0 else {"fits": False}) for p, at in found.items()]
        # What the others move with the largest model of all policies that hold it.
        at = found["auto"]
        for policy in POLICIES[1:] if at >= 0 else ():
            if (at, policy, budget) not in known:
                known[at, policy, budget] = tried(options.build, models[at], policy, budget, options.quick)
            beside.append(known[at, policy, budget])
    # The same for real, small: certified, and what the simulated run moves.
    pairs = []
    for policy in POLICIES[1:]:
        real = tried(options.build, SMALL[2], policy, SMALL_BUDGETS[0], True, "threads")
        pairs.append({"real": real, "simulated": tried(options.build, SMALL[2], policy, SMALL_BUDGETS[0], True)})
    speeds = [{p: tried(options.build, model, p, FAST_BUDGET, False) for p in ("static", "auto")} for model, _, _ in
              (FASTER.values() if not options.quick else ())]
    return {"rows": rows, "beside": beside, "pairs": pairs, "speeds": speeds}


def size(row):
    return row["parameters"] / 1e9 if row["fits"] else 0


def row_of(result, policy, budget):
    return next(r for r in result["rows"] if (r["policy"], r["budget_gb"]) == (policy, budget))


def alike(pair):
    names = ("fits", "peak_bytes", "host_bytes", "to_device_bytes", "to_host_bytes")
    return all(pair["real"].get(n) == pair["simulated"].get(n) for n in names)


def never_slower(rows):
    """By the step time of the simulated world, where both hold the same model."""
    of = {(r["budget_gb"], r["policy"]): r["step_s"] for r in rows if r["fits"]}
    ratios = {b: of[b, "auto"] / of[b, "static"] for b, p in of if p == "auto" and (b, "static") in of}
    return {"found": ", ".join(f"{r:.3f}" for r in ratios.values()), "holds": bool(ratios) and max(ratios.values()) <= 1.03}


def verdicts(result):
    budgets = {r["budget_gb"] for r in result["rows"]}
    checks = []
    for budget, (card, _, _, billions, row) in PUBLISHED.items():
        if budget not in budgets:
            continue
        auto = row_of(result, "auto", budget)
        checks.append({"claim": f"{billions:g} billion parameters train in {budget} GB of device memory ({card})",
                       "source": f"gemini_colossalai_docs-{row}",
                       "found": f"{size(auto):.3g} billion, with {auto.get('host_bytes', 0) / 1e9:.0f} GB of host memory and no disk",
                       "holds": size(auto) >= billions})
    autos = [(row_of(result, "auto", b), row_of(result, "static", b), row_of(result, "plain", b)) for b in sorted(budgets)]
    checks.append({"claim": "`auto` holds at least what a fixed share does, and that more than no tiers", "source": "-",
                   "found": ", ".join(f"{size(a):.3g} / {size(s):.3g} / {size(p):.3g}" for a, s, p in autos),
                   "holds": all(size(a) >= size(s) > size(p) for a, s, p in autos)})
    for (billions, (_, published, row)), pair in zip(FASTER.items(), result["speeds"]):
        found = pair["static"]["step_s"] / pair["auto"]["step_s"]
        checks.append({"claim": f"`auto` is {published:g} times as fast as a static offload with {billions:g} billion parameters",
                       "source": f"gemini_colossalai_docs-{row}", "found": f"{found:.2f} (simulated, {FAST_BUDGET} GB)", "holds": found >= published})
    checks.append({"claim": "`auto` is never more than 3 % slower than `static`, step for step", "source": "-",
                   **never_slower(result["beside"])})
    moving = [r for r in result["beside"] if r["fits"]]
    checks.append({"claim": "no policy moves less to the device than the bound of its own uses", "source": "-",
                   "found": f"{sum(r['to_device_bytes'] < r['bound_bytes'] * (1 - 1e-9) for r in moving)} of {len(moving)} do",
                   "holds": all(r["to_device_bytes"] >= r["bound_bytes"] * (1 - 1e-9) for r in moving)})
    checks.append({"claim": "a thread rank holds and moves what the simulated one does, to the byte (small)", "source": "-",
                   "found": f"{sum(not alike(p) for p in result['pairs'])} of {len(result['pairs'])} differ",
                   "holds": all(map(alike, result["pairs"]))})
    return checks + experiment.proven([p["real"]["certificate"] for p in result["pairs"]])


def table(result, checks):
    budgets = sorted({r["budget_gb"] for r in result["rows"]})
    gb = lambda n: f"{n / 1e9:.3g}"
    lines = ["Largest model of the ladder, billions of parameters:", "",
             *experiment.markdown(("device, GB", *POLICIES, "host memory of `auto`, GB", "published: card, PyTorch, static offload, Gemini"),
                                  [(f"{b:g}", *(f"{size(row_of(result, p, b)):.3g}" if row_of(result, p, b)["fits"] else "-" for p in POLICIES),
                                    gb(row_of(result, "auto", b).get("host_bytes", 0)),
                                    ", ".join(f"{x:g}" if isinstance(x, float) else x for x in PUBLISHED[b][:4]) if b in PUBLISHED else "-")
                                   for b in budgets])]
    lines += ["", "What every policy moves in a step with the largest model of `auto`:", "",
              *experiment.markdown(("device, GB", "billions", "policy", "to the device, GB", "to the host, GB", "over the least, GB", "over the bound, GB", "step, s", "TFLOP/s", "peak, GB", "host, GB"),
                                   [(f"{r['budget_gb']:g}", f"{size(r):.3g}", r["policy"], gb(r["to_device_bytes"]), gb(r["to_host_bytes"]),
                                     "-" if r["regret_bytes"] is None else gb(r["regret_bytes"]), gb(r["to_device_bytes"] - r["bound_bytes"]), f"{r['step_s']:.3g}", f"{r['tflops']:.3g}",
                                     gb(r["peak_bytes"]), gb(r["host_bytes"]))
                                    if r["fits"] else (f"{r['budget_gb']:g}", "-", r["policy"], "out of memory", "-", "-", "-", "-", "-", "-", "-")
                                    for r in result["beside"]])]
    return "\n".join([*experiment.claims(checks), "", *lines]) + "\n"


def draw(result, out):
    figure, panel = experiment.subplots(figsize=(7.6, 4.2))
    looks = {"plain": style.INK, "static": style.VERMILION, "host": style.GREEN, "auto": style.BLUE}
    budgets = sorted({r["budget_gb"] for r in result["rows"]})
    for i, (policy, color) in enumerate(looks.items()):       # equal curves show inside of each other
        panel.plot(budgets, [size(row_of(result, policy, b)) or float("nan") for b in budgets], marker="o", color=color, label=policy,
                   linewidth=7 - 2 * i if i else 1.5, markersize=12 - 3 * i if i else 6)
    for name, at, mark in (("static offload, published", 2, "x"), ("Gemini, published", 3, "+")):
        cards = [b for b in budgets if b in PUBLISHED]
        panel.scatter(cards, [PUBLISHED[b][at] for b in cards], marker=mark, s=90, color=style.MUTED, zorder=3, label=name)
    panel.set(xscale="log", yscale="log", xlabel="device memory, GB", ylabel="largest model, billions of parameters",
              title="GPT-2, 4 samples of 1024, bf16, AdamW, all blocks recomputed; host memory without limit")
    panel.set_xticks(budgets, [f"{b:g}" for b in budgets])
    panel.minorticks_off()
    panel.legend(loc="lower right")
    experiment.save(figure, out, "gemini")


if __name__ == "__main__":
    sys.exit(experiment.main(__doc__, ROOT, "gemini", "small models alone", measure, verdicts, table, draw))
