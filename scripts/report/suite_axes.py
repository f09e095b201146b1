# SPDX-License-Identifier: Apache-2.0
"""Ticks and names of the axes of a suite's figures, static."""

import matplotlib

import figures
import style
import views

LETTERS = 110            # of the names under all panels of a row, at the width of the figures


def names_of(d, axis):
    names = d.x_names if axis == "x" else d.y_names
    return None if names is None else [str(d.shown(axis, v)) for v in names]


def values(d, axis):
    return [getattr(m, axis) for _, series in d.panels for s in series for m in s.marks]


def ticks(d, axis):
    """Where an axis of bytes or a logarithmic one has ticks: round numbers between its marks, of bars from 0."""
    shown = list(d.limits) if axis == "y" and d.limits else values(d, axis)
    if d.spec[axis]["unit"] == "B":
        return style.byte_ticks(min(shown + [0] * (d.kind == "bar")), max(shown), d.is_log(axis))
    return [t for t in style.log_ticks(min(shown), max(shown)) if t == int(t) or not is_whole(d, axis)]


def is_whole(d, axis):
    """Whether an axis shows a number of things, such as ranks."""
    return all(isinstance(v, int) for v in values(d, axis))


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
                of.set_minor_formatter(matplotlib.ticker.NullFormatter())
            if d.is_log(axis) or d.spec[axis]["unit"] == "B":
                of.set_major_locator(matplotlib.ticker.FixedLocator(ticks(d, axis)))
            elif is_whole(d, axis):
                of.set_major_locator(figures.whole_ticks())
            if d.spec[axis]["unit"] in ("B", "s"):
                of.set_major_formatter(lambda v, _, axis=axis: d.shown(axis, v))
            elif d.is_log(axis):
                of.set_major_formatter(lambda v, _: style.text_number(v))
    panel.xaxis.set_tick_params(labelbottom=True)


def marked(d):
    """Few whole x of a line, such as rank counts, of which each has a tick; else nothing."""
    xs = sorted(set(values(d, "x"))) if d.kind == "line" and d.x_names is None else []
    return xs if len(xs) <= 8 and is_whole(d, "x") else []


def ticks_at_marks(panel, d):
    if xs := marked(d):
        panel.set_xticks(xs, [d.shown("x", x) for x in xs])
        panel.set_xticks([], minor=True)
