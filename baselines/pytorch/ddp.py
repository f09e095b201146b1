# SPDX-License-Identifier: Apache-2.0
"""PyTorch DistributedDataParallel over gloo: every rank one thread and its share of the batch."""

import environment

environment.prepare()

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gpt
import peer


def build(options, rank):
    model = DistributedDataParallel(gpt.made(options))
    optimizer = gpt.adamw(model.parameters(), options)
    data = gpt.share(options, rank)

    loss_at = gpt.loss_function(model, options)

    def step(index):
        tokens, targets = data[index % len(data)]
        loss = loss_at(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


if __name__ == "__main__":
    peer.main("pytorch ddp", build, __doc__, distributed=dist)
