# SPDX-License-Identifier: Apache-2.0
"""Ticks and names of the axes of a suite's figures, static."""

import matplotlib

import style
import views

LETTERS = 110            # of the names under all panels of a row, at the width of the figures


def names_of(d, axis):
    names = d.x_names if axis == "x" else d.y_names
    return None if names is None else [str(d.shown(axis, v)) for v in names]


def byte_ticks(d, axis):
    """Where an axis of bytes has ticks: style.byte_ticks of its marks, of bars from 0."""
    values = [{"x": m.x, "y": m.y, "z": m.z}[axis] for _, series in d.panels for s in series for m in s.marks]
    if axis == "y" and d.limits:
        values = list(d.limits)
    return style.byte_ticks(min(values + [0] * (d.kind == "bar")), max(values), d.is_log(axis))


def format_static(panel, d):
    for axis in ("x", "y"):
        of = panel.xaxis if axis == "x" else panel.yaxis
        names = names_of(d, axis)
        if names is not None:
            is_long = axis == "x" and sum(map(len, names)) * views.grid_shape(len(d.panels))[1] > LETTERS
            of.set_ticks(range(len(names)), names, **({"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if is_long else {}))
        else:
            if d.is_log(axis):
                (panel.set_xscale if axis == "x" else panel.set_yscale)("log")
                of.set_major_locator(matplotlib.ticker.LogLocator(10, subs=(1, 2, 5), numticks=8))
                of.set_minor_formatter(matplotlib.ticker.NullFormatter())
            if d.spec[axis]["unit"] == "B":
                of.set_major_locator(matplotlib.ticker.FixedLocator(byte_ticks(d, axis)))
            if d.spec[axis]["unit"] in ("B", "s"):
                of.set_major_formatter(lambda v, _, axis=axis: d.shown(axis, v))
            elif d.is_log(axis):
                of.set_major_formatter(lambda v, _: style.text_number(v))
    panel.xaxis.set_tick_params(labelbottom=True)


def ticks_at_marks(panel, d):
    """Few whole x, such as rank counts: a tick at each."""
    xs = sorted({m.x for _, series in d.panels for s in series for m in s.marks}) if d.x_names is None else []
    if d.kind == "line" and 0 < len(xs) <= 8 and all(isinstance(x, int) for x in xs):
        panel.set_xticks(xs, [d.shown("x", x) for x in xs])
        panel.set_xticks([], minor=True)
