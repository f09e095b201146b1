# SPDX-License-Identifier: Apache-2.0
"""Reasons that several cases share: said once, with the cases they are for; a row then has the number."""

import html
import re

SHOWN_NAMES = 6          # of the cases of a shared reason


# A suite writes the plan of each case: its path says nothing of the reason, and is another for each case.
WRITTEN_PLAN = re.compile(r"(?:^[^:\n]*|\S*)\bcases/[0-9a-f]+/plan\.toml(:\d+)*: ")


def plain(reason):
    """`reason` without the path of the case's own plan."""
    return WRITTEN_PLAN.sub("", str(reason))


def text(value):
    return html.escape(str(value))


def of_case(case):
    """[(what ended so, reason)]: of the case itself and of its certificate."""
    found = [(case.status.replace("_", " "), plain(case.reason))] if case.reason else []
    verdict = str(case.certificate.get("verdict") or "").replace("_", " ")
    if case.certificate.get("reason"):
        found.append((f"certificate {verdict}", plain(case.certificate["reason"])))
    return found


def grouped(cases):
    """{(what, reason): cases}, in the order of `cases`."""
    groups = {}
    for case in cases:
        for found in of_case(case):
            groups.setdefault(found, []).append(case)
    return groups


def names(cases, shown=SHOWN_NAMES):
    """ "a; b; and 3 more" """
    every = list(dict.fromkeys(c.name for c in cases))         # a case of several folders once
    more = [f"and {len(every) - shown} more"] if len(every) > shown else []
    return "; ".join(every[:shown] + more)


def blind(run):
    """What certificates that say `equal` could not see, with their cases; an empty text where they saw all."""
    by_what = {}
    for case in run.cases:
        if case.is_certified and case.unseen:
            by_what.setdefault(case.unseen, []).append(case)
    said = "; ".join(f"{what} ({names(cases)})" for what, cases in by_what.items())
    return f"certificates `equal` that are blind to something: {said}." if said else ""


class Reasons:
    """The shared ones among `cases`, numbered from 1. A case of several folders is one: its reason stands in its row."""

    def __init__(self, cases):
        distinct = {found: list({c.name: c for c in members}.values()) for found, members in grouped(cases).items()}
        shared = {found: members for found, members in distinct.items() if len(members) > 1}
        self.shared = shared
        self.numbers = {found: i for i, found in enumerate(shared, 1)}

    def cell(self, case, index):
        """Markup of the reason number `index` of of_case(): its text, or a link to where it stands."""
        found = of_case(case)[index]
        number = self.numbers.get(found)
        return text(found[1]) if number is None else f'<a href="#reason-{number}">reason {number}</a>'

    def list(self):
        """Every shared reason once; an empty text where there is none."""
        if not self.shared:
            return ""
        items = "".join(
            f'<li id="reason-{self.numbers[found]}"><b>{text(found[0])}, {len(members)} cases:</b> {text(found[1])}'
            f"<br><small>{text(names(members))}</small></li>" for found, members in self.shared.items())
        return f'<p class="caption">Reasons that several cases share:</p><ol class="reasons">{items}</ol>'
