# SPDX-License-Identifier: Apache-2.0
"""The lines of run.jsonl: JSON objects with the checksum that ends each."""

import json
import re
import zlib

SEAL = re.compile(r',"checksum":"([^"]{8})"}$')


class RecordError(Exception):
    """The folder cannot be reported; the message says what was given and what to do."""


def _checked(line, where):
    """The line's object without its checksum, the CRC-32 of all bytes before that field.

    Raises RecordError naming file and line where the two differ. Lines of format 1 have none."""
    value = json.loads(line)
    seal = SEAL.search(line)
    if isinstance(value, dict) and seal:
        found = f"{zlib.crc32(line[:seal.start()].encode()):08x}"
        if seal[1] != found:
            raise RecordError(f"{where}: the line has the checksum {seal[1]}, its content has {found}: it was "
                              "changed after it was written; take the line out and run the suite again")
        del value["checksum"]
    return value, seal is not None


def parsed(text, path):
    """(objects, notes): every line that is a JSON object, and what had to be left out.

    Raises RecordError naming `path` and line where a line does not match its checksum."""
    objects, notes = [], []
    lines = text.split("\n")
    is_sealed = False                # from the suite line on, where the format has checksums
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        where = f"{path}:{index + 1}"
        try:
            value, has_checksum = _checked(line, where)
        except (json.JSONDecodeError, RecursionError):
            value, has_checksum = None, False
        if isinstance(value, dict):
            if value.get("kind") == "suite":
                is_sealed = is_sealed or value.get("format") != 1
            if is_sealed and not has_checksum or not has_checksum and "checksum" in value:
                raise RecordError(f"{where}: the line has no checksum at its end, as lines of format 2 "
                                  "have; take the line out and run the suite again")
            objects.append(value)
        elif index == len(lines) - 1:
            notes.append("The last line of the record is cut off; its case is left out until the "
                         "suite is run again.")
        else:
            raise RecordError(f"{where}: the line is damaged: it is no JSON; take the line out and run the suite again")
    return objects, notes
