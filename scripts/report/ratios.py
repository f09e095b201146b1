# SPDX-License-Identifier: Apache-2.0
"""Cases beside the baselines that a suite compares with: ratios of throughput, peak memory and traffic at equal work, ranks and
world. A ratio is only drawn where both sides have finished."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import plotly.graph_objects as go
from matplotlib.lines import Line2D

import cards
import figures
import panels
import reach
import reasons
import record
import style
import timings
import values
import views
from table import text

# Keys of a plan that say where work goes; all others make two cases the same work.
PLACEMENT = ("parallel.", "train.micro_batch")


@dataclass(frozen=True)
class Ratio:
    """`case` / `base`; None where a side was not measured."""
    case: record.Case
    base: record.Case
    speed: float            # tokens/s: above 1 the case is faster
    speed_interval: tuple   # of 95 %: timings.over_rounds() of one sweep, else what the intervals of both allow
    rounds: int             # that both ran in, of one call; 0: the two are of different calls or records
    memory: float           # peak of the fullest rank: below 1 the case needs less
    sent: float             # bytes of the busiest rank
    label: str              # what is compared, as a legend says it

    @property
    def is_certified(self):
        return self.case.is_certified and self.base.is_certified

    @property
    def is_apart(self):
        return not self.rounds and not self.is_estimated

    @property
    def is_estimated(self):
        """A side of its times is a price of the cost model."""
        return self.case.is_estimated or self.base.is_estimated


@dataclass(frozen=True)
class Measure:
    """What a figure of ratios shows."""
    value_of: Callable
    interval_of: Callable
    what: str               # "tokens per second"
    over: str               # "of the baseline's at the same work and ranks"
    is_timed: bool = False


def work_of(case):
    """What two cases must share to be compared."""
    return (case.ranks, case.world) + tuple(
        (key, str(value)) for key, value in sorted(values.flat(case.plan)) if not key.startswith(PLACEMENT))


def _over(a, b):
    return None if a is None or not b else a / b


def paired(case, base):
    """[(logarithm, standard error) of the ratio of tokens/s] of each round of one call in which both ran: a slow minute slows both
    sides of its round. Records from before rounds have one."""
    pairs = [(case.step, base.step)] if not (case.rounds and base.rounds) else [
        (mine.step, theirs.step) for mine in case.rounds for theirs in base.rounds
        if (mine.number, mine.sweep) == (theirs.number, theirs.sweep)]
    return [ratio for pair in pairs if (ratio := timings.step_ratio(*pair))]


def ratio_of(case, base, label="", is_of_one_sweep=True):
    """Rounds of one sweep are paired; those of two ran at other times."""
    rounds = paired(case, base) if is_of_one_sweep else []
    if rounds:
        speed, interval = timings.over_rounds(rounds)       # at equal work: step times the other way round
        if len(rounds) == 2 or case.is_estimated or base.is_estimated:
            interval = None                                 # as of a case: record.Case.step_interval
    elif is_of_one_sweep and (apart := timings.step_ratio(case.step, base.step)):
        no_interval = case.has_two_rounds or base.has_two_rounds or case.is_estimated or base.is_estimated
        speed, interval = timings.over_rounds([(apart[0], math.inf if no_interval else apart[1])])
    else:
        mine, theirs = case.tokens_interval, base.tokens_interval
        speed = _over(case.tokens_per_s, base.tokens_per_s)
        interval = (mine[0] / theirs[1], mine[1] / theirs[0]) if mine and theirs else None
    return Ratio(case, base, speed, interval, len(rounds), _over(case.peak, base.peak), _over(case.sent, base.sent), label)


def ratios(run):
    """Every finished case of the suite's own against every finished baseline that does the same work. What a certificate refutes
    is no side of a ratio: it did other work."""
    bases = {}
    finished = [c for c in run.finished if not c.is_different]
    for case in finished:
        if case.baseline and case.plan:
            bases.setdefault(work_of(case), []).append(case)
    return [ratio_of(case, base, f"against {base.strategy}") for case in finished if not case.baseline and case.plan
            for base in bases.get(work_of(case), ())]


APART = ("apart: the two were timed in no round of one call; this is the ratio of their medians, and what changed on the machine "
         "between them is in it.")
REFERENCE = "as what it is compared with"     # the line at ratio 1


def _looks(run):
    """{what is compared: (colour, marker)}: the look of the baseline's row."""
    return {f"against {name}": look for name, look in views.looks_of([r.base for r in ratios(run)], run).items()}


def _cells(found, run):
    """(panels, rows): as in the other bar charts, one row a strategy and rank count."""
    cases = list({r.case.id: r.case for r in found}.values())
    groups = views.workloads(cases)
    return groups, views.bar_rows(groups, run)


