# SPDX-License-Identifier: Apache-2.0
"""Who else used the machine while cases were timed, and how many threads shared its cores: `load` of docs/record.md."""

import reasons
from values import lookup, number

FOREIGN_SHARE = 0.10    # kForeignShare of src/kuafu/record/load.h, which says why; a test holds both together


def foreign_share(case):
    """Of the cores' time while the steps of its worst round ran; None where nothing tells."""
    known = [number(lookup(case.document, "load.foreign_share"))] + [r.foreign_share for r in case.rounds]
    return max((share for share in known if share is not None), default=None)


def is_loaded(case):
    share = foreign_share(case)
    return share is not None and share > FOREIGN_SHARE


def _counted(n, what):
    return f"{n:g} {what}" + ("" if n == 1 else "s")


def words(run):
    """["up to 4 threads on 2 cores", "load average up to 1.3 before a case"]; empty for records without the field."""
    loads = [case.document["load"] for case in run.cases if isinstance(case.document.get("load"), dict)]
    threads = max(((number(l.get("threads")) or 0, number(l.get("cores")) or 0) for l in loads), default=(0, 0))
    averages = [a for l in loads if (a := number(l.get("average"))) is not None]
    said = [f"up to {_counted(threads[0], 'thread')} on {_counted(threads[1], 'core')}"] if threads[0] else []
    return said + ([f"load average up to {max(averages):.1f} before a case"] if averages else [])


def sentence(run, most=3):
    """Which cases were timed under foreign load; empty where none was."""
    loaded = [case for case in run.cases if is_loaded(case)]
    if not loaded:
        return ""
    timed = sum(foreign_share(case) is not None for case in run.cases)
    return (f"{len(loaded)} of {timed} cases whose load was measured were timed under foreign load: others had more than "
            f"{FOREIGN_SHARE:.0%} of the cores while the steps ran, so that their times (marked *) are those of a shared machine: "
            f"{reasons.names(loaded, most)}.")
