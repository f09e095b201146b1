#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says which pinned packages this Python lacks, and which packages it has only in part.

    check_environment.py [--repair] REQUIREMENTS...

Prints one requirement a line (name==version) that must be installed again; nothing if all is well. A package
counts only if every file it lists is there with its size: an installation may have been killed half way.
--repair removes what a killed installation left of a package's description, which pip could neither use
nor uninstall.
"""

import csv
import shutil
import sys
from importlib import metadata
from pathlib import Path


def is_whole(package):
    """True if the package lists its files and has them all."""
    record = package.read_text("RECORD")
    if record is None:
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


def is_installed(name, version):
    """True if the package has this version and is whole."""
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return package.version == version and is_whole(package)


def remove_half_written(site):
    """Removes descriptions of packages that lack the list of files or the metadata."""
    for info in Path(site).glob("*.dist-info"):
        if not (info / "RECORD").is_file() or not (info / "METADATA").is_file():
            shutil.rmtree(info)


def requirements(files):
    """The (name, version) pairs pinned in the files."""
    for file in files:
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            requirement = line.split("#")[0].strip()
            if requirement:
                yield tuple(requirement.split("=="))


def main():
    arguments = sys.argv[1:]
    if "--repair" in arguments:
        arguments.remove("--repair")
        for site in sys.path:
            if site.endswith("site-packages"):
                remove_half_written(site)
    wanted = [f"{name}=={version}" for name, version in requirements(arguments)
              if not is_installed(name, version)]
    names = {name.lower() for name, _ in requirements(arguments)}
    for package in metadata.distributions():
        name = package.metadata["Name"]
        if name and name.lower().replace("_", "-") not in names and not is_whole(package):
            wanted.append(f"{name}=={package.version}")
    print("\n".join(wanted), end="\n" if wanted else "")


if __name__ == "__main__":
    main()
