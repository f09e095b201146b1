# SPDX-License-Identifier: Apache-2.0
"""One rank, eager PyTorch: forward, backward and AdamW of the GPT on one thread."""

import environment

environment.prepare()

import gpt
import peer


def build(options, rank):
    model = gpt.made(options)
    optimizer = gpt.adamw(model.parameters(), options)
    data = gpt.batches(options)

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
    peer.main("pytorch single", build, __doc__, ranks=(1,))
