# SPDX-License-Identifier: Apache-2.0
"""The report as plain text, 80 to 120 columns: for a terminal and for logs."""

import shutil
import statistics
import textwrap

import cards
import derived
import layers
import load
import ratios
import reasons
import side_by_side
import style
import timings
import views

FASTEST = 3              # proven cases shown of each group
NAMES = 3                # cases shown of a reason
LAYERED = 3              # cases whose layers are told, unless more are asked for
CHANGES = 3              # cases shown at each end of the ratios of a folder, or to a baseline
RED, PLAIN = "\033[1;31m", "\033[0m"


def width():
    """Columns of the terminal, at least 80 and at most 120; 100 where there is none."""
    return min(max(shutil.get_terminal_size((100, 24)).columns, 80), 120)


def wrapped(text, columns, indent="", hanging=None):
    return textwrap.fill(text, columns, initial_indent=indent, subsequent_indent=indent + "  " if hanging is None else hanging,
                         break_on_hyphens=False)


def clipped(text, columns):
    return text if len(text) <= columns else text[:columns - 3] + "..."


def counts(run):
    """ "36 ok, 1 refused; certificates: 33 equal, 1 different, 0 not run; 2 estimated" """
    ended = ", ".join(f"{run.by_status[s]} {s}"
                      for s in [*style.STATUSES, *sorted(set(run.by_status) - set(style.STATUSES))] if s in run.by_status)
    equal = sum(c.is_certified for c in run.finished)
    different = sum(c.is_different for c in run.cases)       # of any status: what has diverged is held to the reference too
    estimated = sum(c.is_estimated for c in run.finished)
    return (f"{ended}; certificates: {equal} equal, {different} different, {sum(c.is_unproven for c in run.finished)} not run"
            + (f"; {estimated} estimated" if estimated else ""))


def _head(run, columns):
    lines = [wrapped(f"{run.name}: {run.question}" if run.question else run.name, columns)]
    total = f"{len(run.cases)} of {run.planned}" if run.planned > len(run.cases) else str(len(run.cases))
    lines.append(wrapped(f"{total} case{'' if total == 1 else 's'} ended: {counts(run)}", columns))
    return lines + [wrapped(f"note: {note}", columns) for note in [*run.notes, *timings.round_sentences(run), *timings.interval_sentences(run),
                                                             load.sentence(run), reasons.blind(run)] if note]


def _row(case, work, columns):
    rate, step = (style.estimated(shown, case.is_estimated) for shown in
                  (style.text_number(case.tokens_per_s), style.text_seconds(case.step.median if case.step else None)))
    cells = (f"{rate:>11} tokens/s  {step:>8}"
             f"  {style.text_bytes(case.peak):>9} {'*' if load.is_loaded(case) else ' '}")
    return "    " + cells + clipped(case.name.removesuffix(f", {work}"), columns - len(cells) - 4)


def _fastest(among, title, columns):
    """The fastest cases of each kind of work."""
    lines = []
    for label, members in views.workloads(among) if among else ():
        ranked = sorted(members, key=lambda c: -c.tokens_per_s)[:FASTEST]
        lines.append(clipped(f"  {label or 'all'}: {len(ranked)} of {len(members)}", columns))
        lines += [_row(case, label, columns) for case in ranked]
    return ["", wrapped(f"{title}, by work: throughput, step, peak memory", columns)] + lines if lines else []


def _beside(run, columns):
    """The ratios to baselines that `kuafu suite` prints; of many those at both ends."""
    found, lines = [r for r in ratios.ratios(run) if r.speed], []
    for label in dict.fromkeys(r.label for r in found):
        mine = [r for r in found if r.label == label]
        ranked = sorted(mine, key=lambda r: r.speed)
        shown = mine if len(mine) <= 4 * CHANGES else ranked[:CHANGES] + ranked[-CHANGES:]
        count = f"{len(mine)} case{'' if len(mine) == 1 else 's'}" if shown is mine else f"{len(shown)} of {len(mine)} cases, least and greatest"
        lines.append(clipped(f"  {label}, {count}", columns))
        for r in shown:
            ends = "-" if r.speed_interval is None else ", ".join(map(style.console_number, r.speed_interval))
            ratio = style.estimated(style.console_number(r.speed), r.is_estimated) + ("" if r.is_estimated else f" [{ends}]")
            rounds = "apart" if r.is_apart else "estimate" if r.is_estimated else f"{r.rounds} round{'' if r.rounds == 1 else 's'}"
            cells = f"    {ratio:>20}  {rounds:<8}  "
            lines.append(cells + clipped(r.case.name, columns - len(cells)))
    lines += [wrapped(ratios.APART, columns, "  ")] if any(r.is_apart for r in found) else []
    return ["", wrapped("Beside baselines: tokens/s over the baseline's, paired within each round [95 %]", columns)] + lines if lines else []


