# SPDX-License-Identifier: Apache-2.0
"""Where the marks of a suite's figure stand along its axes: bars, and marks of lines, of one x beside each other."""

import math

BAR = 0.8                # of the distance of two places, for all bars of one
LINES = 0.3              # of the least distance of two places, for the marks of all lines at one


def of(d, axis, value):
    names = d.x_names if axis == "x" else d.y_names
    return value if names is None else names.index(value)


def _beside(series, x):
    """The series of a panel that have a mark at x: their bars stand beside each other."""
    return [s for s in series if any(m.x == x for m in s.marks)]


def bar_width(d):
    return BAR / max(len(_beside(series, x)) for _, series in d.panels for x in d.x_names)


def _bar_places(d, series, index):
    width, places = bar_width(d), []
    for m in series[index].marks:
        there = _beside(series, m.x)
        places.append(of(d, "x", m.x) + width * (there.index(series[index]) - (len(there) - 1) / 2))
    return places


def _line_places(d, series, index):
    """Lines that share an x stand beside each other, so that no mark or interval hides another. All marks of a line move alike."""
    to, back = (math.log, math.exp) if d.is_log("x") else (float, float)
    crowded = [s for s in series if any(len(_beside(series, m.x)) > 1 for m in s.marks)]
    if series[index] not in crowded:
        return [of(d, "x", m.x) for m in series[index].marks]
    places = sorted({to(of(d, "x", m.x)) for s in series for m in s.marks})
    apart = min((b - a for a, b in zip(places, places[1:])), default=math.log(2) if d.is_log("x") else 1)
    offset = LINES * apart * (crowded.index(series[index]) / (len(crowded) - 1) - 0.5)
    return [back(to(of(d, "x", m.x)) + offset) for m in series[index].marks]


def along_x(d, series, index):
    """x of the marks of series `index` of a panel."""
    beside = {"bar": _bar_places, "line": _line_places}.get(d.kind)
    return beside(d, series, index) if beside else [of(d, "x", m.x) for m in series[index].marks]
