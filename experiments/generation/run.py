#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of OPT whose weights do not fit a card: simulated beside published rows, at equal and at best batch; and a small model for real.

    .venv/bin/python experiments/generation/run.py [--build build/release] [--out results/generation] [--draw] [--quick]

Writes result.json, table.md and the figure. --draw only draws what result.json holds, --quick takes the smallest model and one round. A call after a
kill goes on. Exits with 1 where a claim does not hold."""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "scripts" / "report"))

import experiment
import style

PROMPT, TOKENS = 512, 32
MODELS = {"opt-6.7b": {"model.layers": 32, "model.hidden": 4096, "model.heads": 32},
          "opt-30b": {"model.layers": 48, "model.hidden": 7168, "model.heads": 56},
          "opt-175b": {"model.layers": 96, "model.hidden": 12288, "model.heads": 96}}
SOURCE = tomllib.loads((HERE / "flexgen.toml").read_text(encoding="utf-8"))
PUBLISHED = {row["model"]: row for row in SOURCE["rows"]}
EQUAL = 4           # prompts at a time, as DeepSpeed took of OPT-30B
MOST = 512          # that are tried for the best batch
# What stays where, as plans and options of `kuafu generate` say it.
SYSTEMS = {"weights streamed": ({"memory.policy": "host"}, []),
           "a share stays": ({"memory.policy": "static"}, []),
           "a share stays, keys on the host": ({"memory.policy": "static"}, ["--cache", "host"]),
           "weights on a disk, keys on the host": ({"memory.policy": "host"}, ["--weights", "disk", "--cache", "host"])}
STREAMED, BEST = "weights streamed", "a share stays, keys on the host"
LINK = 0.15         # GB/s of the small model, and of its disk
ON_DISK = "weights on a disk"
ROUNDS = 5
SMALL = {"prefetch 0": {"memory.prefetch": 0}, "prefetch 1": {"memory.prefetch": 1},
         "a share stays": {"memory.policy": "static", "memory.static_share": 0.5, "memory.device": "64 MB"},
         "keys on the host": {"memory.prefetch": 1}, ON_DISK: {"memory.prefetch": 1, "memory.disk_path": "/var/tmp"}}
MOVES = ("to_device_bytes", "cache_to_device_bytes", "from_disk_bytes")
SMALL_PROMPTS = ("int main() {", "the quick", "a", "namespace kuafu")


def generated(build, plan, settings, *words, may_end=("ok",)):
    """The document of `kuafu generate`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "document.json"
        call = [build / "bin" / "kuafu", "generate", HERE / plan, "--json", file, *words]
        for key, value in settings.items():
            call += ["--set", f"{key}={json.dumps(value)}"]
        done = subprocess.run([str(w) for w in call], capture_output=True, text=True)
        document = json.loads(file.read_text()) if file.exists() else {"status": "none", "reason": done.stderr}
    if document["status"] not in may_end:
        sys.exit(f"{settings}: {document['status']}: {document['reason']}")
    return document


def simulated(build, model, system, batch):
    """`batch` prompts at a time; None: as many as fit."""
    settings, words = SYSTEMS[system]
    fit = ["--fit"] if batch is None else []
    document = generated(build, "card.toml", MODELS[model] | settings | {"train.batch": batch or MOST}, "--world", "simulated",
                         "--prompt-tokens", PROMPT, "--tokens", TOKENS, *words, *fit, may_end=("ok", "out_of_memory"))
    row = {"model": model, "system": system, "asked": batch or "best"}
    if document["status"] != "ok":
        return row | {"reason": document["reason"]}
    made = document["generation"]
    return row | {key: made[key] for key in ("batch", "tokens_per_s", "first_token_s", "token_s", "cache_bytes")} | {
        "peak_bytes": made["peak_bytes"][0], "host_bytes": made["host_peak_bytes"][0], "to_device_bytes": document["moves"]["to_device_bytes"][0],
        "cache_to_device_bytes": document["moves"].get("cache_to_device_bytes", [0])[0]}


