# SPDX-License-Identifier: Apache-2.0
"""PyTorch's ZeroRedundancyOptimizer over DistributedDataParallel and gloo: gradients are all-reduced,
each rank keeps the optimizer state of its share of the parameters, updates these and broadcasts
them. Gradients and parameters are views of the buckets, which spares copies. Every rank one thread
and its share of the batch."""

import environment

environment.prepare()

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import gpt
import peer


def build(options, rank):
    model = DistributedDataParallel(gpt.made(options), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW,
                                        parameters_as_bucket_view=True,
                                        **gpt.adamw_values(options))
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
    peer.main("pytorch zero redundancy optimizer", build, __doc__, distributed=dist)
