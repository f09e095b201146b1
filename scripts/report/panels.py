# SPDX-License-Identifier: Apache-2.0
"""Panels, titles and legends of the interactive figures (plotly)."""

import html
import math

import plotly.graph_objects as go
from plotly.subplots import make_subplots

import style
import views
from short_names import fitting_names

# Pixels of the width of a figure: the least that a page gives it, and from which on it has room for more columns. Each has an
# arrangement of its own, which holds to the next.
NARROW, WIDE = 690, 1000
PANEL, GAP = 150, 30     # pixels of a panel at least, and between two columns
LEFT, RIGHT = 64, 44     # margins, where no names stand beside the panels
LINE = 17                # pixels of a further line of a title
# Pixels of a letter, in fonts that run wide: of names and axis titles, of panel titles, which are bold.
LETTER, BOLD = 7, 8.2
ROW, MARK = 19, 54       # pixels of a row of a legend, and of what an entry has besides its name
LEGEND = NARROW - LEFT - RIGHT
SLANT = 30               # degrees of names under a panel that has no room for them


def _wrapped(label, pixels, letter):
    return [html.escape(line, quote=False) for line in views.wrapped(label, max(int(pixels / letter), 8))]


def grid(groups, row_height, left=LEFT, right=RIGHT):
    """(figure, columns): a panel a group; finish() arranges them."""
    rows, columns = views.grid_shape(len(groups))
    specs = [[{} if r * columns + c < len(groups) else None for c in range(columns)]
             for r in range(rows)]
    figure = make_subplots(rows=rows, cols=columns, specs=specs, subplot_titles=["-"] * len(groups), vertical_spacing=0)
    figure.update_annotations(xanchor="left", align="left", font={"size": 13})
    figure.update_layout(template="none", meta={"titles": [label or " " for label, _ in groups], "panel": row_height - 40, "left": left,
                                                "right": right}, **style.plotly_layout())
    figure.update_xaxes(**style.PLOTLY_AXIS)
    figure.update_yaxes(**style.PLOTLY_AXIS)
    return figure, columns


def beside(names):
    """The margin that names beside the panels take."""
    return {"left": max(LEFT, 16 + LETTER * max(map(len, names), default=0))}


