# SPDX-License-Identifier: Apache-2.0
"""The PyTorch peers train one and the same model; the comparison takes turns and divides rightly."""

import collections
import contextlib
import functools
import io
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "baselines" / "pytorch"
sys.path.insert(0, str(PEERS))

import compare
import side

HIDDEN = 32
SHAPE = ["--layers", "1", "--hidden", str(HIDDEN), "--heads", "4", "--sequence", "16", "--batch", "4"]

# A program of the serve protocol with known step times; it notes every request it gets.
FAKE = """#!{python}
import json, os, sys
name = "limit" if "--no-communication" in sys.argv else "kuafu"
for line in sys.stdin:
    if line.strip() == "quit":
        break
    count = int(line.split()[1])
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(f"{{name}} {{count}}\\n")
    if os.environ.get("FAKE_END") == name:
        sys.exit(3)
    if os.environ.get("FAKE_SHORT") == name:
        count -= 1
    seconds = {{"kuafu": 0.010, "limit": float(os.environ.get("FAKE_LIMIT", 0.008))}}[name]
    print("a line that is no answer")
    print(json.dumps({{"samples": [seconds] * count}}), flush=True)
"""


def peer(program, *options, text=None):
    return subprocess.run([sys.executable, str(PEERS / program), *SHAPE, *options], input=text,
                          capture_output=True, text=True, timeout=400 if "--compile" in options else 120, check=False)


@functools.cache
def losses(program, ranks, *options):
    done = peer(program, "--ranks", str(ranks), "--steps", "4", "--warmup", "0", *options)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["step_time_s"]["samples"]) == 4
    assert min(document["step_time_s"]["samples"]) > 0
    return document["loss"]


