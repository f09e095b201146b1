# SPDX-License-Identifier: Apache-2.0
"""What a report says of tiers of memory: the rank that moved the most, what was waited for, cases that have none."""

import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "scripts" / "report")]

import record
import synthetic
import tiers

MIB = 2**20


def run_with(moves):
    """A run of three cases, of which the first two have tiers."""
    found = [o for o in synthetic.lines()[1:] if o["status"] == "ok"][:3]
    for line, policy in zip(found, ("host", "auto")):
        line["document"]["moves"] = moves
        line["document"]["plan"]["memory"]["policy"] = policy
        line["settings"]["memory.policy"] = policy
    found[2]["document"]["moves"] = None
    with tempfile.TemporaryDirectory() as folder:
        synthetic.write(Path(folder), [synthetic.suite_line(len(found))] + found)
        return record.read_run(folder)


class Tiers(unittest.TestCase):
    def test_the_rank_that_moved_the_most_is_shown(self):
        run = run_with({"to_device_bytes": [3 * MIB, 5 * MIB], "to_host_bytes": [9 * MIB, MIB], "disk_read_bytes": [0, 0],
                        "disk_written_bytes": [MIB, 0], "wait_s": [0.5, 0.25], "regret_bytes": [0, 2048], "host_peak_bytes": [MIB, 2 * MIB],
                        "disk_bytes": [0, 4 * MIB], "step_activation_bytes": [0, 2 * MIB], "prefetches": [3, 4], "prefetch_hits": [3, 1]})
        cases = tiers.tiered(run)
        self.assertEqual([c.setting("memory.policy") for c in cases], ["host", "auto"])
        self.assertEqual(tiers.moved(cases[0]), [3 * MIB, 9 * MIB, 0, MIB])
        told = "; ".join(tiers.facts(cases[1]))
        for words in ("auto: ", "2 MiB on the host", "4 MiB on the disk", "2 KiB a step over the least", "4 of 7 prefetches used",
                      "2 MiB of activations to the host", "waited " + tiers.style.text_seconds(0.5 / cases[1].steps)):
            self.assertIn(words, told)
        bars = [b.get_width() * MIB for axes in tiers.static(run).axes for b in axes.patches]
        self.assertEqual(sorted(bars), sorted([3 * MIB, 9 * MIB, MIB] * 2))
        drawn = [x * MIB for trace in tiers.interactive(run).data if trace.type == "bar" for x in trace.x]
        self.assertEqual(sorted(drawn), sorted(bars))

    def test_plain_memory_has_no_figure(self):
        run = run_with(None)
        self.assertIsNone(tiers.static(run))
        self.assertIsNone(tiers.interactive(run))


if __name__ == "__main__":
    unittest.main()
