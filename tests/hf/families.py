# SPDX-License-Identifier: Apache-2.0
"""Random tiny models of the families that `kuafu import --format hf` reads, made by transformers, and what they say in f64."""
import contextlib
import math
import os
import sys

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
import torch
import transformers
from transformers.models.llama import modeling_llama

sys.path.insert(0, os.path.join(os.environ["KUAFU_SOURCE_DIR"], "tests", "checkpoint"))
import format_test as page

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)

SEQUENCE, BATCH, WIDTH, LAYERS, HEADS, RATE = 24, 4, 24, 2, 4, 0.25
TEXT = {"vocab_size": 256, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
USUAL = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}


def gpt2(**more):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        **TEXT, n_positions=SEQUENCE, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **more))


def opt(**more):
    return transformers.OPTForCausalLM(transformers.OPTConfig(
        **{**TEXT, **USUAL, "pad_token_id": 1}, max_position_embeddings=SEQUENCE, ffn_dim=40, dropout=0,
        **{"word_embed_proj_dim": WIDTH, **more}))


def llama(**more):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **TEXT, **USUAL, max_position_embeddings=SEQUENCE, intermediate_size=40, **more))


def bert(**more):
    return transformers.BertForPreTraining(transformers.BertConfig(
        **{**TEXT, **USUAL, "vocab_size": 259}, max_position_embeddings=SEQUENCE, intermediate_size=40, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0, **more))


def vit(**more):
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        **USUAL, intermediate_size=40, image_size=12, patch_size=4, num_labels=5, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0, **more))


FAMILIES = {
    "gpt2": gpt2,
    "gpt2-untied": lambda: gpt2(tie_word_embeddings=False, activation_function="gelu", n_inner=40, layer_norm_epsilon=1e-3),
    "opt": opt,
    "opt-350m": lambda: opt(do_layer_norm_before=False, word_embed_proj_dim=8),
    "llama": lambda: llama(rope_parameters={"rope_type": "default", "rope_theta": 300.0}, rms_norm_eps=1e-3),
    "llama-grouped": lambda: llama(num_key_value_heads=2, tie_word_embeddings=True),
    "bert": bert,
    "vit": vit,
}


def make(name, seed=1):
    """Every parameter random, biases and norms too: a place that is read wrongly shows."""
    torch.manual_seed(seed)
    model = FAMILIES[name]().double()
    for parameter_name, parameter in model.named_parameters():
        is_norm = parameter.dim() == 1 and parameter_name.endswith("weight")
        parameter.data.normal_(1.0 if is_norm else 0.0, 0.2)
    return model.eval()


def corpus(name):
    """Bytes whose windows of a sample are all one, and that window."""
    length = SEQUENCE - 3 if name == "bert" else SEQUENCE
    window = [97 + (7 * i * i + 3 * i) % 26 for i in range(length)]
    return bytes(window * 64), window


def settings(name, path):
    """The rest of the plan: one step of plain descent over the samples of `loss`."""
    own = ["train.batch=4", "train.steps=1", "train.validation_batches=0", "train.seed=0", "optimizer.kind=sgd",
           "optimizer.momentum=0", "optimizer.weight_decay=0", "optimizer.clip=0", f"optimizer.lr={RATE}"]
    return own + (["data.kind=synthetic"] if name == "vit" else ["data.kind=text", "data.path=" + path])


class FullPrecision(contextlib.ExitStack):
    """LLaMA as its formulas are: transformers takes angles and mean squares in f32 whatever the model's type."""

    def __enter__(self):
        super().__enter__()

        def norm(own, x):
            return own.weight * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + own.variance_epsilon)

        def rotary(own, x, position_ids=None, **_):
            base, width = own.config.rope_parameters["rope_theta"], WIDTH // HEADS
            turns = base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
            angles = torch.cat(2 * [position_ids[..., None].to(x.dtype) * turns], -1)
            return angles.cos(), angles.sin()

        for owner, by in ((modeling_llama.LlamaRMSNorm, norm), (modeling_llama.LlamaRotaryEmbedding, rotary)):
            self.callback(setattr, owner, "forward", owner.forward)
            owner.forward = by
        return self


def images(model):
    c = model.config
    ours = {"image": c.image_size, "patch": c.patch_size, "classes": c.num_labels}
    drawn = [page.image(ours, i, "train") for i in range(BATCH)]
    side, p = c.image_size // c.patch_size, c.patch_size
    pixels = [torch.tensor(patches).reshape(side, side, p, p, 3).permute(4, 0, 2, 1, 3).reshape(3, c.image_size, c.image_size)
              for patches, _ in drawn]
    return torch.stack(pixels), torch.tensor([label for _, label in drawn])


def logits_and_loss(name, model):
    """All logits, and the loss of the step's samples, in the model's type."""
    surprise, (_, window) = torch.nn.functional.cross_entropy, corpus(name)
    if name == "vit":
        pixels, labels = images(model)
        logits = model(pixel_values=pixels.to(model.dtype)).logits
        return [logits], surprise(logits, labels)
    if name == "bert":
        ours = {"sequence": SEQUENCE, "vocab": model.config.vocab_size}
        tokens, targets, segments, label = (torch.tensor(x) for x in zip(*(page.pair(ours, i, window) for i in range(BATCH))))
        out = model(input_ids=tokens, token_type_ids=segments)
        words, answer = out.prediction_logits, out.seq_relationship_logits
        return [words, answer], surprise(words.flatten(0, 1), targets.flatten(), ignore_index=-1) + surprise(answer, label)
    tokens, targets = torch.tensor([window]), torch.tensor([*window[1:], window[0]])
    logits = model(input_ids=tokens).logits
    return [logits], surprise(logits[0], targets)


def stepped(name, model):
    """The loss, and every parameter after the step, of a copy in f64."""
    model = model.double()
    _, loss = logits_and_loss(name, model)
    loss.backward()
    after = {n: (p - RATE * p.grad).detach() for n, p in model.named_parameters()}
    return loss.item(), after


def roundings(name):
    """Terms that are added up one behind the other from input to loss: sums of products, norms, attention, the vocabulary."""
    ffn = 4 * WIDTH if name == "gpt2" else 40
    layer = 2 * WIDTH + 3 * WIDTH + ffn + WIDTH // HEADS + SEQUENCE
    return LAYERS * layer + 2 * WIDTH + 256


def bound(name, epsilon):
    """Of a relative difference: errors of n roundings add up as their root where they are random; 8 for the two programs'
    own paths and for sums that cancel."""
    return 8 * epsilon * math.sqrt(roundings(name))
