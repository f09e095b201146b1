# SPDX-License-Identifier: Apache-2.0
"""Idle time over working time of a pipeline, as the papers give it for stages of equal cost and free messages: p ranks, m
micro-batches, v stages a rank, a backward twice a forward. Written from the papers, not from the code."""


def bubble(schedule, p, m, v):
    """(value, relation) with relation "equal" or "at most"; None where the papers give no formula."""
    if schedule in ("gpipe", "1f1b"):
        return (p - 1) / m, "equal"                 # 2104.04473, section 2.2.1
    if schedule == "interleaved" and m % p == 0:
        return (p - 1) / (v * m), "equal"           # 2104.04473, section 2.2.2
    if schedule == "zero_bubble" and m >= p:
        return (p - 1) / (3 * m), "equal"           # 2401.10241: (p-1)(F + I - W) of m (F + I + W), F = I = W
    if schedule == "zbv" and m >= p:
        return (p - 1) / (4 * m), "at most"         # the bound of parallel/pipeline/schedules.h
    return None


def alive(schedule, p, m, v):
    """Most stage inputs a rank keeps, the fullest rank; m >= p."""
    if m < p or (schedule == "interleaved" and m % p):
        return None
    return {"gpipe": m, "1f1b": p, "zero_bubble": p, "interleaved": v * p + p - 1 if v > 1 else min(m, 2 * p - 1),
            "zbv": 2 * p}[schedule]


def speedup(p, m):
    """Of p stages over one, GPipe and 1F1B: p / (1 + bubble)."""
    return p * m / (m + p - 1)