def small(build, name, round_):
    """For real over a link that is held back, and in round 0 the same simulated, for its bytes."""
    settings = SMALL[name] | {"cluster.host_gbs": LINK, "cluster.disk_gbs": LINK}
    words = {"keys on the host": ["--cache", "host"], ON_DISK: ["--weights", "disk"]}.get(name, [])
    moved = lambda document: {key: document["moves"].get(key, [0])[0] for key in MOVES}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as prompts:
        prompts.write("\n".join(SMALL_PROMPTS) + "\n")
        prompts.flush()
        document = generated(build, "small.toml", settings, "--file", prompts.name, "--tokens", TOKENS // 2, *words)
    made = document["generation"]
    row = {"small": name, "round": round_, "token_s": (made["seconds"] - made["first_token_s"]) / (TOKENS // 2 - 1),
           "tokens": [p["tokens"] for p in made["prompts"]], **moved(document)}
    if round_ > 0:
        return row
    longest = max(len(p.encode()) for p in SMALL_PROMPTS)
    twin = generated(build, "small.toml", settings, "--world", "simulated", "--prompt-tokens", longest, "--tokens", TOKENS // 2, *words)
    return row | {"simulated": moved(twin)}


def measure(options):
    models = list(MODELS)[:1] if options.quick else list(MODELS)
    cases = [("simulated", m, s, b) for m in models for s in SYSTEMS for b in (EQUAL, None)]
    for r in range(1 if options.quick else ROUNDS):
        mine = [("small", name, r) for name in SMALL]
        random.Random(r).shuffle(mine)
        cases += mine
    programs = [options.build / "bin" / "kuafu-worker", HERE / "card.toml", HERE / "small.toml", HERE / "run.py"]
    one = lambda kind, *case: (simulated if kind == "simulated" else small)(options.build, *case)
    rows = experiment.measured(cases, one, options.out, programs)
    experiment.finished(options.out)
    return {"trains": False, "rows": [r for r in rows if "model" in r], "small": [r for r in rows if "small" in r]}


def row_of(result, model, system, asked):
    return next((r for r in result["rows"] if (r["model"], r["system"], r["asked"]) == (model, system, asked)), None)


def rate(result, model, system, asked):
    """Tokens per second; None where it does not fit, or was not asked."""
    row = row_of(result, model, system, asked)
    return row.get("tokens_per_s") if row else None


def best(result, model):
    """The fastest system at its best batch: (rate, system), or None."""
    rates = [(rate(result, model, s, "best"), s) for s in SYSTEMS if rate(result, model, s, "best")]
    return max(rates) if rates else None


def token_s(result, name):
    return statistics.median(r["token_s"] for r in result["small"] if r["small"] == name)


def verdicts(result):
    checks = []
    if any(r["model"] == "opt-30b" for r in result["rows"]):
        published = PUBLISHED["opt-30b"]
        top, streamed = best(result, "opt-30b"), rate(result, "opt-30b", STREAMED, EQUAL)
        gain = top[0] / streamed
        checks += [
            {"claim": f"OPT-30B at the best batch is at least 10 times as fast as at {EQUAL} prompts with weights streamed "
                      f"(published: {published['flexgen'] / published['deepspeed']:.1f})", "found": f"{gain:.1f}", "holds": gain >= 10},
            {"claim": f"OPT-30B, {EQUAL} prompts, weights streamed: within a factor of 1.5 of DeepSpeed's {published['deepspeed']:.2f} tokens/s",
             "found": f"{streamed:.2f}", "holds": 1 / 1.5 <= streamed / published["deepspeed"] <= 1.5},
            {"claim": f"OPT-30B at the best batch: within a factor of 1.5 of FlexGen's {published['flexgen']:.2f} tokens/s",
             "found": f"{top[0]:.2f}", "holds": 1 / 1.5 <= top[0] / published["flexgen"] <= 1.5}]
    if any(r["model"] == "opt-175b" for r in result["rows"]):
        top = best(result, "opt-175b")
        checks.append({"claim": "OPT-175B generates on this card and 208 GB of host memory, as FlexGen does with a disk beside them",
                       "found": f"{top[0]:.2f} tokens/s" if top else "no", "holds": top is not None})
        published = PUBLISHED["opt-175b"]["flexgen"]
        if top:
            checks.append({"claim": f"OPT-175B at the best batch: within a factor of 2 of FlexGen's {published:.2f} tokens/s",
                           "found": f"{top[0]:.2f}", "holds": 0.5 <= top[0] / published <= 2})
    names = list(dict.fromkeys(r["small"] for r in result["small"]))
    first = [r for r in result["small"] if "simulated" in r]
    same = [all(r[k] == r["simulated"][k] for k in r["simulated"]) for r in first]
    alike = len({json.dumps(r["tokens"]) for r in result["small"]}) == 1
    hidden = token_s(result, "prefetch 0") / token_s(result, "prefetch 1")
    kept = token_s(result, "prefetch 1") / token_s(result, "a share stays")
    return checks + [
        {"claim": "the small model for real: bytes to the device are the simulated ones", "found": f"{sum(same)} of {len(same)}", "holds": all(same)},
        {"claim": f"the small model: the same tokens in every round of all {len(names)}", "found": "yes" if alike else "no", "holds": alike},
        {"claim": "the small model: a token without prefetch takes longer", "found": f"{hidden:.2f} times", "holds": hidden > 1},
        {"claim": "the small model: with half of the weights on the device a token takes less time", "found": f"{kept:.2f} times as fast", "holds": kept > 1}]


def table(result, checks):
    lines = []
    for r in result["rows"]:
        published = PUBLISHED[r["model"]]
        beside = "FlexGen " + format(published["flexgen"], ".4g") if r["asked"] == "best" else "DeepSpeed " + format(published["deepspeed"], ".4g")
        if "reason" in r:
            lines.append((r["model"], r["system"], r["asked"], "-", "-", "-", "-", "-", beside))
            continue
        lines.append((r["model"], r["system"], r["batch"], f"{r['tokens_per_s']:.3g}", f"{r['first_token_s']:.3g}", f"{r['token_s']:.3g}",
                      f"{r['peak_bytes'] / 1e9:.3g}", f"{r['host_bytes'] / 1e9:.3g}", beside))
    small_lines = [(name, f"{1e3 * token_s(result, name):.3g}",
                    *[f"{next(r for r in result['small'] if r['small'] == name)[k] / 1e6:.3g}" for k in MOVES])
                   for name in dict.fromkeys(r["small"] for r in result["small"])]
    return "\n".join([*experiment.claims(checks), "",
                      *experiment.markdown(("model", "system", "prompts", "tokens/s", "first token, s", "each token, s", "device, GB", "host, GB", "published"), lines), "",
                      f"Published: {SOURCE['source']}. -: it does not fit.", "",
                      *experiment.markdown(("small model", "each token, ms", "weights to the device, MB", "keys and values, MB", "weights from the disk, MB"), small_lines)]) + "\n"


def draw(result, out):
    figure, panel = experiment.subplots(figsize=(7.2, 3.8))
    models = [m for m in MODELS if row_of(result, m, STREAMED, EQUAL)]
    bars = [(f"{STREAMED}, {EQUAL} prompts", style.MUTED, [rate(result, m, STREAMED, EQUAL) for m in models]),
            ("best batch", style.BLUE, [(best(result, m) or (None,))[0] for m in models]),
            ("FlexGen, published", style.VERMILION, [PUBLISHED[m]["flexgen"] for m in models])]
    for i, (label, color, rates) in enumerate(bars):
        panel.bar([at + 0.27 * (i - 1) for at in range(len(models))], [r or 0 for r in rates], 0.25, color=color, label=label)
    low = min(r for _, _, rates in bars for r in rates if r)
    for i, (_, _, rates) in enumerate(bars):
        for at in (at for at, r in enumerate(rates) if not r):
            panel.text(at + 0.27 * (i - 1), 1.05 * low, "does not fit", ha="center", va="bottom", fontsize=8, rotation=90)
    panel.set_xticks(range(len(models)), models)
    panel.set(ylabel="tokens/s", yscale="log", title="Simulated on a card of 16 GB, 512 + 32 tokens, beside a published row")
    panel.legend()
    experiment.save(figure, out, "generation")


if __name__ == "__main__":
    sys.exit(experiment.main(__doc__, ROOT, "generation", "the smallest model, and one round", measure, verdicts, table, draw))
