# SPDX-License-Identifier: Apache-2.0
"""What the front computes of the suite behind a folder: the order of its cases, its references held against the record, and what
its columns, claims and figures are worth. It comes as JSON, an object a folder:
{"order": [case id, ...], "references": [{"what", "checked", "broken": [sentence, ...]}, ...], "derived": {columns, claims, figures}}.
Order and references are absent where neither the record (an older one) nor a suite's file says them, `derived` where the suite asks
for nothing, and all is null where both are."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import derived


UNKNOWN = ("References, claims and the order of the suite are not known: the record is older than those or merged from several suites; where it is of one, "
           "give --suite SUITE.toml.")


@dataclass(frozen=True)
class Reference:
    """One expectation of the suite."""
    what: str               # "loss.last below loss.first (source)"
    checked: int            # finished cases it is about
    broken: list            # one sentence a case

    @property
    def verdict(self):
        return "broken" if self.broken else "holds" if self.checked else "no case"


def read(path, count):
    """[facts or None] of `count` folders; all None without a path."""
    return [facts or {} for facts in json.loads(Path(path).read_text(encoding="utf-8"))] if path else [None] * count


def references_of(facts):
    return [Reference(r["what"], r["checked"], r["broken"]) for r in facts.get("references", [])] if facts else []


def ordered(run, facts):
    """The run with its cases in the suite's order; cases that the suite has not come last."""
    if facts is None:
        return run
    run.notes.extend(facts.get("notes", []))
    if "references" not in facts and facts.keys() != {"notes"}:
        run.notes.append(UNKNOWN)
    places = {case_id: i for i, case_id in enumerate(facts.get("order", []))}
    columns, claims, figures = derived.of(facts)
    return dataclasses.replace(run, references=references_of(facts), columns=columns, claims=claims, figures=figures,
                               cases=sorted(run.cases, key=lambda c: places.get(c.id, len(places))))
