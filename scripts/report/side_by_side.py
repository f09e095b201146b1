# SPDX-License-Identifier: Apache-2.0
"""Several folders beside each other: cases that meet by id, a column a folder, ratios to the first folder."""

import dataclasses
from pathlib import Path

import cards
import layer_maps
import noise
import ratios as baselines
import reasons
import record
import style
import table
import tiers
from table import text
from values import flat


def labels_of(folders):
    """What folders are called: the shortest ends of their paths that differ."""
    paths = [Path(f).resolve().parts for f in folders]
    for depth in range(1, max(map(len, paths)) + 1):
        labels = ["/".join(p[-depth:]) for p in paths]
        if len(set(labels)) == len(labels):
            return labels
    raise record.RecordError(f"'{folders[0]}' is given twice: give folders of different runs")


def met(runs):
    """Ids that every run holds, in the order of the first."""
    others = [{c.id for c in run.cases} for run in runs[1:]]
    return [c.id for c in runs[0].cases if all(c.id in ids for ids in others)]


def require_common(runs, labels):
    """Every later folder shares a case with the first."""
    for run, label in zip(runs[1:], labels[1:]):
        if not met([runs[0], run]):
            raise record.RecordError(
                f"'{labels[0]}' ({len(runs[0].cases)} cases) and '{label}' ({len(run.cases)} cases) have no case in common: cases "
                "meet by id, the hash of plan, data, ranks and world; give folders of the same suite")


def over(label, labels):
    return f"{label} over {labels[0]}"


def ratios(runs, labels):
    """Every case of a later run over the same case of the first; what a certificate refutes is no side of a ratio."""
    first = {c.id: c for c in runs[0].finished if not c.is_different}
    return [baselines.ratio_of(case, first[case.id], over(label, labels), False) for run, label in zip(runs[1:], labels[1:])
            for case in run.finished if case.id in first and not case.is_different]


def _looks(labels):
    return style.palette([over(label, labels) for label in labels[1:]], {})


MEASURES = {"tokens_per_second_ratios": baselines.SPEED, "peak_memory_ratios": baselines.MEMORY}
SENT = baselines.Measure(lambda r: r.sent, lambda r: None, "bytes sent", "")


def _drawing(draw, name, runs, labels):
    measure = dataclasses.replace(MEASURES[name], over=f"over {labels[0]}")
    found = [r for r in ratios(runs, labels) if measure.value_of(r)]
    return draw(found, runs[0], measure, _looks(labels))


def together(runs, labels):
    """The cases of all folders as one run, those that meet beside each other, each called by its folder."""
    cases = [dataclasses.replace(case, name=f"{label}: {case.name}", strategy=f"{case.strategy} ({label})")
             for _, row in rows(runs) for label, case in zip(labels, row) if case]
    return dataclasses.replace(runs[0], cases=cases)


def figures(runs, labels):
    """{name: function of a run} as figures.write takes it."""
    every = together(runs, labels)
    watched = noise.FIGURES | tiers.FIGURES | layer_maps.drawings(every)
    return ({name: lambda _, name=name: _drawing(baselines.draw_static, name, runs, labels) for name in MEASURES}
            | {name: lambda _, draw=draw: draw(every) for name, draw in watched.items()})


def plots(runs, labels):
    every = together(runs, labels)
    drawn = {name: _drawing(baselines.draw_interactive, name, runs, labels) for name in MEASURES}
    drawn |= {name: draw(every) for name, draw in (noise.PLOTS | tiers.PLOTS | layer_maps.plots(every)).items()}
    return {name: plot for name, plot in drawn.items() if plot}


def sections(runs, labels):
    """{name: (title, caption)}"""
    return SECTIONS | noise.SECTIONS | tiers.SECTIONS | layer_maps.sections(together(runs, labels))


SECTIONS = {
    "tokens_per_second_ratios": ("Throughput side by side", "Tokens per second of a case over those of the same case in the first "
                                 "folder. Right of 1 the later folder is faster; bars are what the 95 % intervals of both allow."),
    "peak_memory_ratios": ("Memory side by side", "Peak memory of the fullest rank over that of the same case in the first folder. "
                           "Left of 1 the later folder needs less."),
}


def rows(runs):
    """[(case that names the row, [case or None of each run])]: the first run's cases, then what only later ones have."""
    by_id = [{c.id: c for c in run.cases} for run in runs]
    every = dict.fromkeys(c.id for run in runs for c in run.cases)
    cells = [[cases.get(case_id) for cases in by_id] for case_id in every]
    return [(next(c for c in row if c), row) for row in cells]


