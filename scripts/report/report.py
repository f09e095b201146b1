# SPDX-License-Identifier: Apache-2.0
"""Draws the figures and writes the report of a run, or of several side by side: figures/*.svg, figures/*.png, report.html; or
tells it as text, CSV, JUnit XML or Parquet."""

import argparse
import contextlib
import difflib
import errno
import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))         # while the libraries below are loaded

try:
    import export
    import figures
    import junit
    import layer_maps
    import noise
    import page
    import ratios
    import record
    import side_by_side
    import steps
    import suite_facts
    import suite_figures
    import suite_scripts
    import text_report
    import tiers
    from progress import Progress
except ImportError as error:
    if __name__ != "__main__":
        raise
    print(f"report: {sys.executable} cannot load what the report needs ({error}): leave KUAFU_PYTHON unset where scripts/setup.sh has "
          f"made .venv, or `{sys.executable} -m pip install -r {Path(__file__).resolve().parents[1] / 'requirements.txt'}`", file=sys.stderr)
    sys.exit(2)

EPILOG = """examples:
  scripts/report/report.py results/runs/quickstart
  scripts/report/report.py results/quickstart results/runs/quickstart --out /tmp/both
  scripts/report/report.py results/runs/quickstart --text --csv cases.csv --junit junit.xml

With --text, --csv, --junit or --parquet the page is drawn only where --out is given too.
Exit codes: 0 done, 2 usage, nothing to report or not to be written, 7 a full disk, 130 interrupted"""

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message):
        if message.startswith("unrecognized arguments: "):
            given = message.removeprefix("unrecognized arguments: ").split()[0]
            known = [name for action in self._actions for name in action.option_strings]
            nearest = difflib.get_close_matches(given.split("=")[0], known, 1, 0)
            message = f"no option {given}; did you mean {nearest[0]}? --help lists them"
        raise record.RecordError(message)


def parse(arguments):
    parser = Parser(prog="report.py", description=__doc__, epilog=EPILOG, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="folder", help="folder that `kuafu suite --out` wrote; several are compared")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write; default, of one folder: the same folder")
    parser.add_argument("--text", action="store_true", help="print a summary of 80 to 120 columns")
    parser.add_argument("--layers", type=int, metavar="N", default=text_report.LAYERED,
                        help="with --text: of how many cases to tell the layers (train.telemetry); default %(default)s")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a row a case")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML: how cases ended, certificates, references")
    parser.add_argument("--parquet", type=Path, metavar="FILE", help="write a row a case (needs pyarrow)")
    parser.add_argument("--facts", type=Path, metavar="FILE", help="what `kuafu report` knows of the suites (suite_facts.py)")
    return parser.parse_args(arguments)


def read_runs(folders, facts=None):
    """(runs in their suites' order, what they are called). Raises RecordError where one is no result or none share a case."""
    runs = [record.read_run(folder) for folder in folders]
    for run in runs:
        if not run.cases:
            raise record.RecordError(f"no case in '{run.folder}' has ended yet: let the suite run for a "
                                     "while, then report again")
    labels = side_by_side.labels_of(folders)
    side_by_side.require_common(runs, labels)
    return [suite_facts.ordered(*pair) for pair in zip(runs, suite_facts.read(facts, len(runs)))], labels


def _written(path, content):
    """Writes a file whole or not at all; a pipe or a device as it comes."""
    is_file = path.is_file() or not path.exists()
    partial = path.with_name(path.name + ".part") if is_file else path
    try:
        partial.write_bytes(content if isinstance(content, bytes) else content.encode())
        if is_file:
            os.replace(partial, path)
    except OSError as error:
        raise record.RecordError(f"cannot write '{path}': {error.strerror}; give a file in a folder that exists and may be "
                                 "written") from error
    finally:
        if is_file:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
    return path


def _finished(run):
    if not run.finished:
        counts = ", ".join(f"{n} {status}" for status, n in sorted(run.by_status.items()))
        raise record.RecordError(f"no finished case in '{run.folder}' ({counts}): there is nothing to "
                                 "draw; the reasons are in its run.jsonl and in `kuafu report --text`")


