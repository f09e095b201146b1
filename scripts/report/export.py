# SPDX-License-Identifier: Apache-2.0
"""A whole suite as one table: a row a case, columns by their path in the record (docs/record.md), in its units. As CSV or Parquet."""

import collections
import csv
import io
import json

import derived
import ratios
import record

# Lists under these are told as a whole; every other list of numbers by these four, as in metrics of suites.
TEXT_LISTS = ("settings", "plan", "provenance")
LIST_PARTS = {"first": lambda v: v[0], "last": lambda v: v[-1], "max": max, "sum": sum}


def _of_list(path, values, is_text):
    if is_text:
        return [(path, ";".join(v if isinstance(v, str) else json.dumps(v) for v in values))]
    if values and all(isinstance(v, dict) for v in values):                # {category: bytes} per rank
        keys = dict.fromkeys(k for v in values for k in v)
        return [row for k in keys for row in _of_list(f"{path}.{k}", [v.get(k) for v in values], False)]
    if any(isinstance(v, (list, dict, str, bool)) for v in values):        # tables of steps: in the record
        return []
    known = [v for v in values if v is not None]
    if path.endswith(".ci95"):
        return [(f"{path}.{i}", v) for i, v in enumerate(values)]
    if not known:
        return []
    return [(f"{path}.{part}", of(values if part in ("first", "last") else known)) for part, of in LIST_PARTS.items()]


def _flat(path, value, is_text):
    if isinstance(value, dict):
        return [row for k, v in value.items() for row in _flat(f"{path}.{k}", v, is_text or path in TEXT_LISTS)]
    return _of_list(path, value, is_text or path in TEXT_LISTS) if isinstance(value, list) else [(path, value)]


def _timing_of(case):
    """{column: value} over all rounds, in the place of those of the document, which is round 1's."""
    low, high = case.step_interval or (None, None)
    timed = {"step_time_s.median": case.step.median, "step_time_s.ci95.0": low, "step_time_s.ci95.1": high,
             "tokens_per_s": case.tokens_per_s} if case.step else {}
    return timed | {"rounds": len(case.rounds) or None}


def row_of(case):
    """{column: value} of one case."""
    row = {"case_id": case.id, "name": case.name, "status": "different" if case.is_refuted else case.status, "reason": case.reason or None, "wall_s": case.wall_s}
    for key, value in {"settings": case.settings, **case.document}.items():
        if key not in ("status", "reason"):
            row |= _flat(key, value, False)
    return row | _timing_of(case)


def _ratios_of(run):
    """{case id: {column: value}} of cases that the suite compares with baselines, each called by its strategy, where a case has two of
    one strategy by its name."""
    found, rows = ratios.ratios(run), {}
    several = collections.Counter((r.case.id, r.base.strategy) for r in found)
    for r in found:
        column = f"ratios.{r.base.strategy if several[r.case.id, r.base.strategy] == 1 else r.base.name}"
        low, high = r.speed_interval or (None, None)
        rows.setdefault(r.case.id, {}).update({column: r.speed, f"{column}.ci95.0": low, f"{column}.ci95.1": high, f"{column}.rounds": r.rounds})
    return rows


def rows_of(runs, labels):
    """(columns, rows) of all cases of all runs; more than one folder is told by the first column."""
    rows = []
    for run, label in zip(runs, labels):
        beside = _ratios_of(run)
        rows += [({"folder": label} if len(runs) > 1 else {}) | row_of(case) | beside.get(case.id, {}) | derived.csv_row(run, case)
                 for case in run.cases]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    areas = list(dict.fromkeys(column.split(".")[0] for column in columns))
    return sorted(columns, key=lambda column: areas.index(column.split(".")[0])), rows


def csv_text(runs, labels):
    columns, rows = rows_of(runs, labels)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(["" if v is None else str(v).lower() if isinstance(v, bool) else v
                         for v in (row.get(column) for column in columns)])
    return out.getvalue()


def _column(values):
    """Values of one Parquet column: of one type, text where the record has several."""
    kinds = {float if isinstance(v, int) and not isinstance(v, bool) else type(v) for v in values if v is not None}
    if len(kinds) <= 1:
        is_float = any(isinstance(v, float) for v in values)
        return [float(v) if is_float and v is not None else v for v in values]
    return [None if v is None else str(v) for v in values]


def require_parquet():
    """The library that writes Parquet. Raises RecordError where it is absent."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise record.RecordError("--parquet needs the Python package pyarrow, which is not installed: `.venv/bin/pip install "
                                 "pyarrow`, or take --csv") from error
    return pyarrow


def parquet_bytes(runs, labels):
    """Raises RecordError where the library that writes Parquet is absent."""
    pyarrow = require_parquet()
    columns, rows = rows_of(runs, labels)
    table = pyarrow.table({column: _column([row.get(column) for row in rows]) for column in columns})
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()
