# SPDX-License-Identifier: Apache-2.0
"""Folders of transformers, in and out, beside transformers itself: `scripts/transformers.sh tests/hf/transformers_test.py [CLASS]`."""
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import families
import torch
import transformers
from families import FAMILIES, page
from safetensors import safe_open
from safetensors.torch import load_file, save_file

EPSILON = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
SCHEMES = {"one": ("none", 1, 1), "1d": ("1d", 2, 1), "1d-sp": ("1d-sp", 2, 1), "2d": ("2d", 4, 1), "2.5d": ("2.5d", 8, 2), "3d": ("3d", 8, 1)}


def under(scheme):
    """Settings of a scheme."""
    mode, size, depth = SCHEMES[scheme]
    return [f"parallel.tensor.mode={mode}", f"parallel.tensor.size={size}", *([f"parallel.tensor.depth={depth}"] if depth > 1 else [])]


class Folders(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    @contextlib.contextmanager
    def each(self, **what):
        """A subtest with an empty folder."""
        with self.subTest(**what), tempfile.TemporaryDirectory() as own:
            kept, self.folder.name = self.folder.name, own
            try:
                yield
            finally:
                self.folder.name = kept

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def begin(self, name, model, out="begun", **how):
        """A fixture and its checkpoint."""
        model.save_pretrained(self.path(name), **how)
        page.kuafu("import", self.path(name), "--format", "hf", "--out", self.path(out))
        return self.path(out)

    def run_step(self, name, begun, more=()):
        """The loss of the first step of a run from a checkpoint, and the folder it is then in."""
        text, run = self.path("text"), tempfile.mkdtemp(dir=self.folder.name)
        with open(text, "wb") as file:
            file.write(families.corpus(name)[0])
        saved, out = os.path.join(run, "saved"), os.path.join(run, "run.json")
        shutil.copytree(begun, saved)
        words = [w for s in [*families.settings(name, text), *more] for w in ("--set", s)]
        page.kuafu("run", os.path.join(saved, "plan.toml"), "--checkpoint", saved, "--resume", "--json", out, *words)
        with open(out, encoding="utf-8") as file:
            return json.load(file)["loss"][0], saved

    def load(self, name, path):
        kind = type(families.FAMILIES[name]())
        model, told = kind.from_pretrained(path, dtype="auto", output_loading_info=True)
        self.assertEqual([told["missing_keys"], told["unexpected_keys"], told["mismatched_keys"]], [set(), set(), set()])
        return model.eval()

    def export(self, saved, out, *more):
        page.kuafu("export", saved, "--format", "hf", "--out", self.path(out), *more)
        return self.path(out)


class Steps(Folders):
    """In f64: loss, gradient and update of every element, under every scheme."""

    def steps_of(self, name):
        model = families.make(name)
        begun = self.begin(name, model)
        limit = families.bound(name, EPSILON[torch.float64])
        with families.FullPrecision():
            loss, after = families.stepped(name, model)
        for scheme in SCHEMES:
            with self.subTest(family=name, scheme=scheme):
                own, saved = self.run_step(name, begun, under(scheme))
                self.assertLess(abs(own / loss - 1), limit)
                there = dict(self.load(name, self.export(saved, name + scheme)).named_parameters())
                self.assertEqual(there.keys(), after.keys())
                for key, expected in after.items():
                    difference = (there[key] - expected).abs().max().item()
                    self.assertLess(difference, limit * expected.abs().max().item(), key)

    def test_are_those_of_transformers(self):
        for name in FAMILIES:
            with self.each(family=name):
                self.steps_of(name)

    def test_begin_straight_from_a_folder(self):
        """`--init`: no checkpoint between; each rank reads its part."""
        for name in ("gpt2", "opt-350m", "llama-grouped", "bert", "vit"):
            with self.each(family=name):
                model = families.make(name)
                begun = self.begin(name, model, max_shard_size="15KB")
                with families.FullPrecision():
                    loss, _ = families.stepped(name, model)
                for scheme in SCHEMES:
                    own = self.run_init(name, begun, under(scheme))
                    self.assertLess(abs(own / loss - 1), families.bound(name, EPSILON[torch.float64]))

    def run_init(self, name, begun, more):
        text, out = self.path("text"), self.path("run.json")
        with open(text, "wb") as file:
            file.write(families.corpus(name)[0])
        words = [w for s in [*families.settings(name, text), "model.dtype=f64", *more] for w in ("--set", s)]
        page.kuafu("run", os.path.join(begun, "plan.toml"), "--init", self.path(name), "--json", out, *words)
        with open(out, encoding="utf-8") as file:
            return json.load(file)["loss"][0]

    def test_of_llama_as_transformers_rounds_it(self):
        """Its norms and angles are in f32 there."""
        model = families.make("llama")
        own, _ = self.run_step("llama", self.begin("llama", model))
        loss, _ = families.stepped("llama", model)
        self.assertLess(abs(own / loss - 1), families.bound("llama", EPSILON[torch.float32]))


class Types(Folders):
    """Weights of each type: read exactly, and what a run in that type makes of them."""

    def check(self, name, dtype):
        model = families.make(name).to(dtype)
        begun = self.begin(name, model)
        with families.FullPrecision():
            logits, loss = families.logits_and_loss(name, model.double())
        exact, _ = self.run_step(name, begun, ["model.dtype=f64"])
        self.assertLess(abs(exact / loss.item() - 1), families.bound(name, EPSILON[torch.float64]))
        native, _ = self.run_step(name, begun, ["train.loss_scale=256"] if dtype == torch.float16 else [])
        if dtype == torch.float32:
            limit = families.bound(name, EPSILON[dtype]) * loss.item()
        else:
            # Sums are in f32: what is rounded are the tensors between the ops, 12 a layer and 4 beside them. A loss
            # moves by at most twice what a logit does; 2 for sums that cancel.
            largest = max(x.abs().max().item() for x in logits)
            limit = 2 * 2 * largest * EPSILON[dtype] / 2 * math.sqrt(12 * families.LAYERS + 4)
        self.assertLess(abs(native - loss.item()), limit)
        self.assertNotEqual(native, exact)

    def test_of_every_family(self):
        for name in FAMILIES:
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                with self.each(family=name, dtype=dtype):
                    self.check(name, dtype)


class Generation(Folders):
    """Greedy tokens in f64, up to the last position, prompts of several lengths in one batch."""

    PROMPTS = ["a", "the quick brown", "twenty-three bytes long"]

    def theirs(self, model):
        made = []
        for prompt in self.PROMPTS:
            tokens = torch.tensor([list(prompt.encode())])
            out = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_length=families.SEQUENCE)
            made.append(out[0, tokens.shape[1]:].tolist())
        return made

    def ours(self, name, begun, scheme):
        prompts, out = self.path("prompts"), self.path("made.json")
        with open(prompts, "w", encoding="utf-8") as file:
            file.writelines(prompt + "\n" for prompt in self.PROMPTS)
        settings = ["model.dtype=f64", *under(scheme)]
        page.kuafu("generate", os.path.join(begun, "plan.toml"), "--init", self.path(name), "--file", prompts, "--json", out,
                   *(w for s in settings for w in ("--set", s)))
        with open(out, encoding="utf-8") as file:
            return [p["tokens"] for p in json.load(file)["generation"]["prompts"]]

    def test_is_that_of_transformers(self):
        for name in FAMILIES:
            if name in ("bert", "vit"):
                continue
            with self.each(family=name):
                model = families.make(name)
                begun = self.begin(name, model)
                with families.FullPrecision():
                    expected = self.theirs(model)
                self.assertEqual([len(t) for t in expected], [families.SEQUENCE - len(p) for p in self.PROMPTS])
                for scheme in SCHEMES:
                    self.assertEqual(self.ours(name, begun, scheme), expected, scheme)


