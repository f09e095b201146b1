# SPDX-License-Identifier: Apache-2.0
"""Prompts and continuations by `kuafu generate` and by transformers: the same weights, the same prompts, greedy, f32, one thread, in turns.

    scripts/transformers.sh experiments/micro/generation.py [--layers 4 --hidden 512 --heads 8] [--batch 4] [--prompt 128] [--tokens 128] [--rounds 5]
                                                            [--json results/benchmarks/generation.json]

The model is a GPT-2 of random weights whose tokens are bytes; transformers computes it eagerly with its cache of keys and values. Of each side the
time to the first token of all prompts (prefill) and from there to the last (decoding). Tokens are held to be the same before anything is timed."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "report"))

import provenance

BIN = Path(os.environ.get("KUAFU_BINARY_DIR", ROOT / "build" / "release")) / "bin"


def called(*words, **more):
    done = subprocess.run([BIN / "kuafu", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | more)
    if done.returncode:
        raise SystemExit(f"kuafu {words[0]} failed ({done.returncode}): {done.stderr}")
    return done.stdout


def plan_words(options):
    keys = {"model.layers": options.layers, "model.hidden": options.hidden, "model.heads": options.heads, "model.vocab": 256,
            "model.sequence": options.prompt + options.tokens + 1, "model.norm_epsilon": 1e-5, "data.kind": "synthetic", "train.batch": options.batch, "train.steps": 1,
            "train.validation_batches": 0, "optimizer.kind": "sgd", "optimizer.momentum": 0, "optimizer.lr": 1e-6}
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


def by_kuafu(options, own):
    found = own / "found.json"
    called("generate", "/dev/null", "--checkpoint", own / "saved", "--file", own / "prompts", "--tokens", options.tokens, "--json", found, *plan_words(options),
           OMP_NUM_THREADS="1")
    made = json.loads(found.read_text())["generation"]
    first = max(p["first_token_s"] for p in made["prompts"])
    return {"prefill_s": first, "decoding_s": made["seconds"] - first}, [p["tokens"] for p in made["prompts"]]


def lines_of(options):
    """A prompt of options.prompt letters for each sample."""
    return ["".join(chr(97 + (7 * i * i + 5 * i + 3 * b) % 26) for i in range(options.prompt)) for b in range(options.batch)]


class Clock(transformers.StoppingCriteria):
    """When tokens came: it is asked after each of them."""

    def __init__(self):
        self.at = []

    def __call__(self, ids, scores, **more):
        self.at.append(time.monotonic())
        return torch.zeros(ids.shape[0], dtype=torch.bool)


def by_transformers(options, model, prompts):
    clock = Clock()
    begin = time.monotonic()
    with torch.inference_mode():
        ids = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=options.tokens, min_new_tokens=options.tokens, do_sample=False,
                             use_cache=True, pad_token_id=0, eos_token_id=None, stopping_criteria=[clock])
    end = time.monotonic()
    return {"prefill_s": clock.at[0] - begin, "decoding_s": end - clock.at[0]}, ids[:, options.prompt:].tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 4), ("hidden", 512), ("heads", 8), ("batch", 4), ("prompt", 128), ("tokens", 128), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    found = provenance.begin(BIN.parent, options.json, ("kuafu-worker",)) if options.json else None
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as own:
        own = Path(own)
        called("run", "/dev/null", "--checkpoint", own / "saved", *plan_words(options))
        called("export", own / "saved", "--format", "hf", "--out", own / "theirs")
        model = transformers.AutoModelForCausalLM.from_pretrained(own / "theirs", dtype=torch.float32, attn_implementation="eager").eval()
        lines = lines_of(options)
        (own / "prompts").write_text("".join(line + "\n" for line in lines))
        prompts = torch.tensor([list(line.encode()) for line in lines])
        sides = {"kuafu": lambda: by_kuafu(options, own), "transformers": lambda: by_transformers(options, model, prompts)}
        tokens = {name: side()[1] for name, side in sides.items()}
        if tokens["kuafu"] != tokens["transformers"]:
            raise SystemExit("the tokens are not the same: nothing was timed")
        rounds = [{name: sides[name]()[0] for name in (sides if r % 2 == 0 else reversed(sides))} for r in range(options.rounds)]
    count = {"prefill": options.batch * options.prompt, "decoding": options.batch * (options.tokens - 1)}
    ratios = {}
    for part, work in count.items():
        rates = {name: statistics.median(work / r[name][f"{part}_s"] for r in rounds) for name in sides}
        ratios[part] = sorted(r["transformers"][f"{part}_s"] / r["kuafu"][f"{part}_s"] for r in rounds)
        print(f"{part}: kuafu {rates['kuafu']:.0f} tokens/s, transformers {rates['transformers']:.0f}; ratio median {statistics.median(ratios[part]):.2f}, "
              f"{ratios[part][0]:.2f} to {ratios[part][-1]:.2f} of {options.rounds} rounds")
    if options.json:
        provenance.write(options.json, {"benchmark": "generation", "settings": {k: v for k, v in vars(options).items() if k != "json"}, "rounds": rounds, "ratios": ratios,
                                        "compared": {"verdict": "equal", "what": "greedy tokens of both sides", "tokens": options.batch * options.tokens},
                                        "transformers": transformers.__version__, "provenance": found})


if __name__ == "__main__":
    main()