def _ticks(values):
    """Powers of two around `values`, 1 among them: few, for panels have little room."""
    low = min(-1, math.floor(math.log2(min(values))))
    high = max(1, math.ceil(math.log2(max(values))))
    step = -(-(high - low) // 4)
    return [2.0**e for e in range(low // step * step, -(-high // step) * step + 1, step)]


def _tick_text(tick):
    """1/64 rather than 0.015625, which would run into the tick beside it."""
    return f"1/{1 / tick:g}" if tick < 0.25 else f"{tick:g}"


def _offsets(looks):
    """{what is compared: distance from the middle of its row}: marks at one ratio lie beside each other."""
    step = min(0.34, 0.68 / len(looks))
    return {name: (i - (len(looks) - 1) / 2) * step for i, name in enumerate(looks)}


def draw_static(found, run, measure, looks):
    """`found` with a known value each; rows as in `run`. None where there is nothing to draw."""
    if not found:
        return None
    value_of, interval_of, offsets = measure.value_of, measure.interval_of, _offsets(looks)
    groups, rows = _cells(found, run)
    figure, axes = figures.bar_panels(groups, rows)
    ticks, is_cut = _ticks([value_of(r) for r in found]), False
    ends = ticks[0] / 1.2, ticks[-1] * 1.2
    for panel, (_, members) in zip(axes, groups):
        ids, marks = {c.id for c in members}, []
        panel.axvline(1, color=style.MUTED, linewidth=0.9)
        for y, (_, cells) in enumerate(rows):
            for r in found:
                if r.case.id not in ids or r.case.id not in {c.id for c in cells.values()}:
                    continue
                (color, marker), y_of_mark = looks[r.label], y + offsets[r.label]
                if interval_of(r):
                    panel.plot(interval_of(r), [y_of_mark] * 2, color=color, linewidth=1.1)
                panel.plot(value_of(r), y_of_mark, color=color, marker=marker[0], linestyle="none",
                           markerfacecolor=color if r.is_certified else "white")
                if measure.is_timed:
                    figures.dot(panel, value_of(r), y_of_mark, r, color)
                marks.append((y_of_mark, interval_of(r), color))
        cut = reach.cuts(marks, ends, "x")
        reach.draw_static(panel, cut, "x")
        is_cut = is_cut or bool(cut)
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks, list(map(_tick_text, ticks)))
        panel.set_xlim(*ends)
        panel.minorticks_off()
    figure.supxlabel(f"{measure.what}, {measure.over} (log)", fontsize=8.5)
    short = figures.legend_names(looks)
    handles = [Line2D([], [], color=color, marker=marker[0], linestyle="none", label=short[name])
               for name, (color, marker) in looks.items()]
    if not all(r.is_certified for r in found):
        handles.append(Line2D([], [], color=style.MUTED, marker="o", markerfacecolor="white", linestyle="none",
                              label="hollow: a side is not certified"))
    if measure.is_timed and any(r.is_estimated for r in found):
        handles.append(Line2D([], [], color=style.MUTED, marker=figures.DOTTED, linestyle="none", markersize=8, markeredgewidth=0.6,
                              label=views.ESTIMATED))
    figures.legend(figure, handles + ([reach.handle()] if is_cut else []))
    return figure


def draw_interactive(found, run, measure, looks):
    """The same with hover cards."""
    if not found:
        return None
    value_of, interval_of, offsets = measure.value_of, measure.interval_of, _offsets(looks)
    groups, rows = _cells(found, run)
    figure, columns = panels.bars_grid(groups, rows)
    legend, ticks = panels.Legend(), _ticks([value_of(r) for r in found])
    ends = ticks[0] / 1.2, ticks[-1] * 1.2
    for index, (_, members) in enumerate(groups):
        where = panels.place(index, columns)
        ids = {c.id for c in members}
        intervals, row_of = [], {cells[index].id: y for y, (_, cells) in enumerate(rows) if index in cells}
        # A trace, not a shape: shapes below the marks lie below the grid too, which has a line here.
        figure.add_trace(go.Scatter(x=[1, 1], y=[-0.6, len(rows) - 0.4], mode="lines", hoverinfo="skip", name=REFERENCE,
                                    line={"color": style.MUTED, "width": 1.2}, showlegend=False), **where)
        for name, (color, marker) in looks.items():
            mine = [r for r in found if r.label == name and r.case.id in ids]
            if not mine:
                continue
            intervals += [(row_of[r.case.id] + offsets[name], interval_of(r), color) for r in mine]
            figure.add_trace(go.Scatter(
                x=[value_of(r) for r in mine], y=[row_of[r.case.id] + offsets[name] for r in mine], mode="markers",
                **reach.error_bars([value_of(r) for r in mine], [interval_of(r) for r in mine], color, "x"),
                customdata=[[_card(r), r.case.id] for r in mine], hovertemplate="%{customdata[0]}<extra></extra>",
                marker={"symbol": views.symbols(mine, marker[1]) if measure.is_timed else marker[1], "size": 9, "opacity": 1,
                        "line": {"color": color, "width": 1.8},
                        "color": [color if r.is_certified else style.PAPER for r in mine]},
                **legend.under(name)), **where)
        if cut := reach.cuts(intervals, ends, "x"):
            figure.add_trace(reach.trace(cut, legend, "x"), **where)
    legend.show(figure, {name: (color, marker[1]) for name, (color, marker) in looks.items()})
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=list(map(_tick_text, ticks)), range=reach.log_range(ends))
    cases = [c for r in found for c in (r.case, r.base)]
    panels.finish(figure, cases, groups, columns, f"{measure.what}, {measure.over} (log)", None, measure.is_timed)
    return figure


def _card(r):
    shown = [f"<b>{shown_speed(r)}x the tokens/s, {style.text_number(r.memory, 3)}x the memory "
             f"{text(r.label)}</b>", cards.card(r.case), "<b>compared with</b>", cards.card(r.base)]
    return "<br>".join(shown)


BASELINES = "over the baseline's at the same work and ranks"
SPEED = Measure(lambda r: r.speed, lambda r: r.speed_interval, "tokens per second", BASELINES, True)
MEMORY = Measure(lambda r: r.memory, lambda r: None, "peak memory of the fullest rank", BASELINES)


def _of_run(draw, measure):
    return lambda run: draw([r for r in ratios(run) if measure.value_of(r)], run, measure, _looks(run))


FIGURES = {"speed_ratios": _of_run(draw_static, SPEED), "memory_ratios": _of_run(draw_static, MEMORY)}
PLOTS = {"speed_ratios": _of_run(draw_interactive, SPEED), "memory_ratios": _of_run(draw_interactive, MEMORY)}
SECTIONS = {
    "speed_ratios": ("Throughput against baselines", "Tokens per second of every case over those of a baseline that does the same "
                     "work on as many ranks. Right of 1 the case is faster; bars are 95 % intervals of the median of the ratios within a "
                     "round, of one round that of its two processes, of cases of different calls what the intervals of both leave open."),
    "memory_ratios": ("Memory against baselines", "Peak memory of the fullest rank over the baseline's. Left of 1 the case needs "
                      "less."),
}


def _cell(value):
    return f'<td class="n">{"-" if value is None else style.text_number(value, 3)}</td>'


def shown_speed(r):
    return style.estimated("-" if r.speed is None else style.text_number(r.speed, 3), r.is_estimated)


def _interval(r):
    if r.speed_interval is None:
        has_two = r.rounds == 2 or (not r.rounds and (r.case.has_two_rounds or r.base.has_two_rounds))
        said = "estimated" if r.is_estimated else "two rounds: no interval" if has_two else "too few steps for an interval"
        apart = "" if r.rounds or r.is_estimated else ", apart"
        return f"<br><small>{said}{apart}</small>"
    low, high = r.speed_interval
    rounds = "" if r.rounds == 1 else f", {r.rounds} rounds" if r.rounds else ", apart"
    return f"<br><small>{low:.3g} to {high:.3g}{rounds}</small>"


def _table(found):
    """Nothing where there is no ratio."""
    rows = "".join(
        f"<tr><td>{text(r.case.name)}</td><td>{text(r.base.strategy)}</td>"
        f'<td class="n">{shown_speed(r)}{_interval(r)}</td>'
        f"{_cell(r.memory)}{_cell(r.sent)}</tr>" for r in found)
    heads = "".join(f"<th>{h}</th>" for h in ("case", "baseline", "tokens/s", "peak memory", "bytes sent"))
    return f'<div class="scroll"><table class="ratios"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>' if rows else ""


def section(run):
    """The table of ratios, and which baselines did not finish; nothing where the suite compares with none."""
    compared = [c for c in run.cases if c.baseline]
    if not compared:
        return ""
    shown = _table(ratios(run)) or '<p class="note">There is no ratio: no baseline and case of the same work have both finished.</p>'
    apart = f" {APART}" if any(r.is_apart for r in ratios(run)) else ""
    refuted = [c for c in run.finished if c.is_different]
    left_out = (f'<p class="caption">Left out, because their certificates say different: '
                f'{text(", ".join(c.name for c in refuted))}.</p>' if refuted else "")
    ends = {}
    for case in compared:
        if case.status != "ok":
            ends.setdefault((case.status.replace("_", " "), case.reason), []).append(case)
    bad = "".join(f"<li>{text(reasons.names(members))}: {text(status)}{': ' + text(why) if why else ''}</li>"
                  for (status, why), members in ends.items())
    refused = f"<p class=\"caption\">Baselines without a result:</p><ul class=\"refused\">{bad}</ul>" if bad else ""
    return ('<section id="ratios"><h2>Ratios to baselines</h2><p class="caption">Case / baseline at the same work, ranks and '
            "world: throughput with its 95 % interval (over rounds where there are several), peak memory of the fullest rank, bytes sent "
            f"by the busiest rank.{apart}</p>{shown}{left_out}{refused}</section>")
