# SPDX-License-Identifier: Apache-2.0
"""What the last step did to the layers of a case (`train.telemetry`), in sentences."""

from values import as_dict, number

SERIES = (("update_ratio", "update over weight"), ("trust_ratio", "trust ratio"))


def _ends(names, row):
    """ "0.001 (head) to 0.01 (blocks.0.mlp.up.weight)" of the layers that have a number; None where none has."""
    known = [(value, name) for name, value in zip(names, map(number, row)) if value is not None]
    if not known:
        return None
    low, high = min(known), max(known)
    return f"{low[0]:.3g} ({low[1]}) to {high[0]:.3g} ({high[1]})"


def sentence(case):
    """ "36 layers, step 3: update over weight ... to ...; trust ratio ... to ..." of the last step that updated something; an
    empty text where nothing is recorded."""
    told = as_dict(case.document.get("telemetry"))
    names, steps = told.get("layers") or [], told.get("steps") or []
    for at in reversed(range(len(steps))):
        parts = [f"{words} {ends}" for key, words in SERIES
                 if len(rows := told.get(key) or []) > at and (ends := _ends(names, rows[at]))]
        if parts:
            return f"{len(names)} layers, step {steps[at] + 1}: {'; '.join(parts)}"
    return ""