def _require_no_links(folder):
    """What is drawn lies in the folder that was named: a link in it, of whoever made it, leads elsewhere."""
    for path in (folder, *(folder.iterdir() if folder.is_dir() else ())):
        if path.is_symlink():
            raise record.RecordError(f"'{path}' is a link, and figures are written into no other folder; remove it, or give --out "
                                     "another folder")


def draw_report(runs, labels, out):
    """Writes figures and page into `out`, returns the path of report.html."""
    for run in runs:
        _finished(run)
    _require_no_links(out / "figures")
    is_one = len(runs) == 1
    drawings = (figures.FIGURES | tiers.FIGURES | steps.FIGURES | noise.FIGURES | layer_maps.drawings(runs[0]) | suite_figures.drawings(runs[0]) | ratios.FIGURES if is_one
                else side_by_side.figures(runs, labels))
    scripted, left_out = {}, []
    with contextlib.closing(Progress((1 + is_one) * len(drawings))) as progress:
        try:
            suite_scripts.clear(runs[0], out / "figures")
            layer_maps.clear(runs[0] if is_one else side_by_side.together(runs, labels), out / "figures")
            written = figures.write(runs[0], out / "figures", progress.of(drawings, "figure"))
            progress.total = len(drawings) + (len(written) if is_one else 0)        # empty figures are not in the page
            if is_one:
                scripted, left_out = suite_scripts.draw(runs[0], out / "figures")
        except OSError as error:
            raise record.RecordError(f"cannot write '{error.filename or out / 'figures'}': {error.strerror}; give --out a folder that may be "
                                     "written") from error
        runs[0].notes.extend(left_out + (suite_figures.missing(runs[0]) if is_one else []))
        content = page.render(runs[0], written | scripted, progress) if is_one else page.render_side_by_side(runs, labels, written)
    target = _written(out / "report.html", content)
    for run in runs:
        for note in run.notes:
            print(f"report: {note}", file=sys.stderr)
    cases = f"{len(runs[0].cases)} cases" if len(runs) == 1 else f"{len(runs)} folders, {len(side_by_side.met(runs))} cases in all of them"
    cases += f", {len(scripted)} drawn by scripts of the suite" if scripted else ""
    print(f"report: {cases}, {len(written)} figures (SVG and PNG) in {out / 'figures'}, page {target}")
    return target


def write_report(folder, out):
    """The page of one run. Raises RecordError where there is nothing to report or it cannot be written."""
    return draw_report(*read_runs([folder]), out)


def main(arguments=None):
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        options = parse(arguments)
        others = [options.csv, options.junit, options.parquet]
        is_drawn = options.out is not None or not (options.text or any(others))
        if is_drawn and len(options.folders) > 1 and not options.out:
            raise record.RecordError(f"{len(options.folders)} folders need --out DIR, where the page that compares them goes")
        if options.layers < 0:
            raise record.RecordError(f"--layers {options.layers}: give a number of cases from 0")
        if options.parquet:
            export.require_parquet()
        if options.layers != text_report.LAYERED and not options.text:
            raise record.RecordError("--layers is about --text, which is not given")
        runs, labels = read_runs(options.folders, options.facts)
        for path, content in zip(others, (export.csv_text, junit.xml, export.parquet_bytes)):
            if path:
                _written(path, content(runs, labels))
        if options.text:
            is_red = sys.stdout.isatty() and "NO_COLOR" not in os.environ
            print(text_report.text(runs, labels, text_report.width(), is_red, options.layers), end="")
        if is_drawn:
            draw_report(runs, labels, options.out or Path(options.folders[0]))
    except KeyboardInterrupt:
        return 130
    except (record.RecordError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        cause = error if isinstance(error, OSError) else error.__cause__
        return 7 if getattr(cause, "errno", None) in FULL else 2
    return 0


def told(code):
    """`code`, or that of a full disk where not all of the standard output can be written, with one line that says so."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())       # Python writes what is left at its end
        if not code:
            print(f"report: cannot write all of the standard output: {error.strerror}", file=sys.stderr)
        return code or 7
    return code


if __name__ == "__main__":
    try:
        ended = main()
    except SystemExit as end:       # --help
        ended = end.code
    sys.exit(told(ended))
