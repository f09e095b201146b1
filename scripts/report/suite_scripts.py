# SPDX-License-Identifier: Apache-2.0
"""Figures that a suite draws by a Python file of its own (`[[figure]] script = "mine.py"`). The file is run as

    python mine.py RUN.jsonl OUT.svg ROWS.csv

in a process and a temporary folder of its own: it reads the record and the rows of `kuafu report --csv`, the suite's columns included,
and writes OUT.svg."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import export
import record
import suite_points

SECONDS = 120            # that a script may take


def _last_line(text):
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return lines[-1] if lines else "it says nothing"


def _run(script, run, rows, folder):
    """(SVG of a script, why there is none)"""
    out = folder / "out.svg"
    words = [sys.executable, str(script), str((run.folder / record.RECORD_NAME).resolve()), str(out), str(rows)]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace", timeout=SECONDS,
                              stdin=subprocess.DEVNULL, env=os.environ | {"MPLBACKEND": "Agg"}, check=False)
    except subprocess.TimeoutExpired:
        return None, f"it ran longer than {SECONDS} s"
    if done.returncode != 0:
        return None, f"exit code {done.returncode}: {_last_line(done.stderr)}"
    if not out.is_file():
        return None, "it wrote nothing to its second argument, the SVG"
    content = out.read_bytes()
    if b"<svg" not in content[:4096]:
        return None, "what it wrote to its second argument is no SVG"
    return content, ""


def draw(run, folder):
    """Runs every script: ({name: path of its SVG in `folder`}, notes about those that drew nothing)."""
    written, notes = {}, []
    asked = [(suite_points.name_of(i, spec), spec) for i, spec in enumerate(run.figures) if "script" in spec]
    for name, spec in asked:
        content, why = None, "`kuafu report --suite SUITE.toml` draws it: a record alone makes no program run"
        if "path" in spec:
            with tempfile.TemporaryDirectory(prefix="kuafu-figure-") as place:
                rows = Path(place) / "rows.csv"
                rows.write_text(export.csv_text([run], [run.name]), encoding="utf-8")
                content, why = _run(spec["path"], run, rows, Path(place))
        target = folder / f"{name}.svg"
        if content is None:
            notes.append(f"{spec['at']}: the figure by {spec['script']} is left out: {why}")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        written[name] = target
    return written, notes


def clear(run, folder):
    """Takes away figures of a suite that has changed since."""
    kept = {suite_points.name_of(i, spec) for i, spec in enumerate(run.figures)}
    for path in folder.glob("suite_[0-9]*_*"):
        if path.stem not in kept and path.suffix in (".svg", ".png"):
            path.unlink()
