# SPDX-License-Identifier: Apache-2.0
"""Trains in PyTorch what Kuafu trains: the model, parameters and samples of a start file, with the plan's
optimizer, and prints the loss of every step. Reads GPT, BERT and ViT in f32 without the options that make
other models of them."""

import environment

environment.prepare()

import argparse
import json
import math
import tomllib

import torch

import encoders
import gpt
import start

# What the modules here have, by key of the plan.
FIXED = {"dropout": 0.0, "kv_heads": "auto", "ffn": "auto", "positions": "learned", "mlp": "gelu", "norm": "layer",
         "norm_epsilon": 1e-5, "bias": True, "parallel_blocks": False, "tied": True, "dtype": "f32"}


def read_plan(path):
    """The plan in a start file. Exits where its model is none of those here."""
    text = start.metadata(path).get("plan")
    if text is None:
        raise SystemExit(f"{path}: has no plan; write it with kuafu-bench-step --plan PLAN --export FILE")
    plan = tomllib.loads(text)
    model = plan["model"]
    for key, value in FIXED.items():
        if model.get(key, value) != value:
            raise SystemExit(f"{path}: model.{key} = {model[key]!r}; allowed here: {value!r}")
    if model["kind"] not in ("gpt", "bert", "vit"):
        raise SystemExit(f"{path}: model.kind = {model['kind']!r}; allowed here: 'gpt', 'bert', 'vit'")
    if model["kind"] == "gpt" and model["vocab"] != gpt.VOCABULARY:
        raise SystemExit(f"{path}: model.vocab = {model['vocab']}; allowed here: {gpt.VOCABULARY}")
    return plan


class Gpt(gpt.Gpt):
    def loss(self, batch):
        return gpt.loss_of(self(batch["inputs"]), batch["targets"])


def make_model(plan, path):
    """The plan's model with the parameters of the start file."""
    model = plan["model"]
    if model["kind"] == "gpt":
        made = Gpt(model["layers"], model["hidden"], model["heads"], model["sequence"])
        start.load(made, path)
        return made
    made = encoders.Bert(model) if model["kind"] == "bert" else encoders.Vit(model)
    made.load(start.read(path))
    return made


def make_optimizer(model, plan):
    o = plan["optimizer"]
    if o["kind"] == "sgd":
        return torch.optim.SGD(model.parameters(), lr=o["lr"], momentum=o["momentum"], weight_decay=o["weight_decay"])
    return torch.optim.AdamW(model.parameters(), lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["epsilon"],
                             weight_decay=o["weight_decay"])


def make_schedule(optimizer, plan):
    """Linear warm-up, then constant, or PyTorch's cosine to the last step."""
    o, schedulers = plan["optimizer"], torch.optim.lr_scheduler
    if o["schedule"] == "cosine":
        span = max(1, plan["train"]["steps"] - 1 - o["warmup"])
        after = schedulers.CosineAnnealingLR(optimizer, span, eta_min=o["lr"] * o["min_lr_ratio"])
    else:
        after = schedulers.ConstantLR(optimizer, factor=1.0)
    if o["warmup"] == 0:
        return after
    first = schedulers.LambdaLR(optimizer, lambda t: min(1.0, (t + 1) / o["warmup"]))
    return schedulers.SequentialLR(optimizer, [first, after], [o["warmup"]])


def train(path, steps=None):
    """Losses of the first `steps` steps; None: all that the file has samples for."""
    plan = read_plan(path)
    model = make_model(plan, path)
    optimizer = make_optimizer(model, plan)
    schedule = make_schedule(optimizer, plan)
    prefix = "batches."
    samples = {name.removeprefix(prefix): t for name, t in start.read(path).items() if name.startswith(prefix)}
    held = len(next(iter(samples.values())))
    if steps is not None and steps > held:
        raise SystemExit(f"{path}: --steps {steps}, but there are samples for {held}")
    clip, losses = plan["optimizer"]["clip"], []
    for step in range(held if steps is None else steps):
        loss = model.loss({name: t[step] for name, t in samples.items()})
        optimizer.zero_grad()
        loss.backward()
        # PyTorch adds 1e-6 to the norm.
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip if clip > 0 else math.inf)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: kuafu-bench-step --plan bert.toml --steps 20 --export bert.start && "
                                    ".venv/bin/python baselines/pytorch/train.py --start bert.start")
    parser.add_argument("--start", metavar="FILE", required=True, help="of kuafu-bench-step --plan PLAN --export FILE")
    parser.add_argument("--steps", type=int, help="default: all that the file has samples for")
    options = parser.parse_args()
    print(json.dumps({"torch": torch.__version__, "loss": train(options.start, options.steps)}))


if __name__ == "__main__":
    main()
