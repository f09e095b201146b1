#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of one thread rank whose parameters come and go over a throttled link, by the rules of known systems and by the least bytes there are.

    .venv/bin/python experiments/offload_baselines/run.py [--build build/release] [--out results/offload_baselines] [--draw] [--quick]

Writes result.json, table.md and the figure. --draw only draws what result.json holds, --quick makes one round of one budget with fewer blocks and steps. A call after a
kill goes on. Exits with 1 where a claim does not hold."""

import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "scripts" / "report"))

import experiment
import style

# How each system chooses what leaves the device, as plans say it.
SYSTEMS = {"all offloaded": {"policy": "host"},
           "deepspeed_style": {"policy": "static"},                          # ZeRO-Offload: a fixed share stays
           "patrickstar_style": {"policy": "auto", "horizon": "cycle"},      # the furthest next use, into the next step
           "gemini_style": {"policy": "auto"},                               # the furthest next use of this step
           "gemini_style, no prefetch": {"policy": "auto", "prefetch": 0},
           "optimal": {"policy": "optimal"}}                                 # the least bytes of the step, searched for offline
STATIC, GEMINI, BEST, BLIND = "deepspeed_style", "gemini_style", "optimal", "gemini_style, no prefetch"
NONE, FITS = "no tiers", "everything fits"
# Of what lies between the least a step needs and all of it on the device.
SHARES = (0.2, 0.5, 0.8)
# A100-class card at the rates of experiments/gemini: 150 TFLOP/s of products, 20 GB/s to its host each way.
FLOP_PER_BYTE = 150e12 / 20e9
CHUNK = 65536
ROUNDS = 6
WARM_UP = 2         # steps
WORTH = 1.02        # static over optimal, from which on there is something to recover
QUICK = {"model.layers": 4, "train.steps": WARM_UP + 2}


def document_of(build, settings, *more):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "document.json"
        words = [build / "bin" / "kuafu", "run", HERE / "plan.toml", "--json", file, *more]
        for key, value in settings.items():
            words += ["--set", f"{key}={json.dumps(value)}"]
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
        if not file.exists():
            sys.exit(f"{settings}: {done.stderr}")
        document = json.loads(file.read_text())
    if document["status"] != "ok":
        sys.exit(f"{settings}: {document['status']}: {document['reason']}")
    return document


def keys_of(system, budget, gbs):
    keys = {f"memory.{k}": v for k, v in SYSTEMS[system].items()} | {"memory.chunk_size": CHUNK, "cluster.host_gbs": gbs, "memory.throttle": True}
    return keys | ({} if SYSTEMS[system]["policy"] == "host" else {"memory.device": budget})


def scale_of(build, settings):
    """Bytes that the step needs at least and with everything on the device; the rate of a link of as many FLOP a byte as the card's."""
    plain = document_of(build, settings)
    least = document_of(build, settings | {"memory.policy": "host", "memory.chunk_size": CHUNK, "memory.prefetch": 0}, "--world", "simulated")
    parameters = 4 * plain["parameters"]["total"]
    flops = plain["flops_per_step"] / plain["step_time_s"]["median"]
    low = least["memory"]["peak_bytes"][0]
    return {"least_bytes": low, "all_bytes": low + parameters, "gflops": flops / 1e9, "plain_step_s": plain["step_time_s"]["median"],
            "link_gbs": flops / FLOP_PER_BYTE / 1e9, "loss": plain["loss"], "settings": settings}


def row_of(build, scale, system, share, round_):
    budget = round(scale["least_bytes"] + share * (scale["all_bytes"] - scale["least_bytes"]))
    document = document_of(build, scale["settings"] | keys_of(system, budget, scale["link_gbs"]), *(["--certify"] if round_ == 0 else []))
    moves = document["moves"]
    samples = document["step_time_s"]["samples"][WARM_UP:]
    return {"system": system, "share": share, "round": round_, "budget_bytes": budget, "step_s": statistics.median(samples),
            "to_device_bytes": moves["step_to_device_bytes"][0], "to_host_bytes": moves["step_to_host_bytes"][0],
            "wait_s": moves["wait_s"][0] / len(document["step_time_s"]["samples"]), "same_losses": document["loss"] == scale["loss"],
            **({"certificate": experiment.proof(document)} if round_ == 0 else {})}


