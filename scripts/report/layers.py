# SPDX-License-Identifier: Apache-2.0
"""Norms of the layers of a case by step (`train.telemetry`): as sentences, and as the numbers that figures draw."""

import dataclasses
import itertools
import re
import statistics
from dataclasses import dataclass

from values import as_dict, number

SERIES = (("update_ratio", "update over weight"), ("trust_ratio", "trust ratio"))
# What figures draw: (series, title, what it is)
QUANTITIES = (("gradient_norm", "gradient norm", "of the global batch, neither clipped nor scaled"),
              ("weight_norm", "weight norm", "before the update"),
              ("update_ratio", "update over weight", "norm of the change over that of the weight"),
              ("trust_ratio", "trust ratio", "as the optimizer used it"))
NOISE = "noise_scale"    # worked out here, from two series
POINTS = 200             # steps of a figure, at most
STACKED = 4              # tensors of one name: from so many on they are one kind, as experts are


def _ends(names, row):
    """ "0.001 (head) to 0.01 (blocks.0.mlp.up.weight)" of the layers that have a number; None where none has."""
    known = [(value, name) for name, value in zip(names, map(number, row)) if value is not None]
    if not known:
        return None
    low, high = min(known), max(known)
    return f"{low[0]:.3g} ({low[1]}) to {high[0]:.3g} ({high[1]})"


def _lists(told, key):
    rows = told.get(key)
    return rows if isinstance(rows, list) else []


def sentence(case):
    """ "36 layers, step 3: update over weight ... to ...; trust ratio ... to ..." of the last step that updated something; an
    empty text where nothing is recorded."""
    told = as_dict(case.document.get("telemetry"))
    names, steps = _lists(told, "layers"), _lists(told, "steps")
    shown = {key: _lists(told, key) for key, _ in SERIES}
    shown["trust_ratio"] = _without_left_out(shown["trust_ratio"])
    for at in reversed(range(len(steps))):
        parts = [f"{words} {ends}" for key, words in SERIES if len(rows := shown[key]) > at and (ends := _ends(names, rows[at]))]
        if parts:
            return f"{len(names)} layers, step {steps[at] + 1}: {'; '.join(parts)}"
    return ""


@dataclass(frozen=True)
class Kind:
    """Layers that differ only in their block (or expert), in the model's order."""
    name: str                       # "attn.out.weight"
    members: list                   # positions in Layers.names


@dataclass(frozen=True)
class Layers:
    """What a figure shows of a case."""
    case: object
    names: list
    kinds: list
    steps: list                     # from 1: the middle of each block of steps
    block: int                      # steps a point, at most
    rows: dict                      # series -> [a point of each step: [a number or None of each layer]]
    averaged: int                   # steps that an estimate of noise is a mean over

    def quantities(self):
        """(series, title, what it is) of what was recorded."""
        noise = (NOISE, "gradient noise scale", f"samples; means over {self.averaged} steps")
        return [q for q in (*QUANTITIES, noise) if q[0] in self.rows]

    def positive(self, key):
        """All numbers above 0 of a series: what a logarithmic scale can show."""
        return [v for row in self.rows[key] for v in row if v is not None and v > 0]


def _kinds(names):
    """Kinds in the order in which the model has the first of each."""
    plain = [re.sub(r"\[\d+\]$", "", name) for name in names]
    stacked = {name for name in set(plain) if plain.count(name) > STACKED}
    found = {}
    for at, name in enumerate(names):
        base = plain[at] if plain[at] in stacked else name
        block = re.match(r"(.*?)\.\d+\.(.*)", base)
        found.setdefault((block[1], block[2]) if block else ("", base), []).append(at)
    stems = {stem for stem, _ in found if stem}
    return [Kind(base if not stem or len(stems) == 1 else f"{stem}.{base}", members) for (stem, base), members in found.items()]


def _middle(rows):
    """The median over `rows` of each layer, of the rows that have a number of it."""
    columns = ([v for v in column if v is not None] for column in zip(*rows))
    return [statistics.median(column) if column else None for column in columns]


