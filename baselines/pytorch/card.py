# SPDX-License-Identifier: Apache-2.0
"""GPT of a plan's size on one card: PyTorch, eager or compiled, as people train on cards: parameters in f32,
products in bf16 under autocast, flash attention, fused AdamW, clipping by norm. Prints one JSON document.

  python baselines/pytorch/card.py --layers 24 --hidden 2048 --heads 16 --vocab 50304 --sequence 2048 --batch 8
  python baselines/pytorch/card.py ... --compile"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

import gpt

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "report"))
import provenance  # noqa: E402


class Model(gpt.Gpt):
    """The model of gpt.py with a vocabulary of any size."""

    def __init__(self, options):
        gpt.VOCABULARY = options.vocab
        super().__init__(options.layers, options.hidden, options.heads, options.sequence)


def build(options):
    with torch.device("cuda"):
        model = Model(options)
        tokens = torch.randint(options.vocab, (options.batch, options.sequence + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.01, fused=True)

    def loss_of(inputs, targets):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(inputs)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    if options.compile:
        loss_of = torch.compile(loss_of)

    def step():
        loss = loss_of(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return model, step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("layers", "hidden", "heads", "vocab", "sequence", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    parser.add_argument("--json", help="write the document to this file, too")
    parser.add_argument("--programs", default="build/release",
                        help="the build folder whose `kuafu` says where the document comes from")
    options = parser.parse_args()
    torch.manual_seed(1)
    model, step = build(options)
    samples = []
    for index in range(options.warmup + options.steps):
        start = time.perf_counter()
        loss = step().item()  # waits for the card
        if index >= options.warmup:
            samples.append(time.perf_counter() - start)
    median = statistics.median(samples)
    document = {
        "program": "pytorch compiled" if options.compile else "pytorch eager",
        "torch": torch.__version__,
        "card": torch.cuda.get_device_name(),
        "settings": vars(options),
        "parameters": sum(p.numel() for p in model.parameters()),
        "step_time_s": {"median": median, "samples": samples},
        "tokens_per_s": options.batch * options.sequence / median,
        "loss": loss,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "trains": False,  # nothing that is kept: it is timed
    }
    if options.json:
        found = provenance.block(options.programs, programs=("kuafu",))
        provenance.require_recordable(options.json, found)
        document["provenance"] = found
    text = json.dumps(document, indent=1)
    print(text)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            out.write(text + "\n")


if __name__ == "__main__":
    main()