class Perplexity(Folders):
    """As the documentation of transformers defines it, in f64."""

    TEXT = "".join(chr(97 + (5 * i * i + 3 * i) % 26) for i in range(150))

    def theirs(self, model, stride):
        tokens, nats, count, before = torch.tensor([list(self.TEXT.encode())]), 0.0, 0, 0
        for begin in range(0, tokens.shape[1], stride):
            end = min(begin + families.SEQUENCE, tokens.shape[1])
            window = tokens[:, begin:end]
            labels = window.clone()
            labels[:, :-(end - before)] = -100    # foretold by the window before
            targets = labels[0, 1:]
            surprise = torch.nn.functional.cross_entropy(model(input_ids=window).logits[0, :-1], targets, ignore_index=-100, reduction="sum")
            nats, count, before = nats + surprise.item(), count + (targets != -100).sum().item(), end
            if end == tokens.shape[1]:
                break
        return math.exp(nats / count), count

    def ours(self, name, begun, scheme, stride):
        text, out = self.path("text"), self.path("found.json")
        with open(text, "w", encoding="utf-8") as file:
            file.write(self.TEXT)
        settings = ["model.dtype=f64", *under(scheme)]
        page.kuafu("perplexity", os.path.join(begun, "plan.toml"), "--init", self.path(name), "--file", text, "--stride", str(stride),
                   "--json", out, *(w for s in settings for w in ("--set", s)))
        with open(out, encoding="utf-8") as file:
            found = json.load(file)["perplexity"]
        return found["value"], found["tokens"]

    def test_is_that_of_transformers(self):
        for name in FAMILIES:
            if name in ("bert", "vit"):
                continue
            with self.each(family=name):
                model = families.make(name)
                begun = self.begin(name, model)
                for stride, schemes in ((families.SEQUENCE, SCHEMES), (7, ("one", "2d")), (1, ("one",))):
                    with families.FullPrecision(), torch.no_grad():
                        value, count = self.theirs(model, stride)
                    for scheme in schemes:
                        own, tokens = self.ours(name, begun, scheme, stride)
                        self.assertEqual(tokens, count)
                        self.assertLess(abs(own / value - 1), families.bound(name, EPSILON[torch.float64]) * math.log(value))


