# SPDX-License-Identifier: Apache-2.0
"""The gradient noise scale by step (`train.telemetry`), static and interactive: the batch size from which larger ones begin to save
few steps. [McCandlish et al., arXiv 1812.06162]"""

import plotly.graph_objects as go
from matplotlib.lines import Line2D

import cards
import figures
import layers
import panels
import style
import views
from values import lookup, number

OF_ONE_STEP = "of one step"
BATCH = "batch of a step"


def _summed(told, key):
    """The sum of each step over all layers; None where one has no number: plans would be of different layers."""
    rows = [list(map(number, row)) if isinstance(row, list) else [] for row in told.get(key) or []]
    return [sum(row) if row and None not in row else None for row in rows]


def curve(case):
    """(steps, noise scale of each in samples, the same of means over `layers.window` steps); None where nothing is recorded. A
    value is None where an estimate is not above 0."""
    return _curve(case.document.get("telemetry"))


@layers.once
def _curve(told):
    if not isinstance(told, dict) or not told.get("gradient_variance") or not told.get("gradient_square"):
        return None
    sums = _summed(told, "gradient_variance"), _summed(told, "gradient_square")
    steps = [number(s) for s in told.get("steps") or []]
    if None in steps or {len(s) for s in sums} != {len(steps)}:
        return None
    single, mean = (layers.quotients(*sums, width) for width in (1, layers.window(len(steps))))
    return [s + 1 for s in steps], single, mean


def noisy(run):
    """Finished cases with estimates."""
    return [c for c in run.finished if (found := curve(c)) and any(found[2])]


def _ticks(cases):
    """Of the axis, over everything that it shows: {where: what is told there}."""
    values = [v for c in cases for part in curve(c)[1:] for v in part if v] + _batches(cases)
    return {t: style.text_number(t) for t in style.log_ticks(min(values), max(values))}


def _batches(members):
    return sorted({b for c in members if (b := number(lookup(c.plan, "train.batch")))})


def _words(cases):
    most = max(layers.window(len(curve(c)[0])) for c in cases)
    return f"line: means over up to {most} steps"


def static(run):
    """Samples by step, one panel per workload."""
    cases = noisy(run)
    if not cases:
        return None
    groups, looks = views.workloads(cases), views.looks_of(cases, run)
    figure, axes = figures.panels(len(groups), 2.35, sharey=True)
    figures.titles(axes, groups)
    ticks = _ticks(cases)
    for panel, (_, members) in zip(axes.flat, groups):
        panel.set_yscale("log")
        for case in views.refuted_last(members):
            color, marker = looks[case.strategy]
            steps, single, mean = curve(case)
            panel.plot(steps, [v or float("nan") for v in single], color=color, marker=".", markersize=2.5, linestyle="none", alpha=0.35)
            panel.plot(steps, [v or float("nan") for v in mean], color=views.edge(case, color), linewidth=1.6)
        for batch in _batches(members):
            panel.axhline(batch, color=style.GREY, linewidth=0.8, dashes=(4, 3))
        panel.set_yticks(list(ticks), list(ticks.values()))
        panel.minorticks_off()
        panel.xaxis.set_major_locator(figures.whole_ticks())
        panel.xaxis.set_tick_params(labelbottom=True)
    figure.supxlabel(f"training step ({_words(cases)})", fontsize=8.5)
    figure.supylabel("gradient noise scale (samples)", fontsize=8.5)
    handles = [Line2D([], [], color=color, label=name) for name, (color, _) in looks.items()]
    handles += [Line2D([], [], color=style.MUTED, marker=".", markersize=3, linestyle="none", label=OF_ONE_STEP),
                Line2D([], [], color=style.GREY, linewidth=0.8, dashes=(4, 3), label=BATCH)]
    figures.legend(figure, handles)
    return figure


def interactive(run):
    """The same with hover cards."""
    cases = noisy(run)
    if not cases:
        return None
    groups, looks, legend = views.workloads(cases), views.looks_of(cases, run), panels.Legend()
    figure, columns = panels.grid(groups, 270)
    ticks = _ticks(cases)
    for index, (_, members) in enumerate(groups):
        where = panels.place(index, columns)
        for case in views.refuted_last(members):
            color, _ = looks[case.strategy]
            steps, single, mean = curve(case)
            figure.add_trace(go.Scatter(x=steps, y=single, mode="markers", marker={"color": color, "size": 3.5, "opacity": 0.35},
                                        hoverinfo="skip", **legend.under(case.strategy)), **where)
            figure.add_trace(go.Scatter(
                x=steps, y=mean, mode="lines", line={"color": views.edge(case, color), "width": 2}, meta=[cards.card(case), case.id],
                hovertemplate="step %{x}: %{y:.3g} samples<br>%{meta[0]}<extra></extra>", hoverlabel={"bordercolor": color},
                **legend.under(case.strategy)), **where)
        for batch in _batches(members):
            figure.add_hline(y=batch, line={"color": style.GREY, "width": 1, "dash": "dash"}, layer="below", **where)
        figure.update_yaxes(type="log", tickvals=list(ticks), ticktext=list(ticks.values()), **where)
    legend.show(figure, {name: (color, "square") for name, (color, _) in looks.items()})
    for name, look in ((OF_ONE_STEP, {"mode": "markers", "marker": {"color": style.MUTED, "size": 4}}),
                       (BATCH, {"mode": "lines", "line": {"color": style.GREY, "width": 1, "dash": "dash"}})):
        figure.add_trace(go.Scatter(x=[None], y=[None], hoverinfo="skip", **look, **legend.of(name)), **panels.place(0, 1))
    panels.match(figure.select_yaxes())
    figure.update_xaxes(**panels.whole_ticks([s for c in cases for s in curve(c)[0]]))
    panels.finish(figure, [], groups, columns, f"training step ({_words(cases)})", "noise scale (samples)")
    return figure


FIGURES = {"noise_scale": static}
PLOTS = {"noise_scale": interactive}
SECTIONS = {"noise_scale": (
    "Gradient noise scale", "How many samples a step could take before a larger batch saves few steps: the trace of the covariance of "
    "one sample's gradient over the squared norm of the mean, both estimated from the gradients of replicas or micro-batches and of "
    "the whole batch, both averaged over steps before they are divided. Steps whose estimate is not positive have no dot.")}
