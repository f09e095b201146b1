#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a name at namespace scope of a header means one thing in the whole tree.

    scripts/check_names.py [ROOT]      ROOT is the source tree (default: the one this file is in)

Reads the headers under src/ and baselines/. Prints one line a violation, `file:line: what`, and exits with 1 if there is any.
"""

import re
import sys
from pathlib import Path

# Names that more headers than one may declare: the reason, then these headers.
EXCEPTIONS = {
    "LayerRun": ("the kernel's and the op's: the same runs, as pointers and as tensors", "kernels/layer_updates.h", "tensor/ops.h"),
    "Row": ("plug-ins name pipeline::Row", "experiment/rows.h", "pipeline/timetable.h"),
}
# The second opinion calls things as the library does (Model, Flow, Step, Call, ...), in a namespace of its own.
ORACLE = "src/kuafu/oracle/"
SUFFIXES = {".h", ".cuh"}
# What begins a line, as the formatter writes what stands in a namespace alone. Left out: specialisations, nested classes.
DECLARED = re.compile(r"(?:struct|class|union|enum class|enum) (?:(?:\[\[.*?\]\]|alignas\(.*?\)) )?(\w+)(?![\w<:])|using (\w+) =")
FORWARD = re.compile(r"[^{]*;")


def names(text):
    """Names that a header declares at namespace scope, with their lines."""
    for number, line in enumerate(text.splitlines(), start=1):
        match = DECLARED.match(line)
        if match and (match[2] or not FORWARD.fullmatch(line.split("//")[0].rstrip())):
            yield match[1] or match[2], number


def violations(root):
    """Lines to print of names in two headers, and the number of headers read."""
    root = Path(root)
    files = sorted(p for folder in ("src", "baselines") for p in (root / folder).rglob("*") if p.suffix in SUFFIXES)
    first, found = {}, []
    for path in files:
        file = path.relative_to(root).as_posix()
        for name, number in names(path.read_text(encoding="utf-8")):
            there = first.setdefault((name, file.startswith(ORACLE)), file)
            may_both = EXCEPTIONS.get(name, ())[1:]
            if there != file and not (there.endswith(may_both) and file.endswith(may_both)):
                found.append(f"{file}:{number}: {name} is declared in {there} too; give one of them another name")
    return found, len(files)


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found, files = violations(root)
    print("\n".join(found), end="\n" if found else "")
    print(f"names: {files} headers, {len(found)} violations")
    if files == 0:
        print(f"names: no headers under {root}/src", file=sys.stderr)
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