def fitting(build, scale, system, _, round_):
    """A step where everything fits, and the link is as fast as it is: beside one without tiers."""
    tiers = {} if system == NONE else {"memory.policy": SYSTEMS[system]["policy"], "memory.chunk_size": CHUNK, "memory.device": 4 * scale["all_bytes"]}
    document = document_of(build, scale["settings"] | tiers)
    return {"system": system, "round": round_, "step_s": statistics.median(document["step_time_s"]["samples"][WARM_UP:])}


def measure(options):
    rounds, shares = (1, SHARES[1:2]) if options.quick else (ROUNDS, SHARES)
    programs = [options.build / "bin" / "kuafu-worker", HERE / "plan.toml", HERE / "run.py"]
    scale = experiment.measured([("scale",)], lambda _: scale_of(options.build, QUICK if options.quick else {}), options.out, programs)[0]
    cases = [("scale",)]
    for r in range(rounds):      # all once a round, in an order of its own
        mine = [(s, share, r) for share in shares for s in SYSTEMS] + [(s, FITS, r) for s in (NONE, GEMINI)]
        random.Random(r).shuffle(mine)
        cases += mine
    one = lambda *case: scale if case == ("scale",) else (fitting if case[1] == FITS else row_of)(options.build, scale, *case)
    rows = experiment.measured(cases, one, options.out, programs)[1:]
    experiment.finished(options.out)
    certified = [{"system": r["system"], "share": r["share"], "certificate": r.pop("certificate")} for r in rows if "certificate" in r]
    return {"scale": scale, "rows": [r for r in rows if "share" in r], "fits": [r for r in rows if "share" not in r], "certified": certified}


def times(result, system, share):
    return [r["step_s"] for r in sorted(result["rows"], key=lambda r: r["round"]) if (r["system"], r["share"]) == (system, share)]


def shares_of(result):
    return sorted({r["share"] for r in result["rows"]})


def ratios(result, above, below, share):
    """Round by round: their median, least and most."""
    all_ = [a / b for a, b in zip(times(result, above, share), times(result, below, share), strict=True)]
    return statistics.median(all_), min(all_), max(all_)


def overhead(result):
    """Round by round, a step with tiers where everything fits over one without: median, least and most."""
    of = {(r["system"], r["round"]): r["step_s"] for r in result["fits"]}
    all_ = [of[GEMINI, r] / of[NONE, r] for s, r in of if s == NONE]
    return statistics.median(all_), min(all_), max(all_)


def recovered(result, share):
    """Of the time by which the optimum beats the fixed share, what Gemini's rule gains; None where there is nothing to gain."""
    static, gemini, best = (statistics.median(times(result, s, share)) for s in (STATIC, GEMINI, BEST))
    return (static - gemini) / (static - best) if static / best > WORTH else None


def hidden(result, share):
    """Of the time that a step without prefetch is longer than its computing and than each queue's copies, what prefetch takes away;
    None where there is nothing to hide."""
    blind, seen = (statistics.median(times(result, s, share)) for s in (BLIND, GEMINI))
    row = next(r for r in result["rows"] if (r["system"], r["share"]) == (GEMINI, share))
    scale = result["scale"]
    bound = max(scale["plain_step_s"], max(row["to_device_bytes"], row["to_host_bytes"]) / scale["link_gbs"] / 1e9)
    return (blind - seen) / (blind - bound) if blind / bound > WORTH else None


def spread(r):
    return f"{r[0]:.3f} [{r[1]:.3f}, {r[2]:.3f}]"


