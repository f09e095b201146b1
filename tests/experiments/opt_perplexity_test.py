# SPDX-License-Identifier: Apache-2.0
"""Perplexities beside published ones: unresolved where weights are absent, told where they differ, of the text that published ones are of."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ["KUAFU_BUILD"]) / "bin"
RUN = ROOT / "experiments" / "opt_perplexity" / "run.py"
SMALL = ["model.kind=opt", "model.mlp=relu", "model.vocab=40", "model.sequence=16", "model.hidden=16", "model.heads=2", "data.kind=synthetic", "train.steps=1",
         "train.batch=2", "train.validation_batches=0"]


def run(*words):
    done = subprocess.run([sys.executable, RUN, "--bin", BIN, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


class Text(unittest.TestCase):
    def test_is_that_of_published_perplexities(self):
        spec = importlib.util.spec_from_file_location("opt_perplexity", RUN)
        program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(program)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "wiki.test.raw").write_text(" \n = Title = \n \n A line . \n", encoding="utf-8")
            for path in (Path(folder), Path(folder) / "wiki.test.raw"):
                self.assertEqual(program.test_text(path), "\n\n = Title = \n\n\n\n\n A line . \n")


class Claims(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def kuafu(self, *words):
        done = subprocess.run([BIN / "kuafu", *words], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_are_unresolved_without_weights(self):
        code, said, _ = run()
        self.assertEqual((code, said.count("unresolved: no --weights were given")), (0, 4))
        os.mkdir(self.path("models"))
        open(self.path("text"), "w", encoding="utf-8").close()
        code, said, _ = run("--weights", self.path("models"), "--text", self.path("text"))
        self.assertEqual((code, said.count("unresolved: there is no")), (0, 4))

    def test_fail_where_a_model_is_another(self):
        sets = [w for s in SMALL for w in ("--set", s)]
        self.kuafu("run", "/dev/null", "--checkpoint", self.path("saved"), *sets)
        os.mkdir(self.path("models"))
        model = self.path("models/opt-125m")
        self.kuafu("export", self.path("saved"), "--format", "hf", "--out", model)
        words = {"[UNK]": 0} | {w: i + 1 for i, w in enumerate("a b c d . =".split())}
        with open(self.path("models/opt-125m/tokenizer.json"), "w", encoding="utf-8") as file:
            json.dump({"version": "1.0", "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
                       "pre_tokenizer": {"type": "Whitespace"}}, file)
        with open(self.path("wiki.test.raw"), "w", encoding="utf-8") as file:
            file.write(" = a = \n \n" + "a b c d . \n" * 9)
        rows = {}
        for how in ((), ("--", "--ranks", "2", "--set", "parallel.tensor.mode=1d", "--set", "parallel.tensor.size=2")):
            code, said, _ = run("--weights", self.path("models"), "--text", self.folder.name, "--json", self.path("rows.json"), *how)
            self.assertEqual(code, 1, said)
            with open(self.path("rows.json"), encoding="utf-8") as file:
                rows[how] = json.load(file)["rows"]
            self.assertEqual([r["verdict"] for r in rows[how]], ["fails", "unresolved", "unresolved", "unresolved"])
        one, two = (r[0] for r in rows.values())
        self.assertEqual((one["tokens"], one["published"]), (45 + 3 - 3, 27.65))
        self.assertAlmostEqual(one["perplexity"] / two["perplexity"], 1, delta=1e-5)
        self.assertGreater(one["perplexity"], 30)

    def test_wrong_use_is_told(self):
        for words, says in ((["--weights", self.folder.name], "go together"), (["--weights", "/none", "--text", "/none"], "--weights /none is no folder"),
                            (["--weights", self.folder.name, "--text", self.path("none")], "give wiki.test.raw")):
            code, _, said = run(*words)
            self.assertEqual(code, 2)
            self.assertIn(says, said)


if __name__ == "__main__":
    unittest.main()
