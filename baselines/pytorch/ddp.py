# SPDX-License-Identifier: Apache-2.0
"""PyTorch DistributedDataParallel over gloo: every rank one thread and its share of the batch."""

import environment

environment.prepare()

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gpt
import peer


def build(options, rank):
    if options.batch % options.ranks:
        raise ValueError(f"--batch {options.batch} does not divide among {options.ranks} ranks")
    model = DistributedDataParallel(
        gpt.Gpt(options.layers, options.hidden, options.heads, options.sequence))
    optimizer = gpt.adamw(model.parameters(), options)
    share = options.batch // options.ranks
    mine = slice(rank * share, (rank + 1) * share)
    data = [(tokens[mine], targets[mine]) for tokens, targets in gpt.batches(options)]

    def step(index):
        tokens, targets = data[index % len(data)]
        loss = gpt.loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


if __name__ == "__main__":
    peer.main("pytorch ddp", build, __doc__, distributed=dist)
