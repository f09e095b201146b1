# SPDX-License-Identifier: Apache-2.0
"""How far intervals reach, and where an axis cuts them: axes are scaled to the values, whose differences a wide interval would
hide."""

import math

import plotly.graph_objects as go
from matplotlib.lines import Line2D

import style

ROOM = 0.25              # of what the values span: so much may intervals add to each end of an axis
CUT = "arrow: the interval goes on"
# (matplotlib mark, plotly's) at an end that is cut
ENDS = {"up": (r"$\uparrow$", "arrow-up"), "down": (r"$\downarrow$", "arrow-down"),
        "left": (r"$\leftarrow$", "arrow-left"), "right": (r"$\rightarrow$", "arrow-right")}


def limits(values, intervals, is_log=False, origin=None):
    """(low, high) of an axis with all `values` (and `origin`), and as much of `intervals` as there is room for."""
    to, back = (math.log, math.exp) if is_log else (float, float)
    known = [to(v) for v in values] + ([to(origin)] if origin is not None else [])
    low, high = min(known), max(known)
    room = ROOM * (high - low or (math.log(2) if is_log else abs(high) or 1))
    ends = [to(e) for pair in intervals for e in pair if not is_log or e > 0]
    return back(max(min([low, *ends]), low - room)), back(min(max([high, *ends]), high + room))


def log_range(ends):
    """Of a logarithmic axis of plotly, a hair wider than `ends`: it draws no mark that rounding puts outside, such as an arrow at an end."""
    low, high = map(math.log10, ends)
    hair = 1e-6 * (high - low)
    return [low - hair, high + hair]


def tokens_limit(cases):
    """Where an axis of tokens/s of `cases` ends."""
    return limits([c.tokens_per_s for c in cases], [c.tokens_interval for c in cases if c.tokens_interval], origin=0)[1]


def errors(value, interval):
    """(below, above) as both libraries take error bars; None where there is no interval."""
    return None if interval is None else (max(value - interval[0], 0), max(interval[1] - value, 0))


def static_errors(value, interval):
    """The same as matplotlib's yerr."""
    found = errors(value, interval)
    return None if found is None else [[found[0]], [found[1]]]


def error_bars(values, intervals, color, along="y"):
    """{"error_y": ...} of a plotly trace."""
    found = [errors(v, i) for v, i in zip(values, intervals)]
    if not any(found):
        return {}
    below, above = ([None if e is None else e[end] for e in found] for end in (0, 1))
    return {f"error_{along}": {"type": "data", "symmetric": False, "thickness": 1.3, "width": 3, "color": color,
                               "array": above, "arrayminus": below}}


def cuts(marks, ends, along="y"):
    """[(place, end, direction, colour)] of `marks` (place across, interval, colour) that reach beyond `ends` of the axis."""
    low, high = ends
    names = ("down", "up") if along == "y" else ("left", "right")
    return [(place, end, name, color) for place, interval, color in marks if interval
            for name, end, is_cut in ((names[0], low, interval[0] < low), (names[1], high, interval[1] > high)) if is_cut]


def draw_static(panel, found, along="y"):
    for place, end, direction, color in found:
        panel.plot(*((place, end) if along == "y" else (end, place)), marker=ENDS[direction][0], markersize=8, color=color,
                   linestyle="none", markeredgewidth=0.4, clip_on=False, zorder=4)


def handle(label=CUT):
    return Line2D([], [], color=style.MUTED, marker=ENDS["up"][0], linestyle="none", markeredgewidth=0.4, label=label)


def trace(found, legend, along="y", label=CUT):
    """The arrows of one panel of an interactive figure."""
    places, ends = [p for p, _, _, _ in found], [e for _, e, _, _ in found]
    x, y = (places, ends) if along == "y" else (ends, places)
    return go.Scatter(x=x, y=y, mode="markers", hoverinfo="skip", cliponaxis=False,
                      marker={"symbol": [ENDS[d][1] for _, _, d, _ in found], "size": 10, "opacity": 1,
                              "color": [color for _, _, _, color in found]}, legendrank=1900, **legend.of(label))
