#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws results/benchmarks/tables.md from the files beside it that meet the rule of scripts/check_results.py.

    .venv/bin/python scripts/report/benchmark_tables.py [--print]"""

import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "results" / "benchmarks"
for folder in ("scripts", "scripts/report", "experiments/micro"):
    sys.path.append(str(ROOT / folder))

import allreduce
import async_save
import check_results
import disk
from experiment import markdown


def spread(value, key="ci95"):
    low, high = value[key]
    return f"{value['value']:.2f} ({low:.2f} to {high:.2f})"


def step(d):
    """A row a ratio: what took turns, by how much the second is faster, how far losses are apart."""
    s, same = d["settings"], d["compared"]
    for name, value in d["ratios"].items():
        sides = [side for side in name.split(" / ") if side in same["losses"]]
        apart = max((same["losses"][side] for side in sides), default=None)
        yield (s["mode"], s["ranks"], s["hidden"], name, spread(value), "-" if apart is None else f"{apart:.1e}", same["steps"])


def optimizer(d):
    for w in d["worlds"]:
        t = w["step_s"]
        yield (w["rule"], w["ranks"], w["bytes_per_element"], *(f"{t[side]['median'] * 1e3:.1f}" for side in ("kuafu", "limit", "peer")),
               w["peer"], f"{t['kuafu']['gb_per_s']:.1f}", spread(w["limit / kuafu"], "quartiles"), spread(w["peer / kuafu"], "quartiles"))


def trace(d):
    with_it, again = d["cpu_ratio_in_a_round"]["with"], d["cpu_ratio_in_a_round"]["without_again"]
    yield (d["settings"]["hidden"], d["events"], f"{d['cpu_s']['without']['median'] * 1e3:.2f}", f"{d['cpu_s']['with']['median'] * 1e3:.2f}",
           *("{:.3f} ({:.3f} to {:.3f})".format(r["median"], *r["quartiles"]) for r in (with_it, again)))


def attention(d):
    for r in d["rows"]:
        yield r["ranks"], r["tokens"], r["mode"], f"{r['median_s']:.3f}", f"{r['speedup']:.2f}", r["peak_bytes"]


def experts(d):
    yield f"{d['step_s']['median']:.3f}", f"{d['dispatch_s']['median']:.3f}", f"{100 * d['share']:.1f} %", d["certificate"]["verdict"]


def scheme(s):
    return f"{s['settings']['mode']} on {s['settings']['ranks']}"


def predicted(d):
    for s in d["schemes"]:
        low, high = s["ratio"]["quartiles"]
        yield (scheme(s), f"{s['matmul_flops_per_s']['median'] / 1e9:.1f}", f"{s['link_bytes_per_s']['median'] / 1e9:.2f}",
               f"{s['predicted_s']['median'] * 1e3:.0f}", f"{s['step_s']['median'] * 1e3:.0f}", f"{s['ratio']['median']:.3f}",
               f"{low:.3f} to {high:.3f}")


def overhead(d):
    for s in d["schemes"]:
        parts = ("matmul", "attention", "copies", "model", "own", "all_but_matmul_attention_copies")
        yield scheme(s), f"{s['cpu_s']['median'] * 1e3:.0f}", *(f"{100 * s['share'][p]['median']:.2f}" for p in parts)


# Title, files, columns, rows of a file; where there are no columns, lines of a file.
SECTIONS = [
    ("A training step against PyTorch", "step-*.json",
     ("mode", "ranks", "hidden", "slower / faster", "ratio, 95 %", "losses apart", "steps compared"), step),
    ("All-reduce", "allreduce.json", None, lambda d: allreduce.table(d).splitlines()),
    ("The disk tier beside fio", "disk.json", None, lambda d: disk.table(d).splitlines()),
    ("The update", "optimizer.json", ("rule", "ranks", "bytes an element", "Kuafu, ms", "limit, ms", "LibTorch, ms", "by its", "Kuafu, GB/s",
                                      "limit / Kuafu, quartiles", "LibTorch / Kuafu, quartiles"), optimizer),
    ("What a trace costs", "trace*.json", ("hidden", "events", "without, ms", "with, ms", "with / without, quartiles",
                                           "without again / without"), trace),
    ("What a save costs", "async_save.json", None, lambda _: async_save.table().splitlines()),
    ("Dispatch of experts", "micro_experts-4ranks.json", ("step, s", "dispatch, s", "share", "certificate"), experts),
    ("Attention over a sharded sequence", "attention.json", ("ranks", "tokens", "mode", "s", "all-gather / mode", "peak, bytes"), attention),
    ("Steps against measured rates", "predicted-h1024.json",
     ("scheme", "GFLOP/s a rank", "GB/s a rank", "predicted, ms", "step, ms", "predicted / step", "quartiles"), predicted),
    ("Where the time of a step goes", "overhead-h1024.json",
     ("scheme", "CPU ms a step", "matmul %", "attention %", "copies %", "model %", "own %", "model + own %"), overhead),
]


def tables():
    """The page, and names of files that were left out."""
    index = tomllib.loads((ROOT / "results" / "index.toml").read_text(encoding="utf-8"))
    history, lines, left_out = check_results.History(ROOT), ["# Tables of the benchmarks", "",
                                                             "Drawn by `scripts/report/benchmark_tables.py`; `README.md` says what is measured and wanted."], []
    for title, pattern, columns, rows_of in SECTIONS:
        rows = []
        for file in sorted(FOLDER.glob(pattern)):
            name = f"benchmarks/{file.name}"
            problems = list(check_results.data_problems(name, index, ROOT, history))
            if set(problems) - set(check_results.lacking(name, index, problems)):
                left_out.append(file.name)
            else:
                rows += rows_of(json.loads(file.read_text(encoding="utf-8")))
        if rows:
            lines += ["", f"## {title}", "", *(markdown(columns, rows) if columns else rows)]
    return "\n".join(lines) + "\n", left_out


def main():
    if sys.argv[1:] not in ([], ["--print"]):
        sys.exit(__doc__)
    page, left_out = tables()
    print(page if sys.argv[1:] else "", f"left out, since they do not meet the rule: {', '.join(left_out) or 'none'}", sep="")
    if not sys.argv[1:]:
        (FOLDER / "tables.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
