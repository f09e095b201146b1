#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loops that have to become vectors are compiled with -O3 whatever else is asked for, as are those that the
benchmarks hold them against: the last -O of a command counts, and at -O2 GCC 12 leaves them scalar."""

import json
import os
import unittest
from pathlib import Path

SOURCE = Path(os.environ["KUAFU_SOURCE_DIR"]).resolve()
COMMANDS = Path(os.environ["KUAFU_BINARY_DIR"]) / "compile_commands.json"
LOOPS = (*(f for f in (SOURCE / "src/kuafu/kernels").glob("*.cpp") if f.name != "no_card.cpp"), SOURCE / "src/kuafu/comm/reduction.cpp",
         SOURCE / "experiments/micro/optimizer/streams.cpp", SOURCE / "experiments/micro/traffic.cpp")


def level(command):
    return [word for word in command.split() if word.startswith("-O")][-1]


class KernelFlags(unittest.TestCase):
    def test_the_last_level_is_3(self):
        entries = [e for e in json.loads(COMMANDS.read_text()) if "-o tests/" not in e["command"]]     # stand-ins are not timed
        commands = {Path(entry["file"]).resolve(): entry["command"] for entry in entries}
        for loop in LOOPS:
            if loop not in commands and loop.is_relative_to(SOURCE / "experiments"):
                continue  # left out with what its benchmark needs
            self.assertEqual(level(commands[loop]), "-O3", loop)

    def test_a_later_level_counts(self):
        self.assertEqual(level("c++ -O3 -fPIC -O2 -c x.cpp"), "-O2")


if __name__ == "__main__":
    unittest.main()
