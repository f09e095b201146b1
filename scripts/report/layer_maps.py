# SPDX-License-Identifier: Apache-2.0
"""What steps did to layers (`train.telemetry`): a figure a case, static and interactive. A row a quantity: left every layer by
step, right how it spreads over the layers. Scales are the same in all figures of a run."""

import html
import math
import statistics

import matplotlib
import plotly.graph_objects as go
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from plotly.subplots import make_subplots

import figures
import layers
import panels
import style

NAME = "layers_"         # of the figures, before their number
MOST = 12                # cases drawn
COLORS = "viridis"       # even steps for every sight, and in grey print
BANDS = ((0.0, 1.0, 0.13, "all layers"), (0.1, 0.9, 0.3, "10 to 90 % of them"))   # from, to, opacity, label
MEDIAN = "median layer"


def shown(run):
    return layers.watched(run)[:MOST]


def _limits(run):
    """{series: (low, high)} over all cases."""
    found = {}
    for key in dict.fromkeys(key for one in shown(run) for key in one.rows):
        if values := [v for one in shown(run) if key in one.rows for v in one.positive(key)]:
            found[key] = layers.limits(values)
    return found


def _spread(one, key):
    """[(steps, lows, highs)] of each band, and (steps, medians), over the layers that have a number above 0."""
    points = [(step, sorted(v for v in row if v is not None and v > 0)) for step, row in zip(one.steps, one.rows[key])]
    points = [(step, values) for step, values in points if values]
    steps = [step for step, _ in points]
    bands = [(steps, [layers.quantile(v, low) for _, v in points], [layers.quantile(v, high) for _, v in points])
             for low, high, _, _ in BANDS]
    return bands, (steps, [statistics.median(v) for _, v in points])


def _extremes(one, key):
    """("embedding.tokens 2.1", "blocks.0.attn.qkv.bias[1] 3e-12"): the highest and the lowest layer of the last point."""
    rows = [row for row in one.rows[key] if any(v is not None and v > 0 for v in row)]
    known = [(v, name) for v, name in zip(rows[-1], one.names) if v is not None and v > 0]
    return tuple(f"{name} {value:.2g}" for value, name in (max(known), min(known)))


def _cells(one, key):
    """(edges of steps, edges of layers, values, order of the layers): a kind has the height 1, its layers equal parts of it."""
    half = one.block / 2
    x = [one.steps[0] - half] + [(a + b) / 2 for a, b in zip(one.steps, one.steps[1:])] + [one.steps[-1] + half]
    y, order = [0.0], []
    for place, kind in enumerate(one.kinds):
        y += [place + (i + 1) / len(kind.members) for i in range(len(kind.members))]
        order += kind.members
    columns = list(zip(*one.rows[key]))
    return x, y, [[v if v is not None and v > 0 else math.nan for v in columns[at]] for at in order], order


def _labels(one):
    return [f"{kind.name} \u00d7{len(kind.members)}" if len(kind.members) > 1 else kind.name for kind in one.kinds]


def _room(low, high):
    """The axis of a spread: more of the logarithmic scale at both ends, where the extremes are told."""
    more = (high / low) ** 0.22
    return low / more, high * more


def _height(one):
    """Of a row, in inches."""
    return max(1.7, 0.5 + 0.118 * len(one.kinds))


