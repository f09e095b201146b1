# SPDX-License-Identifier: Apache-2.0
"""The time of every training step, for long runs: whether a run is steady, warms up or slows down. Static and interactive."""

import statistics

import plotly.graph_objects as go

import cards
import figures
import panels
import style
import views

LONG = 50                # steps from which a run is long
POINTS = 200             # of a curve, at most
WIDE = 30                # over the shortest median step: from where on the axis is logarithmic, or short steps lie on its end


def long_cases(run):
    """Finished cases with the times of enough steps."""
    return [c for c in run.finished if c.step and len(c.step.samples) >= LONG]


def curve(case):
    """(steps, seconds, steps a point): medians of equal blocks of steps, single steps where they are few. A point stands at
    the middle of its block."""
    samples = case.step.samples
    size = -(-len(samples) // POINTS)
    blocks = [samples[i:i + size] for i in range(0, len(samples), size)]
    middles = [i * size + (len(block) + 1) / 2 for i, block in enumerate(blocks)]
    return middles, [statistics.median(block) for block in blocks], size


def slowest(case):
    """ "slowest step: 17, 120 ms" """
    samples = case.step.samples
    worst = max(range(len(samples)), key=samples.__getitem__)
    return f"slowest step: {worst + 1}, {style.text_seconds(samples[worst])}"


def _log_ticks(cases):
    """Milliseconds of the axis where steps differ widely between the panels; else None."""
    medians = [statistics.median(c.step.samples) for c in cases]
    if min(medians) <= 0 or max(medians) <= WIDE * min(medians):
        return None
    values = [1e3 * v for c in cases for v in curve(c)[1] if v > 0]
    return style.log_ticks(min(values), max(values))


def _y_title(ticks):
    return "step time (ms, log)" if ticks else "step time (ms)"


def _x_title(cases):
    most = max(curve(c)[2] for c in cases)
    return "training step" if most == 1 else f"training step (a point: the median of up to {most} steps)"


def static(run):
    """Seconds of each step by step, one panel per workload."""
    cases = long_cases(run)
    if not cases:
        return None
    groups, looks = views.workloads(cases), views.looks_of(cases, run)
    figure, axes = figures.panels(len(groups), 2.35, sharey=True)
    figures.titles(axes, groups)
    for panel, (_, members) in zip(axes.flat, groups):
        for case in views.refuted_last(members):
            color, marker = looks[case.strategy]
            x, y, _ = curve(case)
            panel.plot(x, [1e3 * v for v in y], color=color, linewidth=0.9, alpha=0.85)
            panel.plot(x[-1], 1e3 * y[-1], color=color, marker=marker[0], linestyle="none", markersize=views.larger(case, 5), zorder=3,
                       markerfacecolor=views.fill(case, color), markeredgecolor=views.edge(case, color))
        panel.xaxis.set_tick_params(labelbottom=True)
    ticks = _log_ticks(cases)
    if ticks:
        axes.flat[0].set_yscale("log")
        axes.flat[0].set_yticks(ticks, [style.text_number(t) for t in ticks])
        axes.flat[0].set_yticks([], minor=True)
    else:
        axes.flat[0].set_ylim(bottom=0)      # all panels share it; set last, for it ends the fit to the curves
    figure.supxlabel(_x_title(cases), fontsize=8.5)
    figure.supylabel(_y_title(ticks), fontsize=8.5)
    figures.legend(figure, figures.strategy_handles(cases, run, "-"))
    return figure


def interactive(run):
    """The same with hover cards."""
    cases = long_cases(run)
    if not cases:
        return None
    groups, looks, legend = views.workloads(cases), views.looks_of(cases, run), panels.Legend()
    figure, columns = panels.grid(groups, 270)
    for index, (_, members) in enumerate(groups):
        for case in views.refuted_last(members):
            color, marker = looks[case.strategy]
            x, y, _ = curve(case)
            last = [0] * (len(x) - 1)
            figure.add_trace(go.Scatter(
                x=x, y=[1e3 * v for v in y], mode="lines+markers", line={"color": color, "width": 1.2},
                marker={"symbol": marker[1], "size": last + [views.larger(case, 8)], "opacity": 1, "color": views.fill(case, color),
                        "line": {"color": views.edge(case, color), "width": last + [1.6]}},
                meta=[f"{slowest(case)}<br>{cards.card(case)}", case.id], hoverlabel={"bordercolor": color},
                hovertemplate="step %{x}, %{y:.3g} ms<br>%{meta[0]}<extra></extra>", **legend.under(case.strategy)),
                **panels.place(index, columns))
    legend.show(figure, {name: (color, marker[1]) for name, (color, marker) in looks.items()})
    panels.match(figure.select_yaxes())
    ticks = _log_ticks(cases)
    if ticks:
        figure.update_yaxes(type="log", tickvals=ticks, ticktext=[style.text_number(t) for t in ticks])
    else:
        figure.update_yaxes(rangemode="tozero")
    panels.finish(figure, cases, groups, columns, _x_title(cases), _y_title(ticks))
    return figure


FIGURES = {"step_times": static}
PLOTS = {"step_times": interactive}
SECTIONS = {"step_times": ("Step times", f"Time of every training step of runs of {LONG} steps and more, one panel for each kind "
                           f"of work. Above {POINTS} steps a point is the median of a block of steps; the card of a curve names "
                           "the slowest single step.")}