def window(steps):
    """Steps that estimates of noise are averaged over, of a run of so many."""
    return min(max(10, steps // 20), steps)


def quotients(above, below, width):
    """Means of the last `width` entries of `above` over those of `below`, by entry; None where one of them is not above 0. An entry
    that is None in either counts in neither."""
    pairs = [(0.0, 0.0) if None in pair else pair for pair in zip(above, below)]
    until = [(0.0, 0.0), *itertools.accumulate(pairs, lambda a, b: (a[0] + b[0], a[1] + b[1]))]
    found = []
    for at in range(len(pairs)):
        first = max(at + 1 - width, 0)
        over, under = (pairs[at] if width == 1 else
                       (until[at + 1][0] - until[first][0], until[at + 1][1] - until[first][1]))
        found.append(over / under if over > 0 and under > 0 and any(map(any, pairs[first:at + 1])) else None)
    return found


def _noise(given_of):
    """Noise scales of each layer by step; None where nothing is recorded."""
    variance, square = given_of("gradient_variance"), given_of("gradient_square")
    if not variance or not square:
        return None
    width = window(len(variance))
    return [list(row) for row in zip(*(quotients(v, s, width) for v, s in zip(zip(*variance), zip(*square))))]


def _without_left_out(rows):
    """Trust ratios without those of layers that the optimizer leaves out, which are 1 in every step."""
    kept = {i for row in rows if isinstance(row, list) for i, v in enumerate(row) if v not in (None, 1)}
    return [[v if i in kept else None for i, v in enumerate(row)] if isinstance(row, list) else row for row in rows]


def once(compute):
    """`compute` of the telemetry of a document, done once: it is as long as the run."""
    known = {}

    def of_telemetry(told):
        if id(told) not in known:
            known[id(told)] = told, compute(told)      # the object is kept, and so its id
        return known[id(told)][1]

    return of_telemetry


def of(case):
    """Layers of a case; None where nothing was recorded, or nothing that could be drawn."""
    found = _of_telemetry(case.document.get("telemetry"))
    return dataclasses.replace(found, case=case) if found else None


@once
def _of_telemetry(given):
    told = as_dict(given)
    names, steps = [str(n) for n in _lists(told, "layers")], [number(s) for s in _lists(told, "steps")]
    size = -(-len(steps) // POINTS) or 1

    def given_of(key):
        rows = [list(map(number, row)) for row in _lists(told, key) if isinstance(row, list) and len(row) == len(names)]
        return rows if len(rows) == len(steps) else []

    given = {key: given_of(key) for key, _, _ in QUANTITIES} | {NOISE: _noise(given_of)}
    given["trust_ratio"] = _without_left_out(given["trust_ratio"])
    rows = {key: [_middle(g[i:i + size]) if size > 1 else g[i] for i in range(0, len(g), size)] for key, g in given.items() if g}
    rows = {key: points for key, points in rows.items() if any(v for point in points for v in point)}
    if not names or None in steps or not rows:
        return None
    middles = [statistics.mean(steps[i:i + size]) + 1 for i in range(0, len(steps), size)]
    return Layers(None, names, _kinds(names), middles, size, rows, window(len(steps)))


def watched(run):
    """Layers of the finished cases that recorded them, in the suite's order."""
    return [layers for case in run.finished if (layers := of(case))]


def quantile(ordered, share):
    """Of sorted numbers, the nearest."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def limits(values):
    """(low, high) of a logarithmic scale for most of `values`: layers whose gradient is rounding alone (biases of keys) would
    take all of it."""
    ordered = sorted(values)
    low, high = quantile(ordered, 0.08), quantile(ordered, 0.998)
    return (low, high) if high > 1.02 * low else (low / 2, high * 2)


def step_title(all_layers):
    most = max(layers.block for layers in all_layers)
    return "training step" if most == 1 else f"training step (a point: the median of up to {most} steps)"
