# SPDX-License-Identifier: Apache-2.0
"""The figures of a run, interactive (plotly): the same content and look as figures.py, every point
with the card of its case. A click on a point is followed to the case's row by page.js."""

import itertools
import math

import plotly.graph_objects as go

import cards
import loss_limits
import panels
import reach
import style
import views


def _points(cases, color, symbol, x, y, legend, name, sizes=None):
    """One trace of cases; errors of y are the 95 % interval of tokens/s."""
    sizes = sizes or [9] * len(cases)
    return go.Scatter(
        x=x, y=y, mode="markers", customdata=[[cards.card(c), c.id] for c in cases],
        hovertemplate="%{customdata[0]}<extra></extra>", hoverlabel={"bordercolor": color},
        **reach.error_bars([c.tokens_per_s for c in cases], [c.tokens_interval for c in cases], color),
        marker={"symbol": views.symbols(cases, symbol), "size": [views.larger(c, s) for c, s in zip(cases, sizes)], "color": [views.fill(c, color) for c in cases],
                "opacity": 1, "line": {"color": [views.edge(c, color) for c in cases], "width": 1.8}},
        **legend.under(name))


def tokens_per_second(run):
    """Tokens/s by strategy and ranks, one panel per workload."""
    cases = views.timed(run)
    if not cases:
        return None
    groups, looks, legend = views.workloads(cases), views.looks_of(cases, run), panels.Legend()
    counts, positions = views.rank_positions(cases)
    figure, columns = panels.grid(groups, 250)
    top = 1.08 * reach.tokens_limit(cases)
    for index, (_, members) in enumerate(groups):
        where = panels.place(index, columns)
        for layer, (strategy, (color, marker)) in itertools.product(views.layers(members), looks.items()):
            mine = [c for c in layer if c.strategy == strategy]
            if mine:
                figure.add_trace(_points(mine, color, marker[1],
                                         [positions[c.ranks, strategy] for c in mine],
                                         [c.tokens_per_s for c in mine], legend, strategy), **where)
        for case in members:
            if case.ranks == 1 and not case.is_different:
                figure.add_hline(y=case.tokens_per_s, line={"color": style.GREY, "width": 1,
                                                            "dash": "dot" if case.is_estimated else "dash"}, layer="below", **where)
        if cut := views.tokens_cuts(members, looks, top, lambda c: positions[c.ranks, c.strategy]):
            figure.add_trace(reach.trace(cut, legend), **where)
        figure.update_xaxes(tickvals=list(range(len(counts))), ticktext=[str(c) for c in counts],
                            range=[-0.5, len(counts) - 0.5], showgrid=False, **where)
        figure.update_yaxes(range=[0, top], tickformat=",.0f", **where)
    legend.show(figure, {name: (color, marker[1]) for name, (color, marker) in looks.items()})
    panels.match(figure.select_yaxes())
    panels.finish(figure, cases, groups, columns, "ranks", "tokens/s", is_timed=True)
    return figure


