# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.pipelining's Schedule1F1B over gloo: every rank one thread, one stage and its
share of the layers; the tied table's gradients are summed over first and last stage."""

import environment

environment.prepare()

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import gpt
import peer


class Stage(nn.Module):
    """A stage's part of the model: the first embeds, the last gives logits."""

    def __init__(self, model, stage, stages):
        super().__init__()
        count = len(model.blocks)
        first, end = stage * count // stages, (stage + 1) * count // stages
        self.blocks = nn.ModuleList(model.blocks[first:end])
        self.tokens = model.tokens if stage in (0, stages - 1) else None
        self.positions = model.positions if stage == 0 else None
        self.norm = model.norm if stage == stages - 1 else None

    def forward(self, x):                    # (b, S) bytes or (b, S, H) -> (b, S, H) or (b, S, V)
        if self.positions is not None:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x if self.norm is None else nn.functional.linear(self.norm(x), self.tokens.weight)


def build(options, rank):
    stages, is_first, is_last = options.ranks, rank == 0, rank == options.ranks - 1
    if options.batch % options.micro_batch:
        raise ValueError(f"--batch {options.batch} is no multiple of --micro-batch "
                         f"{options.micro_batch}")
    if options.layers < stages:
        raise ValueError(f"--layers {options.layers} do not fill {stages} stages")
    ends = dist.new_group([0, stages - 1])
    module = Stage(gpt.made(options), rank, stages)
    if options.compile:
        module.compile()
    optimizer = gpt.adamw(module.parameters(), options)
    schedule = Schedule1F1B(PipelineStage(module, rank, stages, torch.device("cpu")),
                            options.batch // options.micro_batch, loss_fn=gpt.loss_of)
    data = gpt.batches(options)

    def step(index):
        tokens, targets = data[index % len(data)]
        losses = []
        schedule.step(*([tokens] if is_first else []), target=targets if is_last else None,
                      losses=losses if is_last else None, return_outputs=False)
        if is_first or is_last:
            dist.all_reduce(module.tokens.weight.grad, group=ends)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().item() if is_last else None

    return step


if __name__ == "__main__":
    peer.main("pytorch pipelining 1f1b", build, __doc__, distributed=dist, least_ranks=2,
              has_micro_batches=True)
