# SPDX-License-Identifier: Apache-2.0
"""experiments/offload_baselines: what is recovered follows from the medians, each claim can fail, and a small version runs."""

import copy
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("KUAFU_BUILD", ROOT / "build" / "release"))
FOLDER = ROOT / "experiments" / "offload_baselines"
sys.path.insert(0, str(FOLDER))

import run

SECONDS = {"all offloaded": 4.0, "deepspeed_style": 3.0, "patrickstar_style": 2.1, "gemini_style": 2.1,
           "gemini_style, no prefetch": 4.0, "optimal": 2.0}


def result_of(seconds=SECONDS, fitting=1.01, verdict="equal", **change):
    rows = [{"system": s, "share": share, "round": r, "budget_bytes": 1, "step_s": seconds[s] * (1 + r / 10), "to_device_bytes": 10 * seconds[s],
             "to_host_bytes": 0, "wait_s": 0, "same_losses": True} | change
            for s in seconds for share in (0.2, 0.5) for r in range(3)]
    fits = [{"system": s, "round": r, "step_s": t} for s, t in (("no tiers", 1.0), ("gemini_style", fitting)) for r in range(3)]
    return {"scale": {"plain_step_s": 2.0, "link_gbs": 1}, "rows": rows, "fits": fits, "certified": [{"certificate": {"verdict": verdict}}]}


class Quick(unittest.TestCase):
    def test_what_is_recovered_follows_from_the_medians(self):
        self.assertAlmostEqual(run.recovered(result_of(), 0.2), 0.9)
        self.assertIsNone(run.recovered(result_of(SECONDS | {"deepspeed_style": 2.03}), 0.2))
        self.assertTrue(all(v["holds"] for v in run.verdicts(result_of())))

    def test_each_claim_can_fail(self):
        for at, broken in enumerate((result_of(SECONDS | {"gemini_style": 2.3}), result_of(SECONDS | {"gemini_style": 3.2}),
                                     result_of(SECONDS | {"gemini_style, no prefetch": 2.5}), result_of(fitting=1.04), result_of(SECONDS | {"patrickstar_style": 1.9}), result_of(same_losses=False),
                                     result_of(verdict="different"))):
            self.assertFalse(run.verdicts(broken)[at]["holds"], at)

    def test_every_system_trains_what_no_tiers_do(self):
        small = {"train.steps": 2, "train.batch": 2, "model.layers": 3}
        least = run.document_of(BUILD, small | {"memory.policy": "host", "memory.prefetch": 0, "memory.chunk_size": run.CHUNK}, "--world", "simulated")
        losses = []
        for system in run.SYSTEMS:
            document = run.document_of(BUILD, run.keys_of(system, least["memory"]["peak_bytes"][0] + 200_000, 10) | small)
            losses.append(document["loss"])
            self.assertGreater(document["moves"]["to_device_bytes"][0], 0, system)
        self.assertEqual(losses, [run.document_of(BUILD, small)["loss"]] * len(losses))


class Whole(unittest.TestCase):
    def test_a_small_version_runs_and_writes_its_table(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, str(FOLDER / "run.py"), "--build", str(BUILD), "--out", folder, "--quick"], capture_output=True)
            result = json.loads((Path(folder) / "result.json").read_text())
            text = (Path(folder) / "table.md").read_text()
        claims = run.verdicts(result)
        self.assertEqual([c["holds"] for c in claims[4:]], [True] * 3, claims)      # times of one round beside other tests decide nothing
        self.assertIn("optimal", text)
        self.assertEqual(len(result["rows"]), len(run.SYSTEMS))


if __name__ == "__main__":
    unittest.main()
