# SPDX-License-Identifier: Apache-2.0
"""Figures on paper: one that is taller than a page is shown there in pieces, cut between its panels, or between the rows of a panel
that is taller than a page itself. Each piece has the legend and the label of the x axis, one that ends in a panel also its x ticks."""

from pathlib import Path
from typing import NamedTuple

MOST = 0.73              # height of a piece on paper, over its width: page.css prints them on A4 in landscape


class Drawn(NamedTuple):
    """A figure that was written. Heights are shares of the figure's own, from its top."""
    path: Path                      # the SVG
    aspect: float = 1.0             # height over width
    pieces: tuple = ()              # of [(top, bottom)], shown under each other; none where it fits a page


def label_rows(figure):
    """Moves the label of all y axes of a figure that will be cut to each row of panels."""
    label = figure.get_supylabel()
    if not label or figure.get_figheight() <= MOST * figure.get_figwidth():
        return
    figure.supylabel("")
    for panel in figure.axes:
        if panel.get_visible() and panel.get_subplotspec() and panel.get_subplotspec().is_first_col():
            panel.set_ylabel(label)


def _rows(figure):
    """[[top, bottom, panels]] of the rows of panels, from the top."""
    height, boxes = figure.bbox.height, []
    for panel in figure.axes:
        if panel.get_visible() and (box := panel.get_tightbbox(bbox_extra_artists=[])) is not None:
            boxes.append([1 - box.y1 / height, 1 - box.y0 / height, [panel]])
    rows = []
    for top, bottom, panels in sorted(boxes, key=lambda b: b[:2]):
        if rows and top < rows[-1][1] - 1e-3:
            rows[-1][1] = max(rows[-1][1], bottom)
            rows[-1][2] += panels
        else:
            rows.append([top, bottom, panels])
    return rows


def _between_ticks(figure, panel):
    """Where a panel may be cut: between the ticks of its y axis."""
    ticks = sorted(1 - panel.transData.transform((0, y))[1] / figure.bbox.height for y in panel.get_yticks())
    return [(a + b) / 2 for a, b in zip(ticks, ticks[1:])]


def drawn(path, figure):
    """What was saved as `path`."""
    return Drawn(path, figure.get_figheight() / figure.get_figwidth(), _pieces(figure))


def _foot(figure, rows, cut):
    """[(top, bottom)] that a piece which ends at `cut` shows below it: the ticks under the panels that it cuts, the label under all."""
    if cut >= 1:
        return []
    ticks = [(max(1 - p.bbox.y0 / figure.bbox.height for p in panels), bottom) for top, bottom, panels in rows if top < cut < bottom]
    return ticks + ([(rows[-1][1], 1.0)] if figure.get_supxlabel() else [])


def _height(windows):
    return sum(bottom - top for top, bottom in windows)


def _pieces(figure):
    aspect = figure.get_figheight() / figure.get_figwidth()
    rows = _rows(figure) if aspect > MOST else []
    if not rows:
        return ()
    legend = rows[0][0]
    room = MOST / aspect - legend
    cuts = [(a[1] + b[0]) / 2 for a, b in zip(rows, rows[1:])] + [1.0]
    for top, bottom, panels in rows:
        if bottom - top > room:
            cuts += [c for c in _between_ticks(figure, panels[0]) if top < c < bottom]
    cuts.sort()
    found, top = [], legend
    while top < 1:
        within = [c for c in cuts if top < c and c - top + _height(_foot(figure, rows, c)) <= room]
        bottom = within[-1] if within else next(c for c in cuts if c > top)
        between = [c for c in within if any(abs(c - (a[1] + b[0]) / 2) < 1e-9 for a, b in zip(rows, rows[1:]))]
        if between and bottom < 1:                     # rather between panels than in one
            bottom = between[-1]
        head = [(0.0, legend), (top, bottom)] if found and legend > 0 else [(0.0 if not found else top, bottom)]
        found.append((*head, *_foot(figure, rows, bottom)))
        top = bottom
    return tuple(found) if len(found) > 1 else ()
