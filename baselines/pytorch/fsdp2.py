# SPDX-License-Identifier: Apache-2.0
"""PyTorch's FSDP2 over gloo: every block sharded by itself, embedding, last norm and output with the
root; parameters freed after forward. Every rank one thread and its share of the batch."""

import environment

environment.prepare()

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gpt
import peer


def build(options, rank):
    mesh = init_device_mesh("cpu", (options.ranks,))
    model = gpt.made(options)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
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
    peer.main("pytorch fsdp2", build, __doc__, distributed=dist)