def _value_cell(case, value_of, shown, measure):
    value = value_of(case) if case else None
    return table.cell_of("" if value is None else style.estimated(shown(value), measure.is_timed and case.is_estimated), value, "n")


def _ratio_cell(first, case, measure):
    refuted = any(c is None or c.is_different for c in (first, case))
    ratio = None if refuted else baselines.ratio_of(case, first, is_of_one_sweep=False)
    value = measure.value_of(ratio) if ratio else None
    if value is None:
        return table.cell_of("", None, "n")
    interval = measure.interval_of(ratio)
    small = f"<br><small>{interval[0]:.3g} to {interval[1]:.3g}</small>" if interval else ""
    shown = style.estimated(style.text_number(value, 3), measure.is_timed and ratio.is_estimated)
    return table.cell_of(shown + small, value, "n")


def _computed_cell(column, case):
    """Of a column that the suite computes."""
    value = column.values.get(case.id) if case else None
    return table.cell_of("" if value is None else text(column.shown(case)), value, "n")


def columns_of(runs, labels):
    """[(heading, css class, cell of a row)]"""
    shared = reasons.Reasons([c for run in runs for c in run.cases])
    columns = [("case", "", lambda head, _: table.cell_of(text(head.name), head.name, "name")),
               ("ranks", "n", lambda head, _: table.cell_of(head.ranks or "", head.ranks, "n"))]
    metrics = [("tokens/s", lambda c: c.tokens_per_s, style.text_number, baselines.SPEED),
               ("peak", lambda c: c.peak, style.text_bytes, baselines.MEMORY),
               ("sent", lambda c: c.sent, style.text_bytes, SENT)]
    for name, value, shown, measure in metrics:
        for i, label in enumerate(labels):
            columns.append((f"{name}, {label}", "n", lambda _, row, i=i, value=value, shown=shown, measure=measure:
                            _value_cell(row[i], value, shown, measure)))
            if i:
                columns.append(("ratio", "n", lambda _, row, i=i, measure=measure:
                                _ratio_cell(row[0], row[i], measure)))
    for name in dict.fromkeys(column.name for run in runs for column in run.columns):
        for i, (run, label) in enumerate(zip(runs, labels)):
            columns += [(f"{column.heading}, {label}", "n", lambda _, row, i=i, column=column: _computed_cell(column, row[i]))
                        for column in run.columns if column.name == name]
    for i, label in enumerate(labels):
        columns.append((f"verdict, {label}", "", lambda _, row, i=i: _verdict_cell(row[i], shared)))
    return columns


def _verdict_cell(case, shared):
    """How the case ended and, where it ended well, what its certificate says."""
    if case is None:
        return table.cell_of('<small>not in this folder</small>', "~", "tight")
    if case.status == "ok":
        return table.certificate_cell(case, shared)
    small = f"<br><small>{shared.cell(case, 0)}</small>" if case.reason else ""
    return table.cell_of(table.status_mark(case) + small, case.status, "reasoned")


def body(runs, labels, columns):
    """Rows of the table; what a row opens is the case of each folder."""
    shared = reasons.Reasons([c for run in runs for c in run.cases])
    parts = []
    for head, row in rows(runs):
        cells = "".join(cell(head, row) for _, _, cell in columns)
        details = "".join(f"<h3>{text(label)}</h3>{table.detail(case, shared)}" for label, case in zip(labels, row) if case)
        words = " ".join([head.name, head.id, head.strategy] + [f"{c.status} {c.reason} {cards.certificate_text(c)}"
                                                               for c in row if c])
        parts.append(table.row_of(head, words, cells, len(columns), details))
    return "".join(parts)


def provenance(runs, labels):
    """[(fact, value)] of each folder."""
    return [(f"{label}: {key}", value) for run, label in zip(runs, labels)
            for key, value in [("suite", run.name), ("suite hash", run.suite_hash or "-")] + flat(run.provenance)]


def notes(runs, labels):
    """What is odd in a folder, and how many cases meet."""
    said = [f"{label}: {note}" for run, label in zip(runs, labels) for note in run.notes]
    for run, label in zip(runs[1:], labels[1:]):
        common = len(met([runs[0], run]))
        alone = len(runs[0].cases) - common, len(run.cases) - common
        if any(alone):
            said.append(f"{common} cases are in both {labels[0]} and {label}; {alone[0]} only in {labels[0]}, {alone[1]} only in {label}.")
    return said
