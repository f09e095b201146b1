# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DTensor tensor parallelism over gloo: columns of qkv and up, rows of out and down,
vocabulary-parallel embedding, output and loss; every rank one thread and the whole batch."""

import environment

environment.prepare()

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, loss_parallel,
                                               parallelize_module)

import gpt
import peer


def shard(model, mesh):
    """Shards the blocks, the embedding and the tied output in place."""
    block = {"attention.qkv": ColwiseParallel(), "attention.out": RowwiseParallel(),
             "up": ColwiseParallel(), "down": RowwiseParallel()}
    for module in model.blocks:
        parallelize_module(module, mesh, block)
    parallelize_module(model, mesh, {
        "tokens": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})
    model.tie()


def build(options, rank):
    if options.heads % options.ranks:
        raise ValueError(f"--heads {options.heads} do not divide among {options.ranks} ranks")
    mesh = init_device_mesh("cpu", (options.ranks,))
    model = gpt.made(options)
    shard(model, mesh)
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if isinstance(p, DTensor)]},
              {"params": [p for p in parameters if not isinstance(p, DTensor)]}]
    optimizer = gpt.adamw(groups, options)
    data = gpt.batches(options)

    loss_at = gpt.loss_function(model, options)

    def step(index):
        tokens, targets = data[index % len(data)]
        with loss_parallel():
            loss = loss_at(tokens, targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.full_tensor().item() if isinstance(loss, DTensor) else loss.item()

    return step


if __name__ == "__main__":
    peer.main("pytorch dtensor tensor parallel", build, __doc__, distributed=dist)
