# SPDX-License-Identifier: Apache-2.0
"""Where the axis of losses ends: at those of the sound curves, which one that diverged or rose far would press into a line."""

import math

import reach

ROOM = 0.05              # of what the losses span, at each end of the axis
PRESSED = 3              # of what the other losses span: where a curve that has risen presses them together
LEAVES = "arrow: the curve leaves the panel"


def _losses(case):
    values = [*case.loss, *(v for _, v in case.validation or ())]
    return [v for v in values if v is not None and math.isfinite(v)]


def _has_risen(case):
    values = [v for v in case.loss if v is not None and math.isfinite(v)]
    return bool(values) and values[-1] > values[0]


def _wild(cases):
    """Those that diverged, and those that ended above their first loss so far up that the others would be a line."""
    diverged = [c for c in cases if c.status == "diverged"]
    rest = [v for c in cases if c.status != "diverged" and not _has_risen(c) for v in _losses(c)]
    if not rest:
        return diverged
    top = min(rest) + PRESSED * (max(rest) - min(rest))
    return diverged + [c for c in cases if c.status != "diverged" and _has_risen(c) and max(_losses(c)) > top]


def limits(cases):
    """(low, high) where a wild curve goes beyond the others; None where the axis may follow all of them."""
    wild = _wild(cases)
    beyond = [v for c in wild for v in _losses(c)]
    sound = [v for c in cases if c not in wild for v in _losses(c)]
    if not beyond or not sound:
        return None
    low, high = min(sound), max(sound)
    room = ROOM * ((high - low) or abs(high) or 1)
    ends = (min(low, *beyond) - room, high + room)
    return ends if max(beyond) > ends[1] else None


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
