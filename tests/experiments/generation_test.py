# SPDX-License-Identifier: Apache-2.0
"""experiments/generation: each claim can fail, a small model that is simulated says what its weights take, and a small version runs."""

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
FOLDER = ROOT / "experiments" / "generation"
sys.path.insert(0, str(FOLDER))

import run


def row(model, system, asked, rate):
    return {"model": model, "system": system, "asked": asked, "batch": 4, "tokens_per_s": rate, "first_token_s": 1, "token_s": 1, "cache_bytes": 1,
            "peak_bytes": 1, "host_bytes": 1, "to_device_bytes": 1, "cache_to_device_bytes": 0}


def result_of():
    rows = [row(m, s, asked, (0.6 if asked == run.EQUAL or m == "opt-175b" else 7.0)) for m in run.MODELS for s in run.SYSTEMS for asked in (run.EQUAL, "best")]
    seconds = {"prefetch 0": 3.0, "prefetch 1": 2.0, "a share stays": 1.0, "keys on the host": 2.5}
    small = [{"small": s, "round": r, "token_s": seconds[s], "tokens": [[1, 2]], **dict.fromkeys(run.MOVES, 5)}
             | ({"simulated": dict.fromkeys(run.MOVES, 5)} if r == 0 else {}) for s in seconds for r in range(2)]
    return {"rows": rows, "small": small}


class Quick(unittest.TestCase):
    def test_each_claim_can_fail(self):
        self.assertTrue(all(v["holds"] for v in run.verdicts(result_of())))
        slow, eager, lame, big, far, bytes_, tokens, blind, kept = (copy.deepcopy(result_of()) for _ in range(9))
        for r in slow["rows"]:
            r["tokens_per_s"] = min(r["tokens_per_s"], 5.0)
        for r in eager["rows"]:
            r["tokens_per_s"] *= 1.6 if r["asked"] == run.EQUAL else 1.5
        for r in lame["rows"]:
            r["tokens_per_s"] *= 0.9 if r["asked"] == run.EQUAL else 0.6
        big["rows"] = [{k: r[k] for k in ("model", "system", "asked")} | {"reason": "no"} if r["model"] == "opt-175b" else r for r in big["rows"]]
        for r in far["rows"]:
            r["tokens_per_s"] *= 0.5 if r["model"] == "opt-175b" else 1
        bytes_["small"][0]["simulated"]["to_device_bytes"] = 6
        tokens["small"][1]["tokens"] = [[1, 3]]
        for broken, name, value in ((blind, "prefetch 0", 2.0), (kept, "a share stays", 2.0)):
            for r in broken["small"]:
                r["token_s"] = value if r["small"] == name else r["token_s"]
        for at, broken in enumerate((slow, eager, lame, big, far, bytes_, tokens, blind, kept)):
            self.assertFalse(run.verdicts(broken)[at]["holds"], at)

    def test_streamed_weights_come_once_a_token(self):
        keys = {"model.layers": 2, "model.hidden": 64, "model.heads": 4, "model.vocab": 100, "model.sequence": 40, "train.batch": 3, "memory.policy": "host",
                "memory.prefetch": 0}
        made = run.generated(BUILD, "card.toml", keys, "--world", "simulated", "--prompt-tokens", 10, "--tokens", 5)
        tables, block = (100 + 42) * 64, 12 * 64 * 64 + 13 * 64      # of tokens, which the head reads too, and positions
        all_ = 2 * tables + 2 * block + 2 * 64
        self.assertEqual(made["moves"]["to_device_bytes"], [2 * (5 * all_ - 3 * tables)])      # they stay from one token to the next
        self.assertEqual(made["generation"]["tokens"], 15)


class Whole(unittest.TestCase):
    def test_a_small_version_runs_and_writes_its_table(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, str(FOLDER / "run.py"), "--build", str(BUILD), "--out", folder, "--quick"], capture_output=True)
            result = json.loads((Path(folder) / "result.json").read_text())
            text = (Path(folder) / "table.md").read_text()
            self.assertTrue((Path(folder) / "generation.svg").exists())
        exact = [v["holds"] for v in run.verdicts(result) if "bytes" in v["claim"] or "same tokens" in v["claim"]]
        self.assertEqual(exact, [True, True])
        self.assertIn("opt-6.7b", text)


if __name__ == "__main__":
    unittest.main()
