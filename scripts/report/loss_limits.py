# SPDX-License-Identifier: Apache-2.0
"""Where the axis of losses ends: at those of the sound curves, which one that diverged would press into a line."""

import math

import reach

ROOM = 0.05              # of what the losses span, at each end of the axis
LEAVES = "arrow: the curve leaves the panel"


def _losses(case):
    values = [*case.loss, *(v for _, v in case.validation or ())]
    return [v for v in values if v is not None and math.isfinite(v)]


def limits(cases):
    """(low, high) where a diverged curve goes beyond the others; None where the axis may follow all of them."""
    diverged = [v for c in cases if c.status == "diverged" for v in _losses(c)]
    sound = [v for c in cases if c.status != "diverged" for v in _losses(c)]
    if not diverged or not sound:
        return None
    low, high = min(sound), max(sound)
    room = ROOM * ((high - low) or abs(high) or 1)
    ends = (min(low, *diverged) - room, high + room)
    return ends if max(diverged) > ends[1] else None


def cuts(cases, looks, ends):
    """As reach.cuts(): where curves of `cases` cross the upper end of the axis for the first time."""
    found = []
    for case in cases if ends else ():
        step = next((i for i, v in enumerate(case.loss, 1) if v is not None and v > ends[1]), None)
        if step is not None:
            found.append((step, ends[1], "up", looks[case.strategy][0]))
    return found


def draw_static(panel, cases, looks, ends):
    """Ends the axis of a panel (matplotlib) with marks at the curves that leave it, where there are any."""
    reach.draw_static(panel, cuts(cases, looks, ends))
    if ends:
        panel.set_ylim(ends)


def handles(cases):
    """Of the legend."""
    return [reach.handle(LEAVES)] if limits(cases) else []