def place(index, columns):
    return {"row": index // columns + 1, "col": index % columns + 1}


def finish(figure, cases, groups, columns, x_title, y_title, is_timed=False, x_names=None):
    """What marks without proof mean; the arrangements of the panels. `x_names` are at 0, 1, ... of all of them."""
    for label, fill, edge in views.proof_legend(cases, is_timed):
        figure.add_trace(go.Scatter(
            x=[None], y=[None], mode="markers", name=label, hoverinfo="skip",
            marker={"symbol": "circle-dot" if label == views.ESTIMATED else "circle", "size": 9, "color": fill,
                    "line": {"color": edge, "width": 1.8}}), **place(0, columns))
    told = figure.layout.meta | {"x": x_title, "y": y_title or "", "names": x_names,
                                 "legend": [trace.name for trace in figure.data if trace.showlegend is not False and trace.name]}
    figure.update_layout(meta={"wide_from": WIDE, "narrow": _arranged(told, NARROW), "wide": _arranged(told, WIDE)})
    figure.plotly_relayout(figure.layout.meta["wide"])


def _columns(count, room):
    """Of `count` panels: as many as are wide enough, rows as full as can be."""
    most = min(views.grid_shape(count)[1], max(1, int((room + GAP) / (PANEL + GAP))))
    return -(-count // -(-count // most))


def _named(names, panel):
    """(ticks' names in lines, pixels under the first line) for a panel so wide; slanted where a word has no room."""
    room = panel / len(names) - 8
    lines = [_wrapped(name, room, LETTER) for name in names]
    if all(len(word) * LETTER <= room for name in names for word in name.split()):
        return {"ticktext": list(map("<br>".join, lines)), "tickangle": 0}, LINE * (max(map(len, lines)) - 1)
    longest = max(map(len, names)) * LETTER
    return {"ticktext": [html.escape(name, quote=False) for name in names], "tickangle": -SLANT}, longest * math.sin(math.radians(SLANT))


def _arranged(told, width):
    """{path in the layout: value}: panels in columns for a figure of `width` pixels or more, titles in lines that end before the
    next panel, those of axes at the left and under the lowest panel of each column."""
    count, room = len(told["titles"]), width - told["left"] - told["right"]
    columns = _columns(count, room)
    rows = -(-count // columns)
    panel = (room - GAP * (columns - 1)) / columns
    titles = [_wrapped(title, panel, BOLD) for title in told["titles"]]
    x_title, y_title = _wrapped(told["x"], panel, LETTER), _wrapped(told["y"], told["panel"], LETTER)
    names, under = _named(told["names"], panel) if told["names"] else ({}, 0)
    over = LINE * (max(map(len, titles)) - 1)
    between = 64 + over + under
    inside = rows * told["panel"] + (rows - 1) * between
    top, bottom = 74 + over + ROW * (legend_rows(told["legend"], room) - 1), 37 + LINE * len(x_title) + under
    found = {"height": inside + top + bottom, "margin": {"l": told["left"], "r": told["right"], "t": top, "b": bottom},
             "legend.y": 1 + (34 + over) / inside}
    for index in range(count):
        row, column = divmod(index, columns)
        left, above = column * (panel + GAP) / room, 1 - row * (told["panel"] + between) / inside
        key = str(index + 1) if index else ""
        found |= {f"xaxis{key}.domain": [left, min(left + panel / room, 1)],
                  f"yaxis{key}.domain": [max(above - told["panel"] / inside, 0), above],
                  f"xaxis{key}.title.text": "<br>".join(x_title) if index + columns >= count else "",
                  f"yaxis{key}.title.text": "<br>".join(y_title) if column == 0 else "",
                  f"yaxis{key}.showticklabels": column == 0,
                  f"annotations[{index}].x": left, f"annotations[{index}].y": above,
                  f"annotations[{index}].text": "<br>".join(f"<b>{line}</b>" for line in titles[index])}
        found |= {f"xaxis{key}.{what}": value for what, value in names.items()}
    return found


def legend_rows(names, room=LEGEND):
    """Of a legend so wide."""
    rows, filled = 1, 0
    for width in (LETTER * len(name) + MARK for name in names):
        rows += 1 if filled and filled + width > room else 0
        filled = width if filled + width > room else filled + width
    return rows


def whole_ticks(values):
    """Of an axis that counts things: plotly puts halves between few."""
    return {"dtick": 1, "tick0": 0} if max(values) - min(values) < 10 else {}


def match(axes):
    """Panels zoom together: every axis follows the first."""
    first, *others = axes
    for axis in others:
        axis.matches = first.plotly_name.replace("axis", "")


class Legend:
    """Shows every name once, whatever panel it comes from."""

    def __init__(self):
        self.seen = set()

    def of(self, name):
        first = name not in self.seen
        self.seen.add(name)
        return {"name": name, "legendgroup": name, "showlegend": first}

    def under(self, name):
        """A trace whose points differ in colour: a mark of the legend takes that of the first."""
        return {"name": name, "legendgroup": name, "showlegend": False}

    def show(self, figure, looks):
        """{name: (colour, symbol)}: the marks of such traces, as those of proven cases look; long names as the legend has room."""
        short = fitting_names(looks, legend_rows, int((LEGEND - MARK) / LETTER))
        if style.repeats_colors(looks):
            figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", line={"color": style.PAPER},
                                        hoverinfo="skip", legendrank=2000, **self.of(style.CYCLE_NOTE)), **place(0, 1))
        for name, (color, symbol) in looks.items():
            figure.add_trace(go.Scatter(
                x=[None], y=[None], mode="markers", hoverinfo="skip",
                marker={"symbol": symbol, "size": 9, "color": color, "line": {"color": color, "width": 1.8}},
                **(self.of(name) | {"name": html.escape(short[name], quote=False)})), **place(0, 1))


def bars_grid(groups, rows):
    labels = [label for label, _ in rows]
    figure, columns = grid(groups, 92 + 21 * len(rows), **beside(labels))
    match(figure.select_yaxes())
    figure.update_yaxes(tickvals=list(range(len(rows))), range=[len(rows) - 0.4, -0.6], ticktext=labels, ticks="", showgrid=False)
    return figure, columns
