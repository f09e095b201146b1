#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says which pinned packages this Python lacks or has only in part.

    check_environment.py REQUIREMENTS...

Prints one requirement a line (name==version) that must be installed again; nothing if all is well. A package
counts only if every file it lists is there with its size: an installation may have been killed half way.
"""

import csv
import sys
from importlib import metadata


def is_whole(name, version):
    """True if the package has this version and all of its files."""
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    record = package.read_text("RECORD")
    if package.version.split("+")[0] != version or record is None:
        return False
    for path, _, size in csv.reader(record.splitlines()):
        if not size:
            continue  # RECORD itself and compiled bytecode
        try:
            if package.locate_file(path).stat().st_size != int(size):
                return False
        except OSError:
            return False
    return True


def main():
    for file in sys.argv[1:]:
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                requirement = line.split("#")[0].strip()
                if requirement and not is_whole(*requirement.split("==")):
                    print(requirement)


if __name__ == "__main__":
    main()