def _different(run, columns):
    refuted = [c for c in run.cases if c.is_different]
    lines = [wrapped(f"{c.name}: {cards.certificate_text(c)}", columns, "  ", "    ") for c in refuted]
    return ["", f"DIFFERENT, refuted by the certificate ({len(refuted)}):"] + lines if refuted else []


def _reasons(run, columns):
    """Why cases have no result or no certificate, a reason once."""
    lines = []
    for (what, reason), cases in reasons.grouped(c for c in run.cases if not c.is_different).items():
        count = f"{len(cases)} cases" if len(cases) > 1 else "1 case"
        lines.append(wrapped(f"{what}, {count}: {reason}", columns, "  ", "    "))
        lines.append(wrapped(reasons.names(cases, NAMES), columns, "    ", "    "))
    return ["", "Why:"] + lines if lines else []


def _layers(run, columns, most):
    """What the last step of `most` cases with norms of layers did."""
    told = [(c, sentence) for c in run.finished if (sentence := layers.sentence(c))]
    lines = [wrapped(f"{c.name}: {sentence}", columns, "  ", "    ") for c, sentence in told[:most]]
    if len(told) > most:
        left = len(told) - most
        lines.append(f"  {left} more {'case is' if left == 1 else 'cases are'} left out; --layers {len(told)} tells all")
    return ["", "Layers in the last step:"] + lines if lines else []


def _references(run, columns):
    lines = []
    for r in run.references:
        held = r.checked - len(r.broken)
        lines.append(wrapped(f"{r.verdict:<7}  {r.what}: {held} of {r.checked} cases", columns, "  ", " " * 11))
        lines += [wrapped(sentence, columns, " " * 11, " " * 13) for sentence in r.broken]
    return ["", "References of the suite:"] + lines if lines else []


def _claims(run, columns):
    lines = []
    for c in run.claims:
        verdict = style.estimated("FAILS" if c.verdict == "fails" else c.verdict, c.is_estimated)
        lines.append(wrapped(f"{verdict:<11} {c.name}: {c.counts}: {c.what} ({c.source})", columns, "  ", " " * 14))
        lines += [wrapped(sentence, columns, " " * 14, " " * 16) for sentence in derived.few(c)]
    return ["", "Claims:"] + lines if lines else []


def summary(run, columns, layered):
    """Lines about one folder."""
    timed = views.timed(run)
    return (_head(run, columns) + _fastest([c for c in timed if c.is_certified and not c.is_scaled], "Fastest with a certificate `equal`", columns)
            + _fastest([c for c in timed if c.is_certified and c.is_scaled], "Fastest of those whose certificate is of a smaller model (scaled)", columns)
            + _fastest([c for c in timed if c.is_estimated], "Fastest of the simulated world, estimated by the cost model (~)", columns)
            + _beside(run, columns) + _different(run, columns) + _layers(run, columns, layered) + _reasons(run, columns) + _references(run, columns) + _claims(run, columns))


def _ratios(runs, labels, columns):
    """How the later folders stand against the first."""
    found = side_by_side.ratios(runs, labels)
    lines = ["", wrapped(f"{len(side_by_side.met(runs))} cases in every folder; tokens/s over those of {labels[0]}:", columns)]
    for label in labels[1:]:
        mine = sorted((r for r in found if r.label == side_by_side.over(label, labels) and r.speed), key=lambda r: r.speed)
        if not mine:
            lines.append(wrapped(f"{label}: no case that was timed on both sides and refuted on neither", columns, "  "))
            continue
        lines.append(wrapped(f"{label}: {len(mine)} cases, {mine[0].speed:.3g} to {mine[-1].speed:.3g}, median "
                             f"{statistics.median(r.speed for r in mine):.3g}", columns, "  "))
        ends = mine if len(mine) <= 2 * CHANGES else mine[:CHANGES] + mine[-CHANGES:]
        for r in ends:
            within = f"  ({r.speed_interval[0]:.3g} to {r.speed_interval[1]:.3g})" if r.speed_interval else ""
            cells = f"    {style.estimated(f'{r.speed:.3g}', r.is_estimated):>7}{within}".ljust(32)
            lines.append(cells + clipped(r.case.name, columns - len(cells)))
    return lines


def text(runs, labels, columns, is_red=False, layered=LAYERED):
    """The whole text; words of refutation in red where the terminal shows colours."""
    lines = []
    for run, label in zip(runs, labels):
        lines += ([""] if lines else []) + ([f"== {label}"] if len(runs) > 1 else []) + summary(run, columns, layered)
    if len(runs) > 1:
        lines += _ratios(runs, labels, columns)
    # What a case printed may hold codes that move the cursor.
    whole = "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in "\n".join(lines).split("\n")) + "\n"
    for word in ("DIFFERENT, refuted by the certificate", "  broken ", "  FAILS "):
        whole = whole.replace(word, f"{RED}{word}{PLAIN}") if is_red else whole
    return whole