def static(one, limits):
    """The figure of the layers of a case, on the scales of all of them."""
    quantities = one.quantities()
    figure = Figure(figsize=(10.6, _height(one) * len(quantities) + 0.6), layout="constrained")
    axes = figure.subplots(len(quantities), 2, squeeze=False, width_ratios=(1.35, 1))
    for (right, left), (key, title, words) in zip(axes, quantities):
        low, high = limits[key]
        bands, (steps, medians) = _spread(one, key)
        for (x, lows, highs), (_, _, opacity, _) in zip(bands, BANDS):
            left.fill_between(x, lows, highs, color=style.BLUE, alpha=opacity, linewidth=0)
        left.plot(steps, medians, color=style.BLUE)
        left.set_yscale("log")
        left.set_ylim(*_room(low, high))
        ticks = style.log_ticks(low, high)
        left.set_yticks(ticks, [f"{t:g}" for t in ticks])
        left.minorticks_off()
        left.set_xlim(one.steps[0] - one.block / 2, one.steps[-1] + one.block / 2)
        left.set_title(title)
        highest, lowest = _extremes(one, key)
        for y, side, said in ((0.97, "top", f"highest: {highest}"), (0.03, "bottom", f"lowest: {lowest}")):
            left.text(0.02, y, said, transform=left.transAxes, va=side, fontsize=7, color=style.MUTED)
        x, y, values, _ = _cells(one, key)
        colors = matplotlib.colormaps[COLORS].with_extremes(bad=style.GRID)
        drawn = right.pcolormesh(x, y, values, cmap=colors, norm=LogNorm(low, high), rasterized=True)
        right.set_yticks([place + 0.5 for place in range(len(one.kinds))], _labels(one), fontsize=6.5)
        right.set_ylim(len(one.kinds), 0)
        right.hlines(range(1, len(one.kinds)), *right.get_xlim(), color=style.PAPER, linewidth=0.6)
        right.tick_params(axis="y", length=0)
        right.grid(visible=False)
        bar = figure.colorbar(drawn, ax=right, extend="both", pad=0.01, aspect=18)
        bar.set_ticks(ticks, labels=[f"{t:g}" for t in ticks])
        bar.ax.minorticks_off()
        right.set_title(f"{title}, by layer ({words})", fontweight="normal", fontsize=8)
    for panel in axes.flat:
        panel.xaxis.set_major_locator(figures.whole_ticks())
    figure.supxlabel(layers.step_title([one]), fontsize=8.5)
    handles = [Patch(color=style.BLUE, alpha=opacity, linewidth=0, label=label) for _, _, opacity, label in BANDS]
    handles += [Line2D([], [], color=style.BLUE, label=MEDIAN), Patch(color=style.GRID, label="0, no update, left out, no estimate")]
    figures.legend(figure, handles)
    return figure