def tensors_of(folder):
    tensors = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(folder, name), "pt") as file:
                tensors.update({key: file.get_tensor(key) for key in file.keys()})
    return tensors


class Exports(Folders):
    def there_and_back(self, name, dtype):
        model = families.make(name).to(dtype)
        begun = self.begin(name, model, max_shard_size="15KB")
        self.assertTrue(os.path.exists(self.path(name, "model.safetensors.index.json")))
        one, shards = self.export(begun, "one"), self.export(begun, "shards", "--shard", "15KB")
        self.assertTrue(os.path.exists(os.path.join(shards, "model.safetensors.index.json")))
        theirs, ours = tensors_of(self.path(name)), tensors_of(one)
        self.assertEqual(theirs.keys(), ours.keys())
        for key, tensor in theirs.items():
            self.assertEqual(tensor.dtype, ours[key].dtype)
            self.assertTrue(torch.equal(tensor, ours[key]), key)
        with torch.no_grad():
            expected = families.logits_and_loss(name, self.load(name, self.path(name)))[0]
            for folder in (one, shards):
                loaded = self.load(name, folder)
                self.assertEqual(loaded.dtype, dtype)
                for a, b in zip(families.logits_and_loss(name, loaded)[0], expected):
                    self.assertTrue(torch.equal(a, b))
        for folder in (one, shards):    # and in again: the same bytes
            page.kuafu("import", folder, "--format", "hf", "--out", folder + "-begun")
            again = self.export(folder + "-begun", os.path.basename(folder) + "-again",
                                *(["--shard", "15KB"] if folder == shards else []))
            self.assertEqual(sorted(os.listdir(folder)), sorted(os.listdir(again)))
            for file in os.listdir(folder):
                with open(os.path.join(folder, file), "rb") as a, open(os.path.join(again, file), "rb") as b:
                    self.assertEqual(a.read(), b.read(), file)

    def test_are_the_same_model_for_transformers(self):
        for name in FAMILIES:
            for dtype in EPSILON:
                with self.each(family=name, dtype=dtype):
                    self.there_and_back(name, dtype)


