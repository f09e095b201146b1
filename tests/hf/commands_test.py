# SPDX-License-Identifier: Apache-2.0
"""`kuafu import` and `export --format hf` as commands, without transformers: what they write, and that a refusal writes nothing."""
import json
import os
import struct
import sys
import unittest

sys.path.insert(0, os.path.join(os.environ["KUAFU_SOURCE_DIR"], "tests", "checkpoint"))
import format_test as page

OPT = ["model.kind=opt", "model.mlp=relu", "model.vocab=32", "model.sequence=8", "model.dtype=f64"]


class Commands(page.Trips):
    def exported(self, settings=(), *more):
        page.train(self.path("saved"), [*OPT, *settings])
        page.kuafu("export", self.path("saved"), "--format", "hf", "--out", self.path("theirs"), *more)
        return self.path("theirs")

    def refused(self, *words, says, out="none"):
        """One line, code 2, and nothing new in the folder."""
        before = sorted(os.listdir(self.folder.name))
        said = page.kuafu(*words, "--out", self.path(out), code=2)
        self.assertEqual(len(said.strip().splitlines()), 1, said)
        for part in says:
            self.assertIn(part, said)
        self.assertEqual(sorted(os.listdir(self.folder.name)), before)

    def refused_import(self, *says):
        self.refused("import", self.path("theirs"), "--format", "hf", says=says)

    def test_weights_go_out_and_come_in_under_another_plan(self):
        self.exported([], "--shard", "8KiB")
        self.assertIn("model.safetensors.index.json", os.listdir(self.path("theirs")))
        said = page.kuafu("import", self.path("theirs"), "--format", "hf", "--out", self.path("begun"))
        self.assertIn("kuafu run " + self.path("begun") + "/plan.toml", said)
        page.kuafu("export", self.path("begun"), "--out", self.path("again.safetensors"))
        page.kuafu("export", self.path("saved"), "--out", self.path("first.safetensors"))
        (_, first), (_, again) = (page.plain(self, self.path(n)) for n in ("first.safetensors", "again.safetensors"))
        self.assertEqual(first, again)
        out = self.path("run.json")
        page.kuafu("run", self.path("begun/plan.toml"), "--checkpoint", self.path("begun"), "--resume", "--json", out,
                   *(w for s in ["data.kind=synthetic", "train.steps=1", "train.batch=4", "parallel.tensor.mode=1d",
                                 "parallel.tensor.size=2"] for w in ("--set", s)))
        with open(out, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["resumed_from"], 0)

    def losses(self, settings, *words, code=0):
        out = self.path("run.json")
        said = page.kuafu("run", "/dev/null", *(w for s in [*page.SMALL, *settings] for w in ("--set", s)), "--json", out, *words,
                          code=code)
        with open(out, encoding="utf-8") as file:
            return json.load(file).get("loss"), said

    def test_a_run_begins_from_weights_of_each_form(self):
        theirs = self.exported()
        page.kuafu("export", self.path("saved"), "--out", self.path("w.safetensors"))
        page.kuafu("import", theirs, "--format", "hf", "--out", self.path("begun"))
        for dtype in ("f64", "bf16"):
            own = [*OPT, "model.dtype=" + dtype, "optimizer.kind=sgd"]
            expected, _ = self.losses(own, "--from", self.path("begun"), "--checkpoint", self.path("moved-" + dtype))
            anew, _ = self.losses(own)
            self.assertNotEqual(expected, anew)
            for init in (theirs, self.path("saved"), self.path("saved/step-00000002"), self.path("w.safetensors")):
                self.assertEqual(self.losses(own, "--init", init, "--certify")[0], expected)
        own = [*OPT, "optimizer.kind=sgd"]
        expected, _ = self.losses(own, "--init", theirs)
        for plan in (["parallel.tensor.mode=2d", "parallel.tensor.size=4"], ["parallel.data.size=2", "parallel.zero=3"],
                     ["parallel.pipeline.size=2", "train.micro_batch=2"]):
            for a, b in zip(self.losses([*own, *plan], "--init", theirs)[0], expected):
                self.assertAlmostEqual(a / b, 1, delta=1e-12)
        # A run that was saved goes on from there, not from the weights that it began with.
        there = ["--init", theirs, "--checkpoint", self.path("tuned"), "--resume"]
        whole, _ = self.losses(own, *there)
        self.assertEqual(whole, expected)
        _, said = self.losses([*own, "train.steps=3"], *there, "--resume-with-changes")
        self.assertIn("resumed from    step 2", said)

    def test_what_a_run_cannot_begin_from(self):
        theirs = self.exported()
        for words, says in ((["--init", self.path("none")], "there is none; give a folder of Hugging Face's"),
                            (["--init", theirs, "--set", "model.norm_epsilon=0.1"], "model.norm_epsilon = 1e-05"),
                            (["--init", theirs, "--world", "simulated"], "computes no numbers"),
                            (["--init", theirs, "--from", self.path("saved"), "--checkpoint", self.path("x")], "leave one out")):
            loss, said = self.losses(OPT, *words, code=2)
            self.assertIsNone(loss)
            self.assertIn(says, said)

    def test_weights_beyond_the_range_of_the_type_are_named(self):
        theirs = self.exported()
        with open(os.path.join(theirs, "model.safetensors"), "r+b") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            del header["__metadata__"]  # the checksums
            data = bytearray(file.read())
            begin = header["model.decoder.embed_tokens.weight"]["data_offsets"][0]
            data[begin:begin + 8] = struct.pack("<d", 1e6)
            file.seek(8)
            file.write(json.dumps(header).ljust(length).encode() + data)
        _, said = self.losses([*OPT, "model.dtype=f16"], "--init", theirs, code=1)
        self.assertIn("embedding.tokens has elements beyond the range of f16; allowed: up to 65504", said)

    def test_bad_folders_are_one_error_and_leave_nothing(self):
        self.exported()
        os.mkdir(self.path("pipe"))
        os.mkfifo(self.path("pipe/config.json"))
        self.refused("import", self.path("pipe"), "--format", "hf", says=["config.json is no regular file but a folder, a pipe"])
        config, weights = self.path("theirs/config.json"), self.path("theirs/model.safetensors")
        with open(config, encoding="utf-8") as file:
            good = json.load(file)

        def configure(**changes):
            with open(config, "w", encoding="utf-8") as file:
                json.dump({**good, **changes}, file)
        configure(model_type="gpt_neox")
        self.refused_import("model_type is \"gpt_neox\"", "nearest: \"gpt2\"")
        configure(vocab_size=33)
        self.refused_import(weights, "(32, 16), by config.json it is (33, 16)")
        configure(num_hidden_layers=3)
        self.refused_import("has no tensor model.decoder.layers.2.")
        configure()
        with open(weights, "rb") as file:
            whole = file.read()
        with open(weights, "wb") as file:
            file.write(whole[:-1])
        self.refused_import(weights, "damaged")
        # The last element of the last tensor is no number: told when all but that is written.
        header = int.from_bytes(whole[:8], "little")
        names = json.loads(whole[8:8 + header])
        last = max((n for n in names if n != "__metadata__"), key=lambda n: names[n]["data_offsets"][1])
        names["__metadata__"] = {"format": "pt"}
        head = page.line(names)
        with open(weights, "wb") as file:
            file.write(len(head).to_bytes(8, "little") + head + whole[8 + header:-8] + b"\xff" * 8)
        self.refused_import(weights, last, "infinite or no number")
        self.refused("import", self.path("nowhere"), "--format", "hf", says=("nowhere", "save_pretrained"))
        self.refused("import", self.path("saved"), "--format", "hf", says=("config.json",))

    def test_what_is_there_is_not_replaced(self):
        self.exported()
        os.mkdir(self.path("mine"))
        with open(self.path("mine/plan.toml"), "w", encoding="utf-8") as file:
            file.write("# mine\n")
        self.refused("import", self.path("theirs"), "--format", "hf", says=("plan.toml", "choose another folder"), out="mine")
        self.assertEqual(os.listdir(self.path("mine")), ["plan.toml"])
        self.refused("export", self.path("saved"), "--format", "hf", says=("there is one already",), out="theirs")

    def test_models_of_no_family_are_named_by_their_key(self):
        page.train(self.path("saved"), ["model.parallel_blocks=true"])
        self.refused("export", self.path("saved"), "--format", "hf", says=("model.parallel_blocks = true", "--format safetensors"))


if __name__ == "__main__":
    unittest.main()
