# SPDX-License-Identifier: Apache-2.0
"""kuafu-bench-step trains one and the same model in every mode, and compare.py drives it beside PyTorch."""

import contextlib
import functools
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("KUAFU_BUILD", ROOT / "build" / "release")) / "bin" / "kuafu-bench-step"
sys.path.insert(0, str(ROOT / "baselines" / "pytorch"))

import compare

HIDDEN = 32
SHAPE = ["--layers", "3", "--hidden", str(HIDDEN), "--heads", "4", "--sequence", "16", "--batch", "6"]
TOLERANCE = compare.tolerance_of(3, HIDDEN)


def bench(*options, text=None):
    return subprocess.run([str(PROGRAM), *SHAPE, *options], input=text, capture_output=True, text=True, timeout=120, check=False)


@functools.cache
def steps(*options):
    done = bench("--steps", "4", "--warmup", "0", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Modes(unittest.TestCase):
    def near(self, mine, reference):
        for a, b in zip(mine, reference, strict=True):
            self.assertAlmostEqual(a, b, delta=TOLERANCE * max(reference))

    def test_every_mode_has_the_losses_of_one_rank(self):
        single = steps()["loss"]
        self.assertGreater(max(single) - min(single), 10 * TOLERANCE * max(single))
        for mode, ranks in (("data", 2), ("zero1", 3), ("zero2", 2), ("zero3", 3), ("1d", 2), ("1d-sp", 2), ("2d", 4)):
            self.near(steps("--mode", mode, "--ranks", str(ranks))["loss"], single)

    def test_pipelines_have_the_losses_of_one_rank(self):
        for ranks, micro_batch in ((2, ()), (3, ()), (3, ("--micro-batch", "2")), (2, ("--micro-batch", "6"))):
            self.near(steps("--mode", "pipeline", "--ranks", str(ranks), *micro_batch)["loss"], steps()["loss"])

    def test_micro_batches_keep_fewer_bytes(self):
        peaks = [max(steps("--mode", "pipeline", "--ranks", "2", "--micro-batch", m)["tensor_bytes"]) for m in ("1", "6")]
        self.assertLess(peaks[0], peaks[1])

    def test_serve_goes_on_with_the_same_training(self):
        for mode in (("--mode", "pipeline"), ("--mode", "zero3")):
            done = bench(*mode, "--ranks", "2", "--serve", text="run 1\nrun 3\nquit\n")
            self.assertEqual(done.returncode, 0, done.stderr)
            first, second = map(json.loads, done.stdout.splitlines())
            self.assertEqual(first["losses"] + second["losses"], steps(*mode, "--ranks", "2")["loss"])
            self.assertEqual([len(first["samples"]), len(second["samples"]), len(second["tensor_bytes"])], [1, 3, 2])

    def test_mpi_processes_have_the_losses_of_one_rank(self):
        for mode, ranks in (("data", 2), ("1d", 2), ("zero3", 3), ("pipeline", 3)):
            done = subprocess.run([str(ROOT / "scripts" / "mpirun.sh"), "-n", str(ranks), str(PROGRAM), *SHAPE, "--mode", mode,
                                   "--ranks", str(ranks), "--world", "mpi", "--serve"], input="run 1\nrun 3\nquit\n",
                                  capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            first, second = map(json.loads, done.stdout.splitlines())
            self.near(first["losses"] + second["losses"], steps()["loss"])
            self.assertEqual([len(second[k]) for k in ("samples", "tensor_bytes", "resident_bytes")], [3, ranks, ranks])

    def test_limits_take_time_and_send_nothing(self):
        for mode in ("pipeline", "zero3"):
            found = steps("--mode", mode, "--ranks", "3", "--no-communication")
            self.assertFalse(found["settings"]["communicates"])
            self.assertGreater(min(found["step_time_s"]["samples"]), 0)

    def test_limits_of_processes_play_the_timetable_of_what_both_took(self):
        done = subprocess.run([str(ROOT / "scripts" / "mpirun.sh"), "-n", "2", str(PROGRAM), *SHAPE, "--mode", "pipeline", "--ranks", "2",
                               "--world", "mpi", "--no-communication", "--serve"], input="run 1\nrun 3\nquit\n", capture_output=True,
                              text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        first, second = map(json.loads, done.stdout.splitlines())
        self.assertEqual([len(first["samples"]), len(second["samples"])], [1, 3])
        self.assertGreater(min(second["samples"]), 0)

    def test_limits_of_processes_that_share_cores_are_refused(self):
        ranks = str(os.cpu_count() + 1)
        done = subprocess.run([str(PROGRAM), "--layers", ranks, "--hidden", "8", "--heads", "1", "--mode", "pipeline", "--ranks", ranks,
                               "--world", "mpi", "--no-communication"], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"of a pipeline on {ranks} ranks: at most one on each of the {os.cpu_count()} cores", done.stderr)

    def test_bad_options_are_refused_with_the_reason(self):
        for options, reason in (
                (["--mode", "data", "--ranks", "2", "--micro-batch", "3"], "--micro-batch 3 is of --mode pipeline"),
                (["--micro-batch", "1"], "--micro-batch 1 is of --mode pipeline; --mode single"),
                (["--mode", "pipeline", "--ranks", "2", "--micro-batch", "4"], "micro_batch"),
                (["--mode", "pipeline", "--ranks", "6"], "parallel.pipeline"),
                (["--ranks", "2"], "--mode single has one rank, not 2"),
                (["--export", "start", "--ranks", "2"], "--ranks"),
                (["--serve"], "unknown request 'go 3'")):
            done = bench(*options, text="go 3\n")
            self.assertNotEqual(done.returncode, 0, options)
            self.assertIn(reason, done.stderr, options)


class OtherTrainings(unittest.TestCase):
    def losses(self, decay):
        with tempfile.TemporaryDirectory() as folder:
            plan = Path(folder) / "plan.toml"
            plan.write_text(f"[model]\nkind = \"gpt\"\nlayers = 3\nhidden = {HIDDEN}\nheads = 4\nvocab = 256\nsequence = 16\n"
                            f"[optimizer]\nlr = 1e-3\nclip = 0\nweight_decay = {decay}\n"
                            "[data]\nkind = \"synthetic\"\n[train]\nbatch = 6\nsteps = 40\n", encoding="utf-8")
            done = subprocess.run([str(PROGRAM), "--plan", str(plan), "--steps", "40", "--warmup", "0"], capture_output=True,
                                  text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {"losses": json.loads(done.stdout)["loss"], "tensor_bytes": None, "resident_bytes": 1}

    def test_a_side_without_weight_decay_is_refused(self):
        kuafu = self.losses(0.01)
        self.assertEqual(compare.compared({"kuafu": kuafu, "pytorch": kuafu}, 3, HIDDEN)["verdict"], "equal")
        with self.assertRaisesRegex(SystemExit, "losses of pytorch are not within"):
            compare.compared({"kuafu": kuafu, "pytorch": self.losses(0)}, 3, HIDDEN)


class BesidePytorch(unittest.TestCase):
    """Not timed for anybody: that both programs train the same is what is looked at."""

    def test_losses_are_those_of_the_peers(self):
        for mode, ranks in (("single", "1"), ("data", "2"), ("1d", "2"), ("pipeline", "3"), ("zero1", "2"), ("zero3", "3")):
            with (tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()),
                  contextlib.redirect_stderr(io.StringIO()),
                  mock.patch.object(compare, "beaten", return_value="")):    # beside other work two rounds say nothing
                file = Path(folder) / "out.json"
                limits = ["limit"] if mode == "pipeline" else ["limit", "limit_mpi"]     # of three stages: more than cores
                sides = ["kuafu", "kuafu_mpi", *limits, "pytorch"]
                compare.main(["--kuafu", str(PROGRAM), "--json", str(file), "--mode", mode, "--ranks", ranks, "--sides",
                              ",".join(sides), "--rounds", "2", "--steps", "2", "--warmup", "1", *SHAPE])
                found = json.loads(file.read_text())
            same = found["compared"]
            self.assertEqual((same["verdict"], same["steps"], set(same["losses"])), ("equal", 5, {"kuafu_mpi", "pytorch"}), mode)
            self.assertLessEqual(max(same["losses"].values()), TOLERANCE, mode)
            self.assertGreater(same["peak tensor bytes"]["pytorch"], 0.2, mode)
            self.assertAlmostEqual(same["peak tensor bytes"]["kuafu_mpi"], 1, delta=0.01, msg=mode)
            self.assertEqual(set(found["ratios"]), {"pytorch / kuafu", "pytorch / kuafu_mpi", "kuafu_mpi / kuafu",
                                                    "kuafu / limit", *(f"pytorch / {limit}" for limit in limits),
                                                    *(f"kuafu_mpi / {limit}" for limit in limits[1:])})

    def test_compiled_peers_train_the_same(self):
        for mode, ranks in (("data", "2"), ("pipeline", "2")):
            with (tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out,
                  contextlib.redirect_stderr(io.StringIO())):
                file = Path(folder) / "out.json"
                compare.main(["--kuafu", str(PROGRAM), "--json", str(file), "--mode", mode, "--ranks", ranks, "--sides",
                              "kuafu,pytorch_compile", "--rounds", "1", "--steps", "2", "--warmup", "1", *SHAPE])
                found = json.loads(file.read_text())
            self.assertEqual(found["compared"]["verdict"], "equal", mode)
            self.assertGreater(found["sides"]["pytorch_compile"]["first_step_s"],
                               max(max(r) for r in found["step_time_s"]["pytorch_compile"]["rounds"]), mode)
            self.assertIn("first step, compiling", out.getvalue())


if __name__ == "__main__":
    unittest.main()