class OldNames(Folders):
    """Names that files of earlier versions have."""

    def renamed(self, name, change):
        model = families.make(name)
        model.save_pretrained(self.path(name))
        file = self.path(name, "model.safetensors")
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)
        page.kuafu("import", self.path(name), "--format", "hf", "--out", self.path(name + "-begun"))
        there = dict(self.load(name, self.export(self.path(name + "-begun"), name + "-out")).named_parameters())
        for key, parameter in model.named_parameters():
            self.assertTrue(torch.equal(there[key], parameter), key)

    def test_of_a_bert(self):
        def change(tensors):
            for key in list(tensors):
                old = key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
                tensors[old] = tensors.pop(key)
            self.assertIn("cls.predictions.transform.LayerNorm.gamma", tensors)
            tensors["bert.embeddings.position_ids"] = torch.arange(families.SEQUENCE)[None]
            tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
            tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
        self.renamed("bert", change)

    def test_of_a_gpt2_with_masks_and_without_a_prefix(self):
        def change(tensors):
            for key in list(tensors):
                tensors[key.removeprefix("transformer.")] = tensors.pop(key)
            for layer in range(families.LAYERS):
                tensors[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(1, 1, families.SEQUENCE, families.SEQUENCE))
                tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
            tensors["lm_head.weight"] = tensors["wte.weight"].clone()
        self.renamed("gpt2", change)

    def test_of_an_opt_and_a_llama_without_a_prefix(self):
        def change(tensors):
            for key in list(tensors):
                tensors[key.removeprefix("model.")] = tensors.pop(key)
        self.renamed("opt", change)
        self.renamed("llama-grouped", change)


def peak_of(*words, launcher=()):
    """Bytes that a command of kuafu holds at most, or the fullest of its ranks."""
    script = ("import resource,subprocess,sys;code=subprocess.call(sys.argv[1:],stdout=2);"
              "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss);sys.exit(code)")
    done = subprocess.run([sys.executable, "-c", script, *launcher, page.KUAFU, *words], capture_output=True, text=True, check=True)
    return 1024 * int(done.stdout.split()[-1])


class Memory(Folders):
    def test_is_that_of_a_few_tensors(self):
        """Of a model of 160 MiB whose largest tensor has 9 MiB, less that of a tiny one: a tensor of ours and one of theirs;
        of an import also the one that is written meanwhile, of an export the piece that the checkpoint was read in."""
        small = families.gpt2()
        config = transformers.GPT2Config(**families.TEXT, n_positions=64, n_embd=768, n_layer=6, n_head=8)
        large = transformers.GPT2LMHeadModel(config)
        small.save_pretrained(self.path("small"))
        large.save_pretrained(self.path("large"))
        largest = max(p.numel() * p.element_size() for p in large.parameters())
        self.assertGreater(os.path.getsize(self.path("large", "model.safetensors")), 16 * largest)
        for command, held in (("import", 3), ("export", 3)):
            peaks = []
            for size in ("small", "large"):
                given = self.path(size if command == "import" else size + "-begun")
                out = self.path(size + ("-begun" if command == "import" else "-out"))
                peaks.append(peak_of(command, given, "--format", "hf", "--out", out))
            self.assertLess(peaks[1] - peaks[0], held * largest + (4 << 20), command)
        # Read straight into a plan, beside the same plan with the seed's weights: what a rank reads of one tensor, twice
        # for what the allocator of memory keeps; on one rank, and of the fullest of two.
        page.kuafu("import", self.path("large"), "--format", "hf", "--plan-only", "--out", self.path("plan"))
        begin = ["generate", self.path("plan", "plan.toml"), "--prompt", "ab", "--tokens", "1"]
        two = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
        for launcher, under in ([], []), (two, ["--world", "mpi", *(w for s in ("parallel.tensor.mode=1d", "parallel.tensor.size=2") for w in ("--set", s))]), \
                (two, ["--world", "mpi", *(w for s in ("parallel.data=2", "parallel.zero=3") for w in ("--set", s))]):
            seeds, given = (peak_of(*begin, *under, *more, launcher=launcher) for more in ([], ["--init", self.path("large")]))
            self.assertLess(given - seeds, 2 * largest + (4 << 20), under)


if __name__ == "__main__":
    unittest.main()