class Peers(unittest.TestCase):
    def test_all_peers_have_the_same_losses(self):
        single = losses("single.py", 1)
        tolerance = compare.tolerance_of(1, HIDDEN) * max(single)
        self.assertGreater(max(single) - min(single), 10 * tolerance)
        for program, ranks in (("ddp.py", 2), ("dtensor_tp.py", 2), ("fsdp2.py", 2),
                               ("zero_redundancy.py", 2)):
            for mine, reference in zip(losses(program, ranks), single):
                self.assertAlmostEqual(mine, reference, delta=tolerance, msg=program)

    def test_a_pipeline_has_the_losses_of_one_rank(self):
        for layers, ranks, micro_batch in (("2", 2, "1"), ("3", 3, "1"), ("2", 2, "2")):
            single = losses("single.py", 1, "--layers", layers)
            tolerance = compare.tolerance_of(1, HIDDEN) * max(single)
            self.assertGreater(max(single) - min(single), 10 * tolerance)
            piped = losses("pipelining.py", ranks, "--layers", layers, "--micro-batch", micro_batch)
            for mine, reference in zip(piped, single):
                self.assertAlmostEqual(mine, reference, delta=tolerance)

    def test_serve_goes_on_with_the_same_training(self):
        done = peer("single.py", "--serve", text="run 1\nrun 3\nquit\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([len(a["samples"]) for a in answers], [1, 3])
        self.assertEqual(answers[0]["losses"] + answers[1]["losses"], losses("single.py", 1))

    def test_bad_input_is_refused_with_the_reason(self):
        for program, options, reason in (
                ("ddp.py", ["--ranks", "3"], "--batch 4 does not divide among 3 ranks"),
                ("fsdp2.py", ["--ranks", "3"], "--batch 4 does not divide among 3 ranks"),
                ("dtensor_tp.py", ["--ranks", "3"], "--heads 4 do not divide among 3 ranks"),
                ("single.py", ["--ranks", "2"], "--ranks 2: this peer has 1"),
                ("pipelining.py", ["--ranks", "1"], "--ranks 1: at least 2"),
                ("pipelining.py", ["--ranks", "2"], "--layers 1 do not fill 2 stages"),
                ("pipelining.py", ["--layers", "2", "--micro-batch", "3"],
                 "--batch 4 is no multiple of --micro-batch 3"),
                ("ddp.py", ["--micro-batch", "2"], "unrecognized arguments: --micro-batch 2"),
                ("single.py", ["--serve"], "unknown request 'go 3'")):
            done = peer(program, *options, text="go 3\n")
            self.assertNotEqual(done.returncode, 0, program)
            self.assertIn(reason, done.stderr)

    def test_a_compiled_step_has_the_losses_of_the_eager_one(self):
        tolerance = compare.tolerance_of(1, HIDDEN)
        for mine, reference in zip(losses("single.py", 1, "--compile"), losses("single.py", 1), strict=True):
            self.assertAlmostEqual(mine, reference, delta=tolerance * reference)

    def test_what_compiling_lacks_is_named(self):
        import environment
        with mock.patch("shutil.which", lambda _: None):
            self.assertIn("install g++", environment.lacks_for_compiling())
        with mock.patch("sysconfig.get_paths", lambda: {"include": "/none"}):
            self.assertIn("/none/Python.h, which is not there", environment.lacks_for_compiling())

    def test_impossible_shapes_are_refused(self):
        import peer as options_of
        for options, reason in ((["--heads", "5"], "--hidden 32 is no multiple of --heads 5"),
                                (["--batch", "0"], "--batch 0: at least 1"),
                                (["--warmup", "-1"], "--warmup -1: at least 0")):
            err = io.StringIO()
            with (mock.patch.object(sys, "argv", ["peer", *SHAPE, *options]),
                  contextlib.redirect_stderr(err), self.assertRaises(SystemExit)):
                options_of.parse("", None)
            self.assertIn(reason, err.getvalue())


class Start(unittest.TestCase):
    """A file of weights and samples as kuafu-bench-step writes it."""

    @staticmethod
    def write(path, tensors):
        kinds, entries, data = {"float32": "F32", "int64": "I64"}, {"__metadata__": {"a": "b"}}, b""
        for name, value in tensors.items():
            piece = value.contiguous().numpy().tobytes()
            entries[name] = {"dtype": kinds[str(value.dtype).split(".")[1]], "shape": list(value.shape),
                             "data_offsets": [len(data), len(data) + len(piece)]}
            data += piece
        header = json.dumps(entries).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + data)

    @staticmethod
    def kuafu_name(name):
        words = name.split(".")
        if words[0] == "blocks":
            inside = {"attention": "attn", "up": "mlp.up", "down": "mlp.down"}
            return ".".join([*words[:2], inside.get(words[2], words[2]), *words[3:]])
        return f"head.{name}" if words[0] == "norm" else f"embedding.{words[0]}"

    def test_weights_and_samples_are_those_of_the_file(self):
        import environment
        environment.prepare()
        import gpt
        import torch
        options = mock.Mock(layers=2, hidden=8, heads=2, sequence=4, batch=3)
        source = gpt.Gpt(2, 8, 2, 4)
        torch.nn.init.normal_(source.norm.weight)
        samples = torch.arange(24).view(2, 3, 4)
        tensors = {"batches.inputs": samples, "batches.targets": samples + 1}
        for name, value in source.named_parameters():
            is_linear = value.dim() == 2 and not name.startswith(("tokens", "positions"))
            tensors[self.kuafu_name(name)] = value.detach().t() if is_linear else value.detach()
        self.assertIn("blocks.1.attn.qkv.weight", tensors)
        self.assertIn("blocks.0.mlp.down.bias", tensors)
        self.assertIn("head.norm.bias", tensors)
        with tempfile.TemporaryDirectory() as folder:
            options.start = Path(folder) / "start.safetensors"
            self.write(options.start, tensors)
            made, data = gpt.made(options), gpt.batches(options)
            for (name, mine), theirs in zip(made.named_parameters(), source.parameters()):
                self.assertTrue(torch.equal(mine, theirs), name)
            self.assertEqual(len(data), 2)
            self.assertEqual(data[1][0].tolist(), samples[1].tolist())
            self.assertEqual(data[1][1].tolist()[0], [13, 14, 15, 16])
            weight = "blocks.1.norm1.weight"
            for wrong, reason in (
                    (tensors | {"blocks.2.norm1.weight": torch.ones(8)},
                     "the model has no blocks.2.norm1.weight"),
                    (tensors | {weight: torch.ones(7)}, r"norm1.weight is \(7,\), the model's is \(8,\)"),
                    ({n: t for n, t in tensors.items() if n != weight}, f"without {weight}")):
                self.write(options.start, wrong)
                with self.assertRaisesRegex(ValueError, reason):
                    gpt.made(options)


