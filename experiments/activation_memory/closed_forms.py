# SPDX-License-Identifier: Apache-2.0
"""Bytes of activations that a rank keeps of a block and micro-batch, in a type of 2 bytes.
[Korthikanti et al., 2205.05198, equations 1 to 4 and 6, table 2]

s positions, b samples, h hidden, a heads, t tensor ranks. The paper counts what plain kernels keep: masks of dropout of a byte an
element, and scores, probabilities and their mask of attention. `more` and `less` are what Kuafu's kernels keep otherwise."""

LAYOUTS = ("one rank", "1D", "1D, sequence-parallel norms")
RECOMPUTED = ("none", "selective", "full")


def published(layout, recomputed, s, b, h, a, t):
    """As the paper prints it."""
    block, scores = s * b * h, 5 * a * s * s * b
    if recomputed == "full":
        return 2 * block // (t if layout == LAYOUTS[2] else 1)
    kept = {LAYOUTS[0]: 34 * block, LAYOUTS[1]: 10 * block + 24 * block // t, LAYOUTS[2]: 34 * block // t}[layout]
    return kept + (scores // t if recomputed == "none" else 0)


def more(layout, recomputed, s, b, h, a, t):
    """By name: kept, and not in the paper's count."""
    if recomputed == "full":
        return {}
    own = {"mean and deviation of two norms, f32": 16 * s * b // (t if layout == LAYOUTS[2] else 1)}
    return own | ({"logarithm of the sum of each row of scores, f32": 4 * a * s * b // t} if recomputed == "none" else {})


def less(layout, recomputed, s, b, h, a, t):
    """By name: in the paper's count, and not kept."""
    if recomputed == "full":
        return {}
    own = {"masks of two dropouts": 2 * s * b * h // (t if layout == LAYOUTS[2] else 1)}
    return own | ({"scores, probabilities and their mask": 5 * a * s * s * b // t} if recomputed == "none" else {})


def in_flight(schedule, stages, chunks):
    """Blocks' worth that the first stage keeps, over all blocks of the model.  [section 4.2.3]"""
    return {"1f1b": 1, "interleaved": 1 + (stages - 1) / (stages * chunks)}[schedule]
