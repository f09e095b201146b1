# SPDX-License-Identifier: Apache-2.0
"""experiments/micro/allreduce.py: the limit of a size is the fastest way of moving its bytes, and one that is beaten is told."""

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "experiments" / "micro"))

import allreduce


def samples(threads, **ways):
    """Of 2 ranks and 64 KiB, a list of nanoseconds each."""
    return [[what, 2, 1 << 16, time] for what, times in {"threads": threads, **ways}.items() for time in times]


class Limits(unittest.TestCase):
    def test_the_limit_is_the_fastest_way_of_a_size(self):
        times = allreduce.by_key(samples([9], cores=[5, 6], sum=[4, 5, 30], past=[20]) + [["one", 4, 1 << 16, 1]])
        self.assertEqual(allreduce.limit_of(times, 2, 1 << 16), ("sum", [4, 5, 30]))

    def test_a_limit_that_is_beaten_beyond_the_spread_is_told(self):
        found = allreduce.beaten(samples([3, 3.5], cores=[4, 5], sum=[6, 6]))
        self.assertEqual(len(found), 1)
        self.assertIn("2 ranks, 65536 bytes", found[0])
        self.assertIn("'cores'", found[0])

    def test_a_limit_that_is_slower_in_some_pairs_stands(self):
        self.assertEqual(allreduce.beaten(samples([3, 6], cores=[4, 5])), [])
        self.assertEqual(allreduce.beaten(samples([5, 6], cores=[4, 5])), [])

    def test_the_table_has_a_row_for_every_size_and_number_of_ranks(self):
        threads = [[what, ranks, size, time] for what, time in (("threads", 200.0), ("cores", 100.0))
                   for ranks in allreduce.RANKS for size in allreduce.SIZES]
        mpi = {str(r): [[[what, size, time] for what, time in (("own", 300.0), ("library", 600.0)) for size in allreduce.SIZES]]
               for r in allreduce.RANKS}
        rows = allreduce.table({"threads": threads, "mpi": mpi}).splitlines()[2:]
        self.assertEqual(len(rows), len(allreduce.RANKS) * len(allreduce.SIZES))
        self.assertIn("| cores | 0.50 |", rows[0])
        self.assertIn("| 3.0 | 2.00 |", rows[0])


if __name__ == "__main__":
    unittest.main()
