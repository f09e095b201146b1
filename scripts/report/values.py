# SPDX-License-Identifier: Apache-2.0
"""Values out of JSON that others wrote: what is absent or of another type is None or empty."""

import math


def flat(nested, prefix=""):
    """[(dotted key, value)] of nested objects; lists are joined."""
    rows = []
    for key, value in nested.items():
        if isinstance(value, dict):
            rows += flat(value, f"{prefix}{key}.")
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            rows.append((prefix + key, "none" if shown is None else shown))
    return rows


def number(value):
    """A finite float, or None for anything else (JSON has null where a value was not finite)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def numbers(value):
    """A list of floats, None where an entry is no finite number."""
    return [number(v) for v in value] if isinstance(value, list) else []


def as_dict(value):
    return value if isinstance(value, dict) else {}


def lookup(nested, dotted):
    for part in dotted.split("."):
        if not isinstance(nested, dict) or part not in nested:
            return None
        nested = nested[part]
    return nested
