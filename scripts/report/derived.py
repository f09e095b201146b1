# SPDX-License-Identifier: Apache-2.0
"""What a suite computes from its cases, as `kuafu` hands it on: columns of the table, claims and their verdicts."""

import html
from dataclasses import dataclass, field

import style
import suite_points


@dataclass(frozen=True)
class Column:
    """A number, text or truth of each case; absent where it has none."""
    name: str
    formula: str
    unit: str
    values: dict            # by case id, as the next
    ci95: dict = field(default_factory=dict)    # [low, high] of what was measured
    estimated: list = field(default_factory=list)   # ids of cases where it stands over times of the cost model

    @property
    def heading(self):
        return self.name if self.unit in ("", "B", "s") else f"{self.name} [{self.unit}]"

    def shown(self, case):
        return style.estimated(suite_points.shown(self.values.get(case.id), self.unit), case.id in self.estimated)

    def interval(self, case):
        """ "1.9 to 2.1" """
        return " to ".join(str(suite_points.shown(end, self.unit)) for end in self.ci95.get(case.id, ()))

    def csv(self, case):
        """{column: value} of `--csv`."""
        ends = self.ci95.get(case.id) or (None, None)
        return {f"columns.{self.name}": self.values.get(case.id)} | (
            {f"columns.{self.name}.ci95.{i}": end for i, end in enumerate(ends)} if self.ci95 else {})


@dataclass(frozen=True)
class Claim:
    """What a source says, held against the cases."""
    name: str
    what: str               # the formula and the cases it is about
    source: str
    verdict: str            # "holds", "fails" or "unresolved"
    checked: int
    held: int
    failing: list           # one sentence a case
    open: list              # why it is not decided
    is_estimated: bool = False      # it stands over times of the cost model
    note: str = ""          # what its intervals are

    @property
    def shown_verdict(self):
        return style.estimated(self.verdict, self.is_estimated)

    @property
    def counts(self):
        """ "3 of 6", and where cases fail how many are not decided."""
        undecided = self.checked - self.held - len(self.failing)
        held = f"{self.held} of {self.checked}"
        if not self.failing or self.checked == 1:
            return held
        return f"{held} hold, {len(self.failing)} fail" + (f", {undecided} undecided" if undecided > 0 else "")

    @property
    def sentences(self):
        """Why it does not hold, and what its intervals are."""
        return (self.failing or self.open) + ([self.note] if self.note else [])


TONES = {"holds": style.GREEN, "fails": style.DIFFERENT, "unresolved": style.ORANGE}
SHOWN = 5                # sentences of a claim


def of(facts):
    """(columns, claims, figures) of what the front hands on."""
    found = (facts or {}).get("derived") or {}
    return ([Column(**c) for c in found.get("columns", [])], [Claim(**c) for c in found.get("claims", [])], found.get("figures", []))


def few(claim):
    """The first sentences of a claim, how many more there are, and what its intervals are."""
    said = claim.failing or claim.open
    more = len(said) - SHOWN
    return said[:SHOWN] + ([f"... and {more} more"] if more > 0 else []) + ([claim.note] if claim.note else [])


def cells(run, cell_of):
    """Columns of the page's table: [(heading, css class, cell of a case)]"""
    def cell(column, case):
        value = column.values.get(case.id)
        said = "" if value is None else html.escape(str(column.shown(case)))
        return cell_of(said + (f"<br><small>{html.escape(interval)}</small>" if (interval := column.interval(case)) else ""), value, "n")

    return [(column.heading, "n", lambda case, column=column: cell(column, case)) for column in run.columns]


def section(run, label=""):
    """The claims in the page, of the folder `label` among several; nothing where there is none."""
    if not run.claims:
        return ""
    of = f": {html.escape(label)}" if label else ""
    rows = "".join(
        f'<tr><td><span class="status" style="--tone:{TONES[c.verdict]}">{c.shown_verdict}</span></td><td>{html.escape(c.name)}'
        f"<br><small>{html.escape(c.what)}</small>" + "".join(f"<br><small>{html.escape(s)}</small>" for s in few(c))
        + f'</td><td>{html.escape(c.source)}</td><td class="n">{c.counts}</td></tr>' for c in run.claims)
    return (f'<section id="claims{html.escape(label)}"><h2>Claims{of}</h2><p class="caption">What sources say of such cases, held against these. Unresolved: '
            'a case that a claim needs has not ended ok or is refuted, or 95 % intervals overlap. ~: it stands over times that the cost '
            'model estimated.</p><div class="scroll">'
            '<table class="ratios"><thead><tr><th>verdict</th><th>claim</th><th>source</th><th>cases</th></tr></thead>'
            f"<tbody>{rows}</tbody></table></div></section>")


def csv_row(run, case):
    """{column: value} of `--csv`."""
    return {name: value for column in run.columns for name, value in column.csv(case).items()}
