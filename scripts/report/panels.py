# SPDX-License-Identifier: Apache-2.0
"""Panels, titles and legends of the interactive figures (plotly)."""

import html

import plotly.graph_objects as go
from plotly.subplots import make_subplots

import style
import views
from short_names import fitting_names

# At the narrowest page, over the width of a figure: letters of panel titles and of axis titles.
TITLE_LETTERS, AXIS_LETTERS = 72, 100
LINE = 17                # pixels of a further line of a title
# Of a legend at the narrowest page, in pixels: its width, a row, a letter, what an entry has besides its name.
LEGEND, ROW, LETTER, MARK = 570, 19, 6.4, 54


def _lines(label, panels, letters):
    return [html.escape(line, quote=False) for line in views.lines_over(label, panels, letters)]


def grid(groups, row_height):
    """(figure, columns): a panel a group, titles in lines that end before the next panel."""
    rows, columns = views.grid_shape(len(groups))
    titles = [_lines(label or " ", len(groups), TITLE_LETTERS) for label, _ in groups]
    more = LINE * (max(map(len, titles)) - 1)
    height = row_height * rows + 96 + more * rows
    specs = [[{} if r * columns + c < len(groups) else None for c in range(columns)]
             for r in range(rows)]
    figure = make_subplots(rows=rows, cols=columns, specs=specs,
                           subplot_titles=["<br>".join(f"<b>{line}</b>" for line in t) for t in titles],
                           horizontal_spacing=0.12 / columns,
                           vertical_spacing=(64 + more) / (height - 128 - more) if rows > 1 else 0)   # of the height without margins
    figure.update_annotations(xanchor="left", align="left", font={"size": 13})
    for index, note in enumerate(figure.layout.annotations):
        axis = figure.get_subplot(index // columns + 1, index % columns + 1).xaxis
        note.x = axis.domain[0]
    figure.update_layout(template="none", height=height, margin={"l": 64, "r": 44, "t": 74 + more, "b": 54},
                         **style.plotly_layout())
    figure.layout.legend.y = 1 + (34 + more) / (height - 128 - more)
    figure.update_xaxes(**style.PLOTLY_AXIS)
    figure.update_yaxes(**style.PLOTLY_AXIS)
    return figure, columns


def place(index, columns):
    return {"row": index // columns + 1, "col": index % columns + 1}


def finish(figure, cases, groups, columns, x_title, y_title, is_timed=False):
    """Titles at the left and under the lowest panel of each column; what marks without proof mean."""
    for label, fill, edge in views.proof_legend(cases, is_timed):
        figure.add_trace(go.Scatter(
            x=[None], y=[None], mode="markers", name=label, hoverinfo="skip",
            marker={"symbol": "circle-dot" if label == views.ESTIMATED else "circle", "size": 9, "color": fill,
                    "line": {"color": edge, "width": 1.8}}), **place(0, columns))
    for index in range(len(groups)):
        if index + columns >= len(groups):
            figure.update_xaxes(title_text="<br>".join(_lines(x_title, len(groups), AXIS_LETTERS)),
                                **place(index, columns))
        if index % columns == 0:
            figure.update_yaxes(title_text=y_title, **place(index, columns))
        else:
            figure.update_yaxes(showticklabels=False, **place(index, columns))
    figure.update_xaxes(showticklabels=True)
    _make_room(figure)


def legend_rows(names):
    """Of a legend, at the narrowest page."""
    rows, filled = 1, 0
    for width in (LETTER * len(name) + MARK for name in names):
        rows += 1 if filled and filled + width > LEGEND else 0
        filled = width if filled + width > LEGEND else filled + width
    return rows


def _make_room(figure):
    """Over the panels for the rows of the legend, where it has several at the narrowest page."""
    more = ROW * (legend_rows([trace.name for trace in figure.data if trace.showlegend is not False and trace.name]) - 1)
    figure.update_layout(height=figure.layout.height + more, margin_t=figure.layout.margin.t + more)


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
    figure, columns = grid(groups, 92 + 21 * len(rows))
    match(figure.select_yaxes())
    labels = [label for label, _ in rows]
    for index in range(len(groups)):
        figure.update_yaxes(tickvals=list(range(len(rows))), range=[len(rows) - 0.4, -0.6],
                            ticktext=labels, ticks="", showgrid=False, **place(index, columns))
    return figure, columns