def verdicts(result):
    shares = shares_of(result)
    gains = {s: recovered(result, s) for s in shares}
    known = [g for g in gains.values() if g is not None]
    slower = [ratios(result, GEMINI, STATIC, s) for s in shares]
    bytes_of = {(r["system"], r["share"]): r["to_device_bytes"] + r["to_host_bytes"] for r in result["rows"]}
    checks = [
        {"claim": f"`{GEMINI}` recovers at least 80 % of the time by which `{BEST}` beats `{STATIC}`",
         "found": ", ".join("-" if g is None else f"{100 * g:.0f} %" for g in gains.values()), "holds": bool(known) and min(known) >= 0.8},
        {"claim": f"`{GEMINI}` is never more than 3 % slower than `{STATIC}`", "found": ", ".join(map(spread, slower)),
         "holds": max(r[0] for r in slower) <= 1.03},
        {"claim": "prefetch hides at least 80 % of what can be hidden behind computing and copies",
         "found": ", ".join("-" if hidden(result, s) is None else f"{100 * hidden(result, s):.0f} %" for s in shares),
         "holds": all(hidden(result, s) is None or hidden(result, s) >= 0.8 for s in shares) and any(hidden(result, s) is not None for s in shares)},
        {"claim": "where everything fits, tiers take less than 3 % of a step", "found": spread(overhead(result)), "holds": overhead(result)[0] <= 1.03},
        {"claim": f"nobody moves fewer bytes than `{BEST}`",
         "found": ", ".join(f"{min(bytes_of[s, share] / bytes_of[BEST, share] for s in SYSTEMS):.3f}" for share in shares),
         "holds": all(bytes_of[s, share] >= bytes_of[BEST, share] for s in SYSTEMS for share in shares)},
        {"claim": "every loss has the bits of the run without tiers", "found": f"{sum(r['same_losses'] for r in result['rows'])} of {len(result['rows'])}",
         "holds": all(r["same_losses"] for r in result["rows"])}]
    return checks + experiment.proven([r["certificate"] for r in result["certified"]])


def table(result, checks):
    scale, lines = result["scale"], []
    for share in shares_of(result):
        for system in SYSTEMS:
            row = next(r for r in result["rows"] if (r["system"], r["share"]) == (system, share))
            lines.append((f"{share:g}", "-" if system == "all offloaded" else f"{row['budget_bytes'] / 1e6:.3g}", system,
                          f"{row['to_device_bytes'] / 1e6:.3g}", f"{row['to_host_bytes'] / 1e6:.3g}",
                          f"{statistics.median(r['wait_s'] for r in result['rows'] if (r['system'], r['share']) == (system, share)):.3g}",
                          f"{statistics.median(times(result, system, share)):.3g}", spread(ratios(result, system, STATIC, share))))
    return "\n".join([*experiment.claims(checks), "",
                      f"{scale['gflops']:.3g} GFLOP/s of a rank, {scale['link_gbs'] * 1e3:.3g} MB/s each way; a step without tiers takes {scale['plain_step_s']:.3g} s, "
                      f"needs {scale['least_bytes'] / 1e6:.3g} MB at least and {scale['all_bytes'] / 1e6:.3g} MB with all parameters there.", "",
                      *experiment.markdown(("share", "device, MB", "system", "to the device, MB", "to the host, MB", "waited, s a step", "step, s", f"step / {STATIC}"),
                                           lines)]) + "\n"


def draw(result, out):
    figure, panel = experiment.subplots(figsize=(7.2, 3.8))
    colors = (style.MUTED, style.VERMILION, style.GREEN, style.BLUE, None, style.INK)
    for system, color in zip(SYSTEMS, colors):
        if color is None:
            continue
        medians = [statistics.median(times(result, system, s)) for s in shares_of(result)]
        panel.plot(shares_of(result), medians, marker="o", color=color, label=system)
    panel.axhline(result["scale"]["plain_step_s"], color=style.MUTED, linestyle=":", label="no tiers")
    panel.set(xlabel="budget: share of the parameters beyond what a step needs at least", ylabel="step, s", ylim=(0, None),
              title="GPT of 16 layers, f32, one thread rank; a link of 7,500 FLOP a byte")
    panel.legend(loc="lower left")
    experiment.save(figure, out, "offload_baselines")


if __name__ == "__main__":
    sys.exit(experiment.main(__doc__, ROOT, "offload_baselines", "one round of one budget", measure, verdicts, table, draw))