def loss_curves(run):
    """Training loss by step, one panel per batch and sequence; rings are validation losses."""
    cases = views.learned(run)
    if not cases:
        return None
    groups, looks, legend = views.told_spread(views.loss_groups(run)), views.looks_of(cases, run), panels.Legend()
    figure, columns = panels.grid(groups, 270)
    order = list(looks)
    ends = loss_limits.limits(cases)
    for index, (_, members) in enumerate(groups):
        where = panels.place(index, columns)
        stripes = views.loss_stripes(members)
        figure.update_xaxes(rangemode="tozero", **panels.whole_ticks([0, *(len(c.loss) for c in members)]), **where)
        if cut := loss_limits.cuts(members, looks, ends):
            figure.add_trace(reach.trace(cut, legend, label=loss_limits.LEAVES), **where)
        for case in sorted(members, key=lambda c: (c.is_different, order.index(c.strategy))):
            color, marker = looks[case.strategy]
            before, after = (1.6 * gap for gap in stripes[case.strategy])
            stripe = f"0px,{before:g}px,{1.6 * views.STRIPE:g}px,{after:g}px"
            steps = list(range(1, len(case.loss) + 1))
            figure.add_trace(go.Scatter(
                x=steps, y=case.loss, mode="lines+markers",
                line={"color": color, "width": 2.2, "dash": stripe if before + after else "solid"},
                marker={"symbol": marker[1], "color": views.fill(case, color),
                        "size": [0] * (len(steps) - 1) + [views.larger(case, 8)], "opacity": 1,
                        "line": {"color": views.edge(case, color),
                                 "width": [0] * (len(steps) - 1) + [1.6]}},
                meta=[cards.card(case), case.id], hoverlabel={"bordercolor": color},
                hovertemplate="step %{x}, loss %{y:.5f}<br>%{meta[0]}<extra></extra>",
                legendgroup=case.strategy, showlegend=False), **where)
            if case.validation:
                figure.add_trace(go.Scatter(
                    x=[s for s, _ in case.validation], y=[v for _, v in case.validation], mode="lines+markers",
                    line={"color": color, "width": 1, "dash": "dot"},
                    marker={"symbol": "circle-open", "size": 7, "color": views.edge(case, color)},
                    text=[case.name] * len(case.validation), hoverlabel={"bordercolor": color},
                    hovertemplate="validation after step %{x}: %{y:.5f}<br>%{text}<extra></extra>",
                    legendgroup=case.strategy, showlegend=False), **where)
    legend.show(figure, {name: (color, marker[1]) for name, (color, marker) in looks.items()})
    panels.match(figure.select_yaxes())
    if ends:
        figure.update_yaxes(range=ends)
    panels.finish(figure, cases, groups, columns, "training step", f"loss ({views.loss_unit(cases)})")
    return figure


def memory(run):
    """Peak bytes of the fullest rank, stacked by category; a tick marks every rank's peak."""
    cases = views.metered(run)
    if not cases:
        return None
    colors = style.category_colors({k for c in cases for cat in c.categories for k in cat})
    groups, legend = views.workloads(cases), panels.Legend()
    rows = views.bar_rows(groups, run)
    figure, columns = panels.bars_grid(groups, rows)
    for index in range(len(groups)):
        here = [(y, cells[index]) for y, (_, cells) in enumerate(rows) if index in cells]
        for category, color in colors.items():
            held = [views.peak_rank(case)[1].get(category, 0) for _, case in here]
            figure.add_trace(go.Bar(
                x=[h / views.MIB for h in held], y=[y for y, _ in here], orientation="h", width=0.7,
                marker={"color": [views.fill(case, color) for _, case in here],
                        "line": {"color": [views.bar_edge(case, color) for _, case in here], "width": 1}},
                customdata=[[f"<b>{category}: {style.text_bytes(h)}</b> on rank "
                             f"{views.peak_rank(case)[0]}<br>{cards.card(case)}<br>{cards.all_peaks(case)}",
                             case.id] for h, (_, case) in zip(held, here)],
                hovertemplate="%{customdata[0]}<extra></extra>",
                hoverlabel={"bordercolor": color}, **legend.under(category)),
                **panels.place(index, columns))
        peaks = [(p / views.MIB, y, case) for y, case in here for p in case.peaks if p is not None]
        figure.add_trace(go.Scatter(
            x=[p for p, _, _ in peaks], y=[y for _, y, _ in peaks], mode="markers",
            marker={"symbol": "line-ns", "size": 9, "line": {"width": 1.4, "color": style.INK}},
            customdata=[[f"<b>peak {p:.3f} MiB</b><br>{cards.card(case)}<br>{cards.all_peaks(case)}", case.id]
                        for p, _, case in peaks],
            hovertemplate="%{customdata[0]}<extra></extra>", **legend.of("peak of each rank")),
            **panels.place(index, columns))
    legend.show(figure, {category: (color, "square") for category, color in colors.items()})
    figure.update_layout(barmode="stack")
    panels.match(figure.select_xaxes())
    panels.finish(figure, cases, groups, columns, "peak memory of a rank (MiB)", None)
    return figure


