#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The largest batch and the longest sequence under a fixed memory budget, 1D against ring attention.

    scripts/python.sh experiments/long_sequence/run.py [--bin build/release/bin] [--draw]

Searches with `kuafu frontier` (exact simulated memory), tries what it found on real ranks, holds the claim of
arXiv 2105.13120 against it, and writes result.json and figures to results/long_sequence. --draw only draws."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "results" / "long_sequence"
sys.path.insert(0, str(ROOT / "scripts" / "report"))

import experiment
import provenance

# 1D stops at 12 ranks: BERT-Base has 12 heads. Ring has no such limit.
SIZES = {"1D": [1, 2, 4, 6, 12], "ring": [1, 2, 4, 8, 16, 32, 64]}
QUESTIONS = {  # name: (key, largest value tried, fixed settings)
    "batch": ("train.batch", 16384, ["model.sequence=512"]),
    "sequence": ("model.sequence", 262144, ["train.batch=64"]),
}
CLAIMS = [  # arXiv 2105.13120, abstract; sequence on 64 GPUs, tensor on the 12 that heads allow
    {"question": "batch", "claimed": 13.7, "sentence": "13.7x the batch of 1D at 64 GPUs"},
    {"question": "sequence", "claimed": 3.0, "sentence": "3x the sequence of 1D at 64 GPUs"},
]


def scheme(name: str, size: int) -> list:
    """The plan keys of a scheme on `size` ranks."""
    if name == "1D":
        mode = "1d" if size > 1 else "none"
        return [f"parallel.tensor.mode={mode}", f"parallel.tensor.size={size}", "parallel.data=1"]
    return ["parallel.sequence.mode=ring", f"parallel.sequence.size={size}", "parallel.data=1"]


def sets(values: list) -> list:
    return [word for value in values for word in ("--set", value)]


def frontier(kuafu: Path, plan: Path, key: str, most: int, settings: list) -> dict:
    """What `kuafu frontier` found: value, next legal value, bytes."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        done = subprocess.run([kuafu, "frontier", plan, "--vary", key, "--max", str(most), "--json", answer,
                               *sets(settings)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode not in (0, 4):
            raise SystemExit(f"kuafu frontier failed ({done.returncode}): {done.stderr}")
        return json.loads(answer.read_text())


def search(kuafu: Path) -> list:
    points = []
    for question, (key, most, fixed) in QUESTIONS.items():
        for name, sizes in SIZES.items():
            for size in sizes:
                found = frontier(kuafu, HERE / "bert_base.toml", key, most, fixed + scheme(name, size))
                points.append({"question": question, "scheme": name, "ranks": size, "value": found["value"],
                               "next": found["next"], "peak_bytes": found.get("peak_bytes"),
                               "budget_bytes": found["budget_bytes"]})
                print(f"{question}: {name} on {size} ranks: {found['value']}", flush=True)
    return points


def try_for_real(kuafu: Path) -> list:
    """Thread ranks under the same budget: the value found must train, with the bytes foretold; the next must not."""
    checks = []
    for question, (key, most, fixed) in (("batch", ("train.batch", 4096, [])),
                                         ("sequence", ("model.sequence", 65536, ["train.batch=4"]))):
        for name, size in (("1D", 4), ("ring", 2), ("ring", 4)):
            settings = fixed + scheme(name, size)
            found = frontier(kuafu, HERE / "small.toml", key, most, settings)
            with tempfile.TemporaryDirectory() as folder:
                document = Path(folder) / "run.json"
                codes = [subprocess.run([kuafu, "run", HERE / "small.toml", "--world", "threads", "--certify", "--json", document,
                                         *sets(settings + [f"{key}={value}"])], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL).returncode
                         for value in (found["next"], found["value"])]
                trained = json.loads(document.read_text())
                measured = max(trained["memory"]["peak_bytes"])
            checks.append({"question": question, "scheme": name, "ranks": size, "value": found["value"],
                           "next": found["next"], "next_is_out_of_memory": codes[0] == 4, "value_runs": codes[1] == 0,
                           "peak_bytes_simulated": found["peak_bytes"], "peak_bytes_measured": measured,
                           "certificate": experiment.proof(trained)})
            print(f"real ranks: {checks[-1]}", flush=True)
    return checks


def judge(points: list) -> list:
    best = {(p["question"], p["scheme"], p["ranks"]): p["value"] for p in points}
    verdicts = []
    for claim in CLAIMS:
        q = claim["question"]
        ratio = best[q, "ring", 64] / best[q, "1D", 12]
        verdicts.append({**claim, "measured": ratio, "error": ratio / claim["claimed"] - 1,
                         "at_equal_ranks_4": best[q, "ring", 4] / best[q, "1D", 4],
                         "verdict": "holds" if ratio >= claim["claimed"] else "does not hold"})
    return verdicts


def draw(result: dict) -> None:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    import style
    looks = {"1D": style.STRATEGIES["1D tensor"], "ring": style.AXES["sequence"]}
    titles = {"batch": "Largest batch, sequence 512", "sequence": "Longest sequence, batch 64"}
    with matplotlib.rc_context(style.MATPLOTLIB):
        figure, panels = pyplot.subplots(1, 2, figsize=(7.2, 3.0), layout="constrained")
        for panel, question in zip(panels, QUESTIONS):
            for name, (color, marker) in looks.items():
                points = [p for p in result["points"] if p["question"] == question and p["scheme"] == name]
                panel.plot([p["ranks"] for p in points], [p["value"] for p in points], color=color, marker=marker[0],
                           label=f"{name}, up to {points[-1]['ranks']} ranks")
            panel.set(title=titles[question], xlabel="ranks", xscale="log", yscale="log")
            panel.set_xscale("log", base=2)
            panel.set_yscale("log", base=2)
            panel.xaxis.set_major_formatter("{x:.0f}")
            panel.yaxis.set_major_formatter("{x:.0f}")
            panel.legend()
        for kind in ("svg", "png"):
            figure.savefig(OUT / f"frontier.{kind}", metadata={"Date": None} if kind == "svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    file = OUT / "result.json"
    if not options.draw:
        before = provenance.begin(options.bin.parent, OUT)
        kuafu = options.bin / "kuafu"
        checks = try_for_real(kuafu)
        points = search(kuafu)
        result = {"experiment": "long_sequence", "provenance": before, "source": "arXiv 2105.13120", "points": points,
                  "real_ranks": checks, "claims": judge(points)}
        provenance.write(file, result)
    result = json.loads(file.read_text())
    draw(result)
    for claim in result["claims"]:
        print(f"{claim['sentence']}: measured {claim['measured']:.1f}x: {claim['verdict']}")
    bad = [c for c in result["real_ranks"] if not (c["value_runs"] and c["next_is_out_of_memory"] and
                                                   c["peak_bytes_measured"] == c["peak_bytes_simulated"] and
                                                   c.get("certificate", {"verdict": "equal"})["verdict"] == "equal")]
    if bad:
        raise SystemExit(f"simulated and real ranks disagree: {bad}")


if __name__ == "__main__":
    main()
