# SPDX-License-Identifier: Apache-2.0
"""experiments/data_parallel: the committed result carries its claims; ways of it run again and count the same."""

import copy
import json
import os
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("KUAFU_BUILD", ROOT / "build" / "release"))
FOLDER = ROOT / "experiments" / "data_parallel"
RESULTS = ROOT / "results" / "data_parallel"
sys.path.insert(0, str(FOLDER))

import closed_forms
import run

COUNTED = ("received", "between_nodes", "messages", "equals_closed_form", "traffic_of_all")


def committed():
    return json.loads((RESULTS / "result.json").read_text())


def key(row):
    return row["world"], row["ranks"], row["ranks_per_node"], row["way"], row["bytes"]


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.result = committed()
        cls.rows = {key(r): r for r in cls.result["rows"]}

    def check_ranks(self, ranks, per_node, world):
        """Rows counted anew are those of the committed result."""
        for row in run.sums(BUILD / "bin" / "data_parallel", ranks, per_node, world, 1)["rows"]:
            mine = run.digest(row)
            self.assertEqual({k: mine[k] for k in COUNTED}, {k: self.rows[key(mine)][k] for k in COUNTED}, key(mine))


class Quick(Base):
    """The committed result, and 3 ranks counted anew."""

    def test_verdicts_and_table_are_those_of_the_numbers(self):
        self.assertEqual(run.verdicts(self.result), self.result["verdicts"])
        self.assertEqual(run.table(self.result), (RESULTS / "table.md").read_text())

    def test_every_claim_but_the_known_ones_holds(self):
        failing = [v["claim"] for v in self.result["verdicts"] if not v["holds"]]
        self.assertEqual(len(failing), 1, failing)
        self.assertIn("slowness that goes around", failing[0])     # README, Result

    def test_claims_can_fail(self):
        def failures(change):
            result = copy.deepcopy(self.result)
            for row in result["rows"]:
                change(row)
            for row in result["stragglers"]:
                change(row)
            return sum(not v["holds"] for v in run.verdicts(result))
        before = failures(lambda row: None)
        for name, value in (("equals_closed_form", False), ("received", {"mean": 7, "most": 7}), ("seconds", 1.0), ("verdict", "different"),
                            ("seconds_per_step", [1.0])):
            self.assertGreater(failures(lambda row: row.update({name: value} if name in row else {})), before, name)
        one_case = {"world": "threads", "ranks": 8, "way": "hierarchical", "bytes": 4096}
        self.assertEqual(failures(lambda row: row.update({"traffic_of_all": {}} if one_case.items() <= row.items() else {})), before + 1)

    def test_closed_forms_of_a_ring_sum_to_the_buffer(self):
        for elements, n in ((12, 4), (13, 4), (7, 5), (3, 8), (0, 3)):
            whole = sum(closed_forms.ring(elements, n, r) for r in range(n))
            self.assertEqual(whole, closed_forms.ELEMENT * 2 * (n - 1) * elements)

    def test_three_ranks_count_what_was_committed(self):
        self.check_ranks(3, 3, "threads")
        self.check_ranks(3, 3, "simulated")


class Whole(Base):
    """Eight thread ranks on two nodes; replicas of which one is slow, certified."""

    def test_eight_ranks_count_what_was_committed(self):
        self.check_ranks(8, 4, "threads")

    def test_many_simulated_ranks_count_what_was_committed(self):
        self.check_ranks(64, 8, "simulated")

    def test_ways_with_a_slow_replica_are_certified(self):
        ways = ["ring", "parameter_server:1", "parameter_server:1:4"]
        answer = run.ask(BUILD / "bin" / "data_parallel", "straggler", "--ranks", 3, "--ways", ",".join(ways), "--scenario", "rotating",
                         "--base", 1, "--factor", 2, "--steps", 4, "--rounds", 1, "--certify")
        self.assertEqual([(r["way"], r["verdict"]) for r in answer["rows"]], [(w, "equal") for w in ways])


if __name__ == "__main__":
    unittest.main()
