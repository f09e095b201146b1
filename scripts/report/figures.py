# SPDX-License-Identifier: Apache-2.0
"""The figures of a run, static (matplotlib). Every function takes a Run and returns a Figure, or
None where no case holds what it draws. Nothing is computed here that the record does not say."""

import math

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import loss_limits
import paper
import reach
import style
import views
from short_names import fitting_names

TITLE_LETTERS = 118      # of panel titles, over the width of a figure
LEGEND_LETTERS = 150     # of one row, at the width of the figures
DOTTED = r"$\odot$"      # the mark of an estimate, in a legend


def panels(count, height, width=10.6, **shared):
    rows, columns = views.grid_shape(count)
    figure = Figure(figsize=(width, height * rows + 0.7), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for unused in list(axes.flat)[count:]:
        unused.set_visible(False)
    return figure, axes


def titles(axes, groups):
    """The label of each group over its panel, in lines that end before the next panel; one that is alone has none."""
    for panel, (label, _) in zip(axes.flat, groups):
        panel.set_title("\n".join(views.lines_over(label, len(groups), TITLE_LETTERS)))


def whole_ticks():
    """Of an axis that counts things: steps, ranks."""
    return matplotlib.ticker.MaxNLocator(6, integer=True, min_n_ticks=1)


def legend_columns(letters):
    """Places of a legend's entries, column by column, None for empty ones, in as few rows as fit. Two blocks beside each other are
    filled row by row, so that long entries at the end widen no column of short ones."""
    def block(first, last, rows):
        width = -(-(last - first) // rows)
        return [[at if (at := first + r * width + c) < last else None for r in range(rows)] for c in range(width)]

    def width(columns):
        return sum(max(letters[i] for i in column if i is not None) for column in columns)
    for rows in range(1, len(letters) + 1):
        splits = [block(0, k, rows) + block(k, len(letters), rows) for k in range(len(letters), 0, -1)]
        columns = min((c for c in splits if all(any(i is not None for i in column) for column in c)), key=width)
        if width(columns) <= LEGEND_LETTERS:
            break
    return columns


def legend_names(names):
    """{name: what the legend calls it}"""
    return fitting_names(names, lambda shown: len(legend_columns([len(name) + 6 for name in shown])[0]), LEGEND_LETTERS - 6)


def legend(figure, handles):
    """One legend above all panels."""
    if not handles:
        return
    columns = legend_columns([len(h.get_label()) + 6 for h in handles])
    blank = Line2D([], [], linestyle="none", label="")
    turned = [blank if i is None else handles[i] for column in columns for i in column]
    columns = len(columns)
    figure.legend(handles=turned, loc="outside upper left", ncols=columns, handletextpad=0.5,
                  columnspacing=1.5, borderaxespad=0.2)


def strategy_handles(cases, run, line="none"):
    looks = views.looks_of(cases, run)
    short = legend_names(looks)
    handles = [Line2D([], [], color=color, marker=marker[0], linestyle=line, label=short[name])
               for name, (color, marker) in looks.items()]
    note = [Line2D([], [], linestyle="none", label=style.CYCLE_NOTE)] if style.repeats_colors(looks) else []
    return handles + proof_handles(cases, True) + note


def proof_handles(cases, is_timed=False):
    """What marks that are not proven look like."""
    return [Line2D([], [], color=edge, marker=DOTTED if label == views.ESTIMATED else "o", markerfacecolor=fill, linestyle="none",
                   label=label, markersize=8 if label == views.ESTIMATED else None, markeredgewidth=0.6)
            for label, fill, edge in views.proof_legend(cases, is_timed)]


def timed_mark(panel, x, case, color, marker, size, **bar):
    """tokens/s of a case with its interval, where it has one."""
    panel.errorbar(x, case.tokens_per_s, yerr=reach.static_errors(case.tokens_per_s, case.tokens_interval), color=color,
                   marker=marker[0], markersize=views.larger(case, size), markerfacecolor=views.fill(case, color),
                   markeredgecolor=views.edge(case, color), **bar)
    dot(panel, x, case.tokens_per_s, case, color, marker)


def dot(panel, x, y, case, color, marker=None):
    """In the mark of an estimate; a star's inside is small."""
    if case.is_estimated:
        size = 1 if marker == style.STAR else 2
        panel.plot(x, y, marker="o", markersize=size, markeredgewidth=0, color=color, linestyle="none", zorder=4)


def tokens_per_second(run):
    """Tokens/s by strategy and ranks with 95 % intervals, one panel per workload."""
    cases = views.timed(run)
    if not cases:
        return None
    groups, looks = views.workloads(cases), views.looks_of(cases, run)
    counts, positions = views.rank_positions(cases)
    top = 1.08 * reach.tokens_limit(cases)
    figure, axes = panels(len(groups), 2.25, sharex=True, sharey=True)
    titles(axes, groups)
    is_cut = False
    for panel, (_, members) in zip(axes.flat, groups):
        panel.grid(axis="x", visible=False)
        for case in views.refuted_last(members):
            if case.ranks == 1 and not case.is_different:
                panel.axhline(case.tokens_per_s, color=style.GREY, linewidth=0.8, dashes=(1, 3) if case.is_estimated else (4, 3))
            color, marker = looks[case.strategy]
            timed_mark(panel, positions[case.ranks, case.strategy], case, color, marker, 5.5, elinewidth=1.1)
        cut = views.tokens_cuts(members, looks, top, lambda c: positions[c.ranks, c.strategy])
        reach.draw_static(panel, cut)
        is_cut = is_cut or bool(cut)
        panel.set_xticks(range(len(counts)), [str(c) for c in counts])
        panel.set_xlim(-0.5, len(counts) - 0.5)
        panel.set_ylim(0, top)
        panel.yaxis.set_major_formatter(lambda v, _: f"{v:,.0f}")
        panel.xaxis.set_tick_params(labelbottom=True)
    figure.supxlabel("ranks", fontsize=8.5)
    figure.supylabel("tokens/s", fontsize=8.5)
    handles = strategy_handles(cases, run)
    if any(c.ranks == 1 and not c.is_different for c in cases):
        handles.append(Line2D([], [], color=style.GREY, linewidth=0.8, dashes=(4, 3),
                              label="level of one rank"))
    handles += [reach.handle()] if is_cut else []
    legend(figure, handles)
    return figure


def loss_curves(run):
    """Training loss by step, one panel per batch and sequence; equal work gives equal curves. Rings are
    validation losses."""
    cases = views.learned(run)
    if not cases:
        return None
    groups, looks = views.told_spread(views.loss_groups(run)), views.looks_of(cases, run)
    figure, axes = panels(len(groups), 2.35, sharey=True)
    titles(axes, groups)
    for panel, (_, members) in zip(axes.flat, groups):
        panel.xaxis.set_major_locator(whole_ticks())
        stripes = views.loss_stripes(members)
        for case in views.refuted_last(members):
            color, marker = looks[case.strategy]
            loss = [math.nan if v is None else v for v in case.loss]
            before, after = stripes[case.strategy]
            dash = "-" if before + after == 0 else (0, (0, before, views.STRIPE, after))
            panel.plot(range(1, len(loss) + 1), loss, color=color, linestyle=dash, linewidth=1.8,
                       dash_capstyle="butt")
            panel.plot(len(loss), loss[-1], color=color, marker=marker[0], linestyle="none",
                       markerfacecolor=views.fill(case, color),
                       markeredgecolor=views.edge(case, color), markersize=views.larger(case, 5), zorder=3)
            if case.validation:
                panel.plot([s for s, _ in case.validation], [math.nan if v is None else v for _, v in case.validation],
                           color=color, marker="o", linestyle=":", linewidth=0.9, markersize=4.5,
                           markerfacecolor="none", markeredgecolor=views.edge(case, color))
        loss_limits.draw_static(panel, members, looks, loss_limits.limits(cases))
    figure.supxlabel("training step", fontsize=8.5)
    figure.supylabel(f"training loss ({views.loss_unit(cases)})", fontsize=8.5)
    legend(figure, strategy_handles(cases, run, "-") + loss_limits.handles(cases))
    return figure


def bar_panels(groups, rows):
    """A panel a group with a line a row; (figure, panels in use)."""
    figure, axes = panels(len(groups), 0.9 + 0.19 * len(rows), sharex=True, sharey=True)
    titles(axes, groups)
    for panel in list(axes.flat)[:len(groups)]:
        panel.grid(axis="y", visible=False)
        panel.tick_params(axis="y", length=0)
        panel.xaxis.set_tick_params(labelbottom=True)
    axes.flat[0].set_yticks(range(len(rows)), [label for label, _ in rows])       # all panels share it
    axes.flat[0].set_ylim(len(rows) - 0.4, -0.6)
    figure.supylabel("strategy, ranks", fontsize=8.5)
    return figure, list(axes.flat)


def _bar_panels(cases, run):
    groups = views.workloads(cases)
    rows = views.bar_rows(groups, run)
    return *bar_panels(groups, rows), groups, rows


def memory(run):
    """Peak bytes of the fullest rank, stacked by category; a tick marks every rank's peak."""
    cases = views.metered(run)
    if not cases:
        return None
    colors = style.category_colors({k for c in cases for cat in c.categories for k in cat})
    figure, axes, groups, rows = _bar_panels(cases, run)
    for index in range(len(groups)):
        here = [(y, cells[index]) for y, (_, cells) in enumerate(rows) if index in cells]
        left = [0.0] * len(here)
        for category, color in colors.items():
            widths = [views.peak_rank(case)[1].get(category, 0) / views.MIB for _, case in here]
            axes[index].barh([y for y, _ in here], widths, left=left, height=0.68, linewidth=0.7,
                             color=[views.fill(case, color) for _, case in here],
                             edgecolor=[views.bar_edge(case, color) for _, case in here])
            left = [a + b for a, b in zip(left, widths)]
        peaks = [(p / views.MIB, y) for y, case in here for p in case.peaks if p is not None]
        axes[index].plot([p for p, _ in peaks], [y for _, y in peaks], clip_on=False, linestyle="none", marker="|", markersize=7,
                         color=style.INK, markeredgewidth=0.9)
    figure.supxlabel("peak memory of a rank (MiB)", fontsize=8.5)
    handles = [Patch(color=color, label=category) for category, color in colors.items()]
    handles.append(Line2D([], [], color=style.INK, marker="|", linestyle="none",
                          label="peak of each rank"))
    handles += [Patch(facecolor=fill, edgecolor=edge, label=label)
                for label, fill, edge in views.proof_legend(cases)]
    legend(figure, handles)
    return figure


def traffic(run):
    """Bytes a rank sent during the training steps, by mesh axis, on a logarithmic scale."""
    cases = views.talking(run)
    if not cases:
        return None
    looks = views.axis_looks(cases)
    figure, axes, groups, rows = _bar_panels(cases, run)
    for index in range(len(groups)):
        for y, (_, cells) in enumerate(rows):
            case = cells.get(index)
            for axis, entry in case.traffic.items() if case else ():
                sent = [v for v in entry.sent if v]
                if not sent:
                    continue
                color, marker = looks[axis]
                axes[index].plot([min(sent), max(sent)], [y, y], color=color, linewidth=2.4,
                                 alpha=0.5)
                axes[index].plot(max(sent), y, color=color, marker=marker[0], linestyle="none",
                                 markersize=views.larger(case, 5.5),
                                 markerfacecolor=views.fill(case, color),
                                 markeredgecolor=views.edge(case, color))
    for panel in axes[:len(groups)]:
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(lambda v, _: style.text_bytes(v).replace(".00", ""))
        panel.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        panel.margins(x=0.12)
    _set_log_bytes(axes[:len(groups)], cases)
    figure.supxlabel("bytes sent by a rank over all training steps, log scale (most of any rank; "
                     "line down to the least)", fontsize=8.5)
    handles = [Line2D([], [], color=color, marker=marker[0], linestyle="none", label=f"axis {axis}")
               for axis, (color, marker) in looks.items()]
    legend(figure, handles + proof_handles(cases))
    return figure


def _set_log_bytes(panels, cases):
    ticks = views.byte_ticks(cases, views.grid_shape(len(panels))[1])
    for panel in panels:
        panel.set_xticks(ticks)
        panel.set_xticks([], minor=True)
        panel.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
        panel.tick_params(axis="x", labelsize=7)


def tradeoff(run):
    """Throughput against the peak of the fullest rank, one panel per workload: up and left is better."""
    cases = [c for c in views.timed(run) if c.peak]
    if not cases:
        return None
    groups, looks = views.workloads(cases), views.looks_of(cases, run)
    figure, axes = panels(len(groups), 3.3 if len(groups) == 1 else 2.25, sharex=True, sharey=True)
    titles(axes, groups)
    top, is_cut = 1.08 * reach.tokens_limit(cases), False
    for panel, (_, members) in zip(axes.flat, groups):
        for case in views.refuted_last(members):
            color, marker = looks[case.strategy]
            timed_mark(panel, case.peak / views.MIB, case, color, marker, 4.5 + 1.4 * math.log2(max(case.ranks, 1)), elinewidth=0.8,
                       capsize=0)
        cut = views.tokens_cuts(members, looks, top, lambda c: c.peak / views.MIB)
        reach.draw_static(panel, cut)
        is_cut = is_cut or bool(cut)
        panel.xaxis.set_tick_params(labelbottom=True)
    axes.flat[0].set_ylim(0, top)        # all panels share both axes; set last, for it ends the fit to the marks
    axes.flat[0].set_xlim(0, 1.06 * max(c.peak for c in cases) / views.MIB)
    axes.flat[0].yaxis.set_major_formatter(lambda v, _: f"{v:,.0f}")
    figure.supxlabel("peak memory of the fullest rank (MiB); up and left is better, a larger mark has more ranks", fontsize=8.5)
    figure.supylabel("tokens/s", fontsize=8.5)
    legend(figure, strategy_handles(cases, run) + ([reach.handle()] if is_cut else []))
    return figure


FIGURES = {"tokens_per_second": tokens_per_second, "loss_curves": loss_curves, "memory": memory,
           "traffic": traffic, "tradeoff": tradeoff}


def draw(name, run):
    """One figure by name, in the common look."""
    with matplotlib.rc_context(style.MATPLOTLIB):
        return FIGURES[name](run)


def _save(figure, path):
    """As figure.savefig(), which draws everything twice; the figure stays as the first one lays it out."""
    if path.suffix == ".svg":
        FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})
    else:
        figure.set_dpi(matplotlib.rcParams["savefig.dpi"])
        FigureCanvasAgg(figure).print_png(path)
    figure.set_layout_engine("none")


def write(run, folder, drawings=None):
    """Writes every figure that has something to show as SVG and PNG: {name: paper.Drawn}."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    with matplotlib.rc_context(style.MATPLOTLIB):
        for name, function in (drawings or FIGURES).items():
            figure = function(run)
            if figure is not None:
                paper.label_rows(figure)
            for suffix in (".svg", ".png"):
                path = folder / (name + suffix)
                if figure is None:
                    path.unlink(missing_ok=True)
                    continue
                _save(figure, path)
            if figure is not None:
                written[name] = paper.drawn(folder / f"{name}.svg", figure)
    return written
