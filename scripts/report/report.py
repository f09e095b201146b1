# SPDX-License-Identifier: Apache-2.0
"""Draws the figures and writes the report of a run: figures/*.svg, figures/*.png, report.html."""

import argparse
import os
import sys
from pathlib import Path

import figures
import page
import ratios
import record
import steps


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="report.py", description=__doc__,
        epilog="example: scripts/report/report.py results/runs/quickstart")
    parser.add_argument("folder", type=Path, help="folder that `kuafu suite --out` wrote")
    parser.add_argument("--out", type=Path, help="where to write; default: the same folder")
    return parser.parse_args(arguments)


def write_report(folder, out):
    """Reads the run in `folder`, writes into `out`, returns the path of report.html.

    Raises RecordError where there is nothing to report, OSError where `out` cannot be written."""
    run = record.read_run(folder)
    if not run.cases:
        raise record.RecordError(f"no case in '{folder}' has ended yet: let the suite run for a "
                                 "while, then report again")
    if not run.finished:
        counts = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in
                           sorted(run.by_status.items()))
        raise record.RecordError(f"no finished case in '{folder}' ({counts}): there is nothing to "
                                 "draw; the reasons are in its run.jsonl")
    written = figures.write(run, out / "figures", figures.FIGURES | steps.FIGURES | ratios.FIGURES)
    target = out / "report.html"
    partial = out / "report.html.part"
    partial.write_text(page.render(run, written), encoding="utf-8")
    os.replace(partial, target)
    for note in run.notes:
        print(f"report: {note}", file=sys.stderr)
    print(f"report: {len(run.cases)} cases, {len(written)} figures (SVG and PNG) in "
          f"{out / 'figures'}, page {target}")
    return target


def main(arguments=None):
    options = parse(arguments)
    try:
        write_report(options.folder, options.out or options.folder)
    except (record.RecordError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