def traffic(run):
    """Bytes a rank sent during the training steps, by mesh axis, on a logarithmic scale."""
    cases = views.talking(run)
    if not cases:
        return None
    looks, groups, legend = views.axis_looks(cases), views.workloads(cases), panels.Legend()
    rows = views.bar_rows(groups, run)
    figure, columns = panels.bars_grid(groups, rows)
    for index in range(len(groups)):
        here = [(y, cells[index]) for y, (_, cells) in enumerate(rows) if index in cells]
        for above, (axis, (color, marker)) in itertools.product((False, True), looks.items()):
            mine = [(y, case, [v for v in case.traffic[axis].sent if v]) for y, case in here
                    if axis in case.traffic and case.is_different == above]
            mine = [m for m in mine if m[2]]
            if not mine:
                continue
            figure.add_trace(go.Scatter(
                x=[max(sent) for _, _, sent in mine], y=[y for y, _, _ in mine], mode="markers",
                error_x={"type": "data", "symmetric": False, "array": [0] * len(mine), "width": 4,
                         "arrayminus": [max(sent) - min(sent) for _, _, sent in mine],
                         "color": color, "thickness": 1.5},
                marker={"symbol": marker[1], "size": 13.5 if above else 9,
                        "line": {"color": [views.edge(case, color) for _, case, _ in mine], "width": 1.8},
                        "color": [views.fill(case, color) for _, case, _ in mine]},
                customdata=[[cards.axis_card(case, axis), case.id] for _, case, _ in mine],
                hovertemplate="%{customdata[0]}<extra></extra>",
                hoverlabel={"bordercolor": color}, **legend.under(f"axis {axis}")),
                **panels.place(index, columns))
    legend.show(figure, {f"axis {axis}": (color, marker[1]) for axis, (color, marker) in looks.items()})
    panels.match(figure.select_xaxes())
    ticks = views.byte_ticks(cases, columns)
    figure.update_xaxes(type="log", tickvals=ticks, tickfont={"size": 10.5},
                        ticktext=[style.text_bytes(t) for t in ticks], tickangle=0,
                        range=[math.log10(ticks[0] / 1.6), math.log10(ticks[-1] * 1.6)])
    panels.finish(figure, cases, groups, columns, "bytes sent by a rank, all steps (log)", None)
    return figure


def tradeoff(run):
    """Throughput against the peak of the fullest rank, one panel per workload: up and left is better."""
    cases = [c for c in views.timed(run) if c.peak]
    if not cases:
        return None
    groups, legend, looks = views.workloads(cases), panels.Legend(), views.looks_of(cases, run)
    figure, columns = panels.grid(groups, 380 if len(groups) == 1 else 250)
    top = 1.08 * reach.tokens_limit(cases)
    for index, (_, members) in enumerate(groups):
        where = panels.place(index, columns)
        for layer, (strategy, (color, marker)) in itertools.product(views.layers(members), looks.items()):
            mine = [c for c in layer if c.strategy == strategy]
            if mine:
                sizes = [7.5 + 2.2 * math.log2(max(c.ranks, 1)) for c in mine]
                figure.add_trace(_points(mine, color, marker[1], [c.peak / views.MIB for c in mine],
                                         [c.tokens_per_s for c in mine], legend, strategy, sizes), **where)
        if cut := views.tokens_cuts(members, looks, top, lambda c: c.peak / views.MIB):
            figure.add_trace(reach.trace(cut, legend), **where)
    legend.show(figure, {name: (color, marker[1]) for name, (color, marker) in looks.items()})
    panels.match(figure.select_xaxes())
    panels.match(figure.select_yaxes())
    figure.update_yaxes(range=[0, top], tickformat=",.0f")
    figure.update_xaxes(rangemode="tozero")
    panels.finish(figure, cases, groups, columns, "peak memory of the fullest rank (MiB)", "tokens/s", is_timed=True)
    return figure


PLOTS = {"tokens_per_second": tokens_per_second, "loss_curves": loss_curves, "memory": memory,
         "traffic": traffic, "tradeoff": tradeoff}