def _rgba(opacity):
    red, green, blue = (int(style.BLUE[i:i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def _add_spread(figure, one, key, row):
    """Bands and median with the extremes of each step in the hover card."""
    bands, (steps, medians) = _spread(one, key)
    where, is_first = {"row": row, "col": 2}, row == 1
    for (x, lows, highs), (_, _, opacity, label) in zip(bands, BANDS):
        figure.add_trace(go.Scatter(x=x + x[::-1], y=highs + lows[::-1], fill="toself", fillcolor=_rgba(opacity), mode="lines",
                                    line={"width": 0}, hoverinfo="skip", name=label, legendgroup=label, showlegend=is_first), **where)
    figure.add_trace(go.Scatter(
        x=steps, y=medians, mode="lines", line={"color": style.BLUE, "width": 1.8}, name=MEDIAN, legendgroup=MEDIAN,
        showlegend=is_first, customdata=[[lo, hi] for lo, hi in zip(*bands[0][1:])],
        hovertemplate="step %{x}: median %{y:.3g}<br>%{customdata[0]:.3g} to %{customdata[1]:.3g}<extra></extra>"), **where)


def _add_map(figure, one, key, row, limits):
    x, y, values, order = _cells(one, key)
    low, high = map(math.log10, limits)
    domain = figure.get_subplot(row, 1).yaxis.domain
    ticks = style.log_ticks(*limits)
    figure.add_trace(go.Heatmap(
        x=x, y=y, z=[[None if math.isnan(v) else round(math.log10(v), 3) for v in line] for line in values], zmin=low, zmax=high,
        colorscale=COLORS, hoverongaps=False, meta={"layers": [html.escape(one.names[at]) for at in order], "id": one.case.id},
        hovertemplate="%{customdata[0]}<br>step %{x}: %{customdata[1]:.3g}<extra></extra>",
        colorbar={"x": 1.005, "y": sum(domain) / 2, "len": domain[1] - domain[0], "thickness": 10, "outlinewidth": 0,
                  "tickvals": [math.log10(t) for t in ticks], "ticktext": [f"{t:g}" for t in ticks], "tickfont": {"size": 10}}),
        row=row, col=1)


def interactive(one, limits):
    """The same with hover cards."""
    quantities = one.quantities()
    each = max(190, 46 + 11.5 * len(one.kinds))
    height = each * len(quantities) + 46 * (len(quantities) - 1) + 150
    figure = make_subplots(
        rows=len(quantities), cols=2, column_widths=[0.56, 0.44], horizontal_spacing=0.09, vertical_spacing=46 / (height - 150),
        subplot_titles=[t for _, title, words in quantities for t in (f"<b>{title}</b>, by layer", f"{title}, spread")])
    figure.update_annotations(xanchor="left", align="left", font={"size": 12.5})
    for at, note in enumerate(figure.layout.annotations):
        note.x = figure.get_subplot(at // 2 + 1, at % 2 + 1).xaxis.domain[0]
    figure.update_layout(template="none", height=height, margin={"l": 12, "r": 66, "t": 96, "b": 54}, **style.plotly_layout())
    figure.layout.legend.y = 1 + 34 / (height - 150)
    figure.update_layout(plot_bgcolor=style.GRID)
    figure.update_xaxes(**style.PLOTLY_AXIS)
    figure.update_yaxes(**style.PLOTLY_AXIS)
    for row, (key, _, _) in enumerate(quantities, 1):
        _add_spread(figure, one, key, row)
        _add_map(figure, one, key, row, limits[key])
        low, high = _room(*limits[key])
        ticks = style.log_ticks(*limits[key])
        figure.update_yaxes(type="log", range=[math.log10(low), math.log10(high)], tickvals=ticks,
                            ticktext=[f"{t:g}" for t in ticks], tickfont={"size": 11}, row=row, col=2)
        figure.update_yaxes(range=[len(one.kinds), 0], tickvals=[place + 0.5 for place in range(len(one.kinds))], ticks="",
                            ticktext=[html.escape(label) for label in _labels(one)], tickfont={"size": 9.5}, row=row, col=1)
        figure.add_shape(type="rect", x0=0, x1=1, y0=0, y1=1, xref="x domain", yref="y domain", layer="below", line_width=0,
                         fillcolor=style.PAPER, row=row, col=2)
        for y, side, said in zip((0.99, 0.01), ("top", "bottom"), _extremes(one, key)):
            figure.add_annotation(text=f"{'highest' if side == 'top' else 'lowest'}: {html.escape(said)}", x=0.01, y=y, xref="x domain",
                                  yref="y domain", xanchor="left", yanchor=side, showarrow=False, font={"size": 9.5, "color": style.MUTED},
                                  row=row, col=2)
    figure.update_xaxes(range=[one.steps[0] - one.block / 2, one.steps[-1] + one.block / 2], showgrid=False, **panels.whole_ticks(one.steps))
    figure.update_xaxes(title_text=layers.step_title([one]), row=len(quantities))
    return figure


def _named(draw, run):
    limits = _limits(run)
    return {f"{NAME}{at + 1}": lambda _, one=one: draw(one, limits) for at, one in enumerate(shown(run))}


def drawings(run):
    """{name: function of a run} as figures.write takes it."""
    return _named(static, run)


def plots(run):
    return _named(interactive, run)


def sections(run):
    """{name: (title, caption)}"""
    found = layers.watched(run)
    left = f" {len(found) - MOST} more cases recorded layers; the record has their numbers." if len(found) > MOST else ""
    caption = ("Norms of every layer by step. Left every layer: a kind has one row, cut into its blocks, the first on top; a card names "
               "the layer. Right their spread over the layers, with those that end highest and lowest. Scales are "
               "the same for all cases; what lies beyond has the colour of the scale's end. Grey: 0, a step that updated nothing, a layer without a trust ratio, an estimate "
               "of noise that is not above 0.")
    return {f"{NAME}{at + 1}": (f"Layers: {one.case.name}", caption + left if at == 0 else "As above.")
            for at, one in enumerate(found[:MOST])}


def clear(run, folder):
    """Removes what an earlier report drew and this one does not."""
    for path in folder.glob(f"{NAME}*"):
        if path.stem not in {f"{NAME}{at + 1}" for at in range(len(shown(run)))}:
            path.unlink()
