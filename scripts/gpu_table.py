#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/gpu.sh recorded, as results/gpu/table.md.

    scripts/gpu_table.py            writes it
    scripts/gpu_table.py --print    prints it"""

import json
import sys
from pathlib import Path

PLACE = Path(__file__).resolve().parents[1] / "results" / "gpu"
DENSE_BF16 = 989e12     # FLOP/s of an H100 or H200, dense bf16, by NVIDIA's data sheet


def read(name):
    return json.loads((PLACE / name).read_text(encoding="utf-8"))


def model_lines():
    run = read("gpt-1.3b.json")
    seconds, low, high = run["step_time_s"]["median"], *run["step_time_s"]["ci95"]
    flops = run["flops_per_step"]
    share = [100 * flops / s / DENSE_BF16 for s in (seconds, high, low)]
    yield f"GPT, {run['parameters']['total'] / 1e9:.2f} billion parameters, bf16, on {run['device']}:"
    yield ""
    yield "| step | tokens/s | model FLOPs a step | share of 989 TFLOP/s | peak memory | certificate |"
    yield "|---|---|---|---|---|---|"
    yield (f"| {1e3 * seconds:.0f} ms [{1e3 * low:.0f}, {1e3 * high:.0f}] | {run['tokens_per_s']:.0f} | "
           f"{flops / 1e12:.1f} TFLOP | {share[0]:.1f} % [{share[1]:.1f}, {share[2]:.1f}] | "
           f"{run['memory']['peak_bytes'][0] / 2**30:.1f} GiB | {run['certificate']['verdict']} ({run['certificate']['level']}) |")


def card_lines():
    bench = read("bench-card.json")
    yield f"Pieces on {bench['card']}, median [least, most] of {bench['samples']} samples (copies with the host: 7):"
    yield ""
    yield "| what | GB/s | of its limit |"
    yield "|---|---|---|"
    for row in bench["rows"]:
        share = f"{row['share_of_limit']:.2f}" if "share_of_limit" in row else "the limit"
        yield f"| {row['name']} | {row['gbs_median']:.0f} [{row['gbs_low']:.0f}, {row['gbs_high']:.0f}] | {share} |"


def certified_lines():
    yield "Thread ranks that share the card, `examples/gpt.toml` with 8 heads:"
    yield ""
    yield "| plan | dtype | loss, first and last step | certificate |"
    yield "|---|---|---|---|"
    for file in sorted(PLACE.glob("certified-*.json")):
        run = json.loads(file.read_text(encoding="utf-8"))
        tensor = run["plan"]["parallel"]["tensor"]
        losses = run["loss"]
        yield (f"| {tensor['mode']} on {run['ranks']} | {run['plan']['model']['dtype']} | {losses[0]:.6f}, {losses[-1]:.6f} | "
               f"{run['certificate']['verdict']} ({run['certificate']['level']}) |")


def main():
    parts = [model_lines(), card_lines(), certified_lines()]
    text = "\n\n".join("\n".join(part) for part in parts) + "\n"
    if "--print" in sys.argv[1:]:
        print(text, end="")
    else:
        (PLACE / "table.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
