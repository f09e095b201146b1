# SPDX-License-Identifier: Apache-2.0
"""Runs on a corpus of ids: data.tokenizer, data.end_token and the files that are kept."""
import json
import os
import subprocess
import tempfile
import unittest

KUAFU = os.path.join(os.environ["KUAFU_BINARY_DIR"], "bin", "kuafu")
WORDS = ["?", "</s>", "the", "mountain", "sea", "sun", "ran", "after"]


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(self.path("corpus"))
        for number in range(3):
            with open(self.path(f"corpus/{number}.txt"), "w", encoding="utf-8") as file:
                file.write(" ".join(WORDS[2 + (i * i + number) % 6] for i in range(200)) + " elsewhere\n")
        self.write_tokenizer("tokenizer.json", WORDS)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write_tokenizer(self, name, words):
        with open(self.path(name), "w", encoding="utf-8") as file:
            json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                       "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
                       "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)}, "unk_token": "?"}}, file)

    def run_it(self, *more, code=0, words=()):
        settings = ["data.path=" + self.path("corpus"), "data.tokenizer=" + self.path("tokenizer.json"), "data.end_token=</s>",
                    "model.vocab=8", "model.layers=1", "model.hidden=16", "model.heads=2", "model.sequence=8", "model.dtype=f64",
                    "train.batch=4", "train.steps=2", "train.validation_batches=1", *more]
        out = self.path("run.json")
        done = subprocess.run([KUAFU, "run", "/dev/null", "--json", out, *(w for s in settings for w in ("--set", s)), *words],
                              capture_output=True, text=True, env={**os.environ, "KUAFU_CACHE": self.path("cache")})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        with open(out, encoding="utf-8") as file:
            return json.load(file), done.stderr

    def kept(self):
        return sorted(os.path.join(folder, name) for folder, _, names in os.walk(self.path("cache")) for name in names
                      if name.endswith(".bin"))

    def test_ids_are_made_once_and_are_part_of_the_plan(self):
        first, _ = self.run_it()
        self.assertEqual(first["data"]["tokens"], 3 * (200 + 1 + 1))    # words, one that is unknown, the end
        self.assertEqual(first["data"]["tokenizer"], self.path("tokenizer.json"))
        [file] = self.kept()
        made = os.stat(file).st_mtime_ns
        again, said = self.run_it(words=["--ranks", "2", "--certify"])
        self.assertEqual((os.stat(file).st_mtime_ns, said), (made, ""))
        self.assertEqual(again["certificate"]["verdict"], "equal")
        for a, b in zip(first["loss"], again["loss"]):
            self.assertAlmostEqual(a / b, 1, delta=1e-12)
        # Other ids are other data: a plan that asks for these is refused them.
        self.write_tokenizer("tokenizer.json", [*WORDS[:2], *reversed(WORDS[2:])])
        _, said = self.run_it("data.hash=" + first["data"]["hash"], code=2)
        self.assertIn(first["data"]["hash"], said)
        other, _ = self.run_it()
        self.assertNotEqual(other["loss"], first["loss"])
        self.assertNotEqual(other["data"]["hash"], first["data"]["hash"])

    def test_a_file_that_was_changed_is_made_again(self):
        first, _ = self.run_it()
        [file] = self.kept()
        with open(file, "rb") as opened:
            whole = opened.read()
        with open(file, "wb") as opened:
            opened.write(whole[:-1] + bytes([whole[-1] ^ 1]))
        again, said = self.run_it()
        self.assertIn(file + " is made again", said)
        self.assertEqual(again["loss"], first["loss"])
        with open(file, "rb") as opened:
            self.assertEqual(opened.read(), whole)

    def test_bad_keys_are_one_error(self):
        for more, says in ((["data.end_token=<e>"], 'data.end_token = "<e>" is no token of'),
                           (["model.vocab=7"], "model.vocab = 7 is too small"),
                           (["data.tokenizer=" + self.path("none.json")], "none.json"),
                           (["data.tokenizer=" + self.path("corpus/0.txt")], "no JSON")):
            _, said = self.run_it(*more, code=2)
            self.assertIn(says, said)
            self.assertEqual(len(said.strip().splitlines()), 1, said)


if __name__ == "__main__":
    unittest.main()
