# SPDX-License-Identifier: Apache-2.0
"""Bytes of model states and of traffic of a rank under ZeRO, written from the paper.  [Rajbhandari et al., 1910.02054]

psi parameters of 2 bytes, n replicas; K = 12 bytes of optimizer state a parameter: f32 copy, momentum, variance."""

from decimal import ROUND_HALF_UP, Decimal

WEIGHT, GRADIENT, STATE = 2, 2, 12
# Table 1: GB of 10^9 bytes a device for 7.5 billion parameters, by ranks and stage 0 to 3, as printed.
PUBLISHED = {4: ("120", "52.5", "41.3", "30.0"), 16: ("120", "35.6", "21.6", "7.5"), 64: ("120", "31.4", "16.6", "1.9")}
TRAFFIC = (1, 1, 1, 1.5)      # section 7, of an all-reduce of all gradients


def parameters(layers, hidden, vocab, sequence):
    """Of a GPT with biases, learned positions and an output tied to the embedding."""
    block = 12 * hidden * hidden + 13 * hidden
    return layers * block + (vocab + sequence) * hidden + 2 * hidden


def states(stage, psi, n):
    """Bytes a rank by kind, figure 1."""
    return {"parameter": WEIGHT * psi // (n if stage >= 3 else 1), "gradient": GRADIENT * psi // (n if stage >= 2 else 1),
            "optimizer": STATE * psi // (n if stage >= 1 else 1)}


def received(stage, psi, n, kept=0):
    """Bytes a rank receives a step of one micro-batch. Stage 0 to 2: reduce-scatter and all-gather; 3: a gather for the
    forward, one for the backward, less the `kept` parameters of the last block whose backward follows at once."""
    share = WEIGHT * (n - 1) * psi // n
    return 2 * share if stage < 3 else 3 * share - WEIGHT * (n - 1) * kept // n


def shown(bytes_, like):
    """GB with as many decimals as the published value has, halves rounded up."""
    decimals = len(like.partition(".")[2])
    return str((Decimal(bytes_) / 10**9).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))
