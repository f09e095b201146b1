# SPDX-License-Identifier: Apache-2.0
"""What a case is called by how it spreads its work."""

from values import lookup, number

TENSOR_NAMES = {"1d": "1D tensor", "1d-sp": "1D-sp", "2d": "2D tensor", "2.5d": "2.5D tensor",
                "3d": "3D tensor"}


def _size(plan, key):
    """Ranks of a group, written as a number or as a table with `size`."""
    return number(lookup(plan, f"{key}.size")) or number(lookup(plan, key)) or 1


def strategy_of(name, settings, plan):
    """Name of the strategy: as the suite calls it, else said from the resolved plan."""
    if isinstance(settings.get("strategy"), str):
        return settings["strategy"]
    # Rows of the suite's axes by their names, which may have commas; a policy is no way to spread work.
    rows = [v for key, v in settings.items()
            if isinstance(v, str) and key != "policy" and "." not in key and f", {v}, " in f", {name}, "]
    if rows:
        return ", ".join(rows)
    head = name.split(",")[0].strip()
    if "," in name and head and "=" not in head:
        return head
    parts = []
    data = _size(plan, "parallel.data")
    if data > 1:
        parts.append("data")
    if _size(plan, "parallel.pipeline") > 1:
        parts.append("pipeline")
    mode = lookup(plan, "parallel.tensor.mode")
    if mode not in (None, "none") and (number(lookup(plan, "parallel.tensor.size")) or 1) > 1:
        parts.append(TENSOR_NAMES.get(mode, f"{mode} tensor"))
    if (number(lookup(plan, "parallel.sequence.size")) or 1) > 1:
        parts.append(f"{lookup(plan, 'parallel.sequence.mode')} sequence")
    if not parts:
        return "one rank" if plan else "unnamed"
    if parts == ["data"]:
        return "data parallel"
    return " x ".join(parts)