class Comparison(unittest.TestCase):
    def setUp(self):
        keeper = tempfile.TemporaryDirectory()
        self.addCleanup(keeper.cleanup)
        self.folder = Path(keeper.name)
        self.fake = self.folder / "kuafu-bench-step"
        self.fake.write_text(FAKE.format(python=sys.executable))
        self.fake.chmod(0o755)
        self.log = self.folder / "log"

    def compare(self, *options, **environment):
        environment["FAKE_LOG"] = str(self.log)
        out = io.StringIO()
        block = {"git_commit": "0" * 40, "git_dirty": False}
        with (mock.patch.dict(os.environ, environment), contextlib.redirect_stdout(out),
              mock.patch.object(compare.provenance, "block", lambda *_, **more: block | more),
              contextlib.redirect_stderr(io.StringIO())):
            compare.main(["--kuafu", str(self.fake), "--json", str(self.folder / "out.json"),
                          *options])
        return json.loads((self.folder / "out.json").read_text()), out.getvalue()

    def test_sides_take_turns_and_the_ratio_is_exact(self):
        document, out = self.compare("--mode", "data", "--ranks", "2", "--sides", "kuafu,limit",
                                     "--rounds", "4", "--steps", "3", "--warmup", "2")
        requests = self.log.read_text().split("\n")[:-1]
        self.assertEqual(requests, ["kuafu 2", "limit 2"] +
                         [f"{side} 3" for name in "kl lk lk kl".split()
                          for side in ("kuafu" if letter == "k" else "limit" for letter in name)])
        found = document["ratios"]["kuafu / limit"]
        self.assertAlmostEqual(found["value"], 1.25)
        self.assertAlmostEqual(found["ci95"][0], 1.25)
        self.assertAlmostEqual(found["ci95"][1], 1.25)
        self.assertEqual(document["step_time_s"]["limit"]["rounds"], [[0.008] * 3] * 4)
        self.assertIn("kuafu / limit: 1.250", out)
        self.assertEqual(set(document["provenance"]), {"git_commit", "git_dirty", "torch", "load_average", "commands"})
        self.assertEqual(document["compared"]["verdict"], "not_run")     # a limit trains nothing

    def test_a_limit_that_is_beaten_is_an_error_and_no_result(self):
        with self.assertRaisesRegex(SystemExit, "kuafu takes 0.667 to 0.667 of limit, which is none"):
            self.compare("--sides", "kuafu,limit", "--rounds", "2", FAKE_LIMIT="0.015")
        self.assertFalse((self.folder / "out.json").exists())

    @staticmethod
    def state_of(process, expected):
        """Its state, waited for: a process that has no core is stopped when it gets one."""
        for _ in range(500):
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
            if state == expected:
                break
            time.sleep(0.01)
        return state

    def test_whatever_a_side_has_started_is_stopped_between_its_turns(self):
        program = self.folder / "parent.py"
        program.write_text("import json, subprocess, sys\n"
                           "child = subprocess.Popen(['sleep', '60'], process_group=0)\n"   # as MPI launchers do
                           "for line in sys.stdin:\n"
                           "    if line.strip() == 'quit':\n"
                           "        child.kill()\n"
                           "        break\n"
                           "    print(json.dumps({'samples': [1.0]}), flush=True)\n")
        one = side.Side("parent", [sys.executable, str(program)], 20)
        try:
            one.run(1)
            members = side._session(one.process.pid)
            self.assertEqual(len(members), 2)
            for member in members:
                self.assertEqual(self.state_of(member, "T"), "T")
        finally:
            one.end()

    def test_every_side_is_in_every_place_as_often_and_two_or_three_follow_each_other(self):
        for sides in ("ab", "abc", "abcd"):
            order = [s for number in range(2 * len(sides))
                     for s in compare.turns_of(list(sides), number)]
            follows = collections.Counter(zip(order, order[1:] + order[:1]))
            others = {follows[a, b] for a in sides for b in sides if a != b}
            if len(sides) <= 3:
                self.assertLessEqual(max(others) - min(others), 1, sides)
            self.assertTrue(all(order[i::len(sides)].count(s) == 2 for i in range(len(sides))
                                for s in sides), sides)

    def test_losses_of_two_trainings_are_told_apart(self):
        memory = {"tensor_bytes": [3, 3], "resident_bytes": 10}
        found = {"kuafu": {"losses": [5.5, 5.4], **memory},
                 "limit": {"losses": [1.0, 1.0], **memory},
                 "kuafu_mpi": {"losses": [5.5, 5.4], **memory},
                 "pytorch": {"losses": [5.5, 5.4001], "tensor_bytes": [4, 5], "resident_bytes": 15},
                 "pytorch_compile": {"losses": [5.5, 5.4], "tensor_bytes": None, "resident_bytes": 15}}
        near = compare.compared(found, 4, 256)
        self.assertEqual((near["verdict"], near["reference"], near["steps"]), ("equal", "kuafu", 2))
        self.assertEqual(set(near["losses"]), {"kuafu_mpi", "pytorch", "pytorch_compile"})
        self.assertAlmostEqual(near["losses"]["pytorch"], 1e-4 / 5.4)
        self.assertEqual(near["peak tensor bytes"], {"kuafu_mpi": 1.0, "pytorch": 1.5, "pytorch_compile": None})
        self.assertEqual(near["peak resident bytes"]["pytorch"], 1.5)
        for name in ("kuafu_mpi", "pytorch", "pytorch_compile"):
            for wrong in ([5.5, 5.41], [5.5, float("nan")]):
                broken = found | {name: {"losses": wrong, **memory}}
                with self.assertRaisesRegex(SystemExit, f"losses of {name} are not within 4.8e-05 of the first side's"):
                    compare.compared(broken, 4, 256)

    def test_interval_covers_rounds_that_differ(self):
        slow = [[1.0, 1.0], [1.2, 1.2], [1.1, 1.1], [1.0, 1.0], [1.3, 1.3]]
        found = compare.ratio(slow, [[1.0, 1.0]] * 5)
        self.assertEqual(found["value"], 1.1)
        self.assertLess(found["ci95"][0], 1.1)
        self.assertGreater(found["ci95"][1], 1.1)

    def test_a_side_that_ends_is_named(self):
        for environment, reason in (({"FAKE_END": "limit"}, "limit: ended with code 3"),
                                    ({"FAKE_SHORT": "limit"}, "limit: asked for 5 steps, got 4")):
            with self.assertRaisesRegex(SystemExit, reason):
                self.compare("--sides", "kuafu,limit", **environment)

    def test_bad_options_are_refused(self):
        for options, reason in ((["--sides", "kuafu"], "name two or more"),
                                (["--sides", "kuafu,kuafu"], "name two or more"),
                                (["--mode", "2d", "--ranks", "4"], "has no PyTorch peer"),
                                (["--mode", "2d", "--ranks", "4", "--sides", "kuafu,pytorch_compile"],
                                 "has no PyTorch peer"),
                                (["--mode", "single", "--ranks", "2"], "one rank, not 2"),
                                (["--mode", "pipeline"], "two ranks or more"),
                (["--micro-batch", "2"], "--micro-batch 2 is of --mode pipeline, not of single"),
                                (["--kuafu", "/none"], "no program /none")):
            err = io.StringIO()
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(err):
                compare.parse(["--kuafu", str(self.fake), *options])
            self.assertIn(reason, err.getvalue())


if __name__ == "__main__":
    unittest.main()
