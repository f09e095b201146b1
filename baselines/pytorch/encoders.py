# SPDX-License-Identifier: Apache-2.0
"""BERT and the vision transformer that Kuafu trains, of PyTorch's own encoder layers.

B batch, S sequence, H hidden, N heads, D head dim, V vocabulary. f32, tanh GELU, learned positions, biases
everywhere. Each model has `load(tensors)`, from Kuafu's names and (in, out) weights, and `loss(batch)`."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

gelu = partial(F.gelu, approximate="tanh")


def encoder_layers(plan, norm_first):
    """norm_first: norms before each branch (ViT), else after each sum (BERT)."""
    return nn.ModuleList(
        nn.TransformerEncoderLayer(plan["hidden"], plan["heads"], 4 * plan["hidden"], dropout=0.0,
                                   activation=gelu, batch_first=True, norm_first=norm_first)
        for _ in range(plan["layers"]))


class _Loader:
    """Copies tensors by name into modules and says what it lacks, or what is left."""

    def __init__(self, tensors):
        self.left = {name: t for name, t in tensors.items() if not name.startswith("batches.")}

    def take(self, name, parameter, shaped=lambda t: t):
        value = shaped(self.left.pop(name))
        if value.shape != parameter.shape:
            raise ValueError(f"{name} is {tuple(value.shape)}, the model's is {tuple(parameter.shape)}")
        with torch.no_grad():
            parameter.copy_(value)

    def linear(self, name, module):
        self.take(name + ".weight", module.weight, torch.t)
        self.take(name + ".bias", module.bias)

    def norm(self, name, module):
        self.take(name + ".weight", module.weight)
        self.take(name + ".bias", module.bias)

    def layers(self, modules, heads):
        """Kuafu's columns of q, k and v are interleaved head by head; PyTorch has all q first."""
        for i, module in enumerate(modules):
            attention, name = module.self_attn, f"blocks.{i}"
            width = attention.embed_dim

            def apart(t):
                rows = t.t() if t.dim() == 2 else t                     # (3 H, H) or (3 H)
                split = rows.reshape(heads, 3, width // heads, *rows.shape[1:])
                return split.transpose(0, 1).reshape(rows.shape)

            self.take(f"{name}.attn.qkv.weight", attention.in_proj_weight, apart)
            self.take(f"{name}.attn.qkv.bias", attention.in_proj_bias, apart)
            self.linear(f"{name}.attn.out", attention.out_proj)
            self.norm(f"{name}.norm1", module.norm1)
            self.norm(f"{name}.norm2", module.norm2)
            self.linear(f"{name}.mlp.up", module.linear1)
            self.linear(f"{name}.mlp.down", module.linear2)

    def end(self):
        if self.left:
            raise ValueError(f"the model has no {', '.join(self.left)}")


class Bert(nn.Module):
    def __init__(self, plan):
        super().__init__()
        hidden, self.heads = plan["hidden"], plan["heads"]
        self.tokens = nn.Embedding(plan["vocab"], hidden)
        self.positions = nn.Embedding(plan["sequence"], hidden)
        self.segments = nn.Embedding(2, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = encoder_layers(plan, norm_first=False)
        self.transform, self.transform_norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden)
        self.bias = nn.Parameter(torch.zeros(plan["vocab"]))
        self.pooler, self.answer = nn.Linear(hidden, hidden), nn.Linear(hidden, 2)

    def load(self, tensors):
        loader = _Loader(tensors)
        for name in ("tokens", "positions", "segments"):
            loader.take(f"embedding.{name}", getattr(self, name).weight)
        loader.norm("embedding.norm", self.norm)
        loader.layers(self.layers, self.heads)
        loader.linear("head.transform", self.transform)
        loader.norm("head.norm", self.transform_norm)
        loader.take("head.bias", self.bias)
        loader.linear("head.pooler", self.pooler)
        loader.linear("head.answer", self.answer)
        loader.end()

    def loss(self, batch):
        """Mean masked-token loss and mean next-sentence loss, added."""
        inputs = batch["inputs"]                                        # (B, S)
        x = self.tokens(inputs) + self.positions.weight + self.segments(batch["segments"])
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        y = self.transform_norm(gelu(self.transform(x)))
        logits = F.linear(y, self.tokens.weight, self.bias)             # (B, S, V)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return (F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), ignore_index=-1)
                + F.cross_entropy(self.answer(pooled), batch["labels"]))


class Vit(nn.Module):
    def __init__(self, plan):
        super().__init__()
        hidden, self.heads = plan["hidden"], plan["heads"]
        self.patches = nn.Linear(3 * plan["patch"] ** 2, hidden)
        self.token = nn.Parameter(torch.zeros(hidden))
        self.positions = nn.Embedding(plan["sequence"], hidden)
        self.layers = encoder_layers(plan, norm_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.classes = nn.Linear(hidden, plan["classes"])

    def load(self, tensors):
        loader = _Loader(tensors)
        loader.linear("embedding.patches", self.patches)
        loader.take("embedding.class", self.token)
        loader.take("embedding.positions", self.positions.weight)
        loader.layers(self.layers, self.heads)
        loader.norm("head.norm", self.norm)
        loader.linear("head.classes", self.classes)
        loader.end()

    def loss(self, batch):
        x = self.patches(batch["images"])                               # (B, S - 1, H)
        x = torch.cat([self.token.expand(len(x), 1, -1), x], dim=1) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.classes(self.norm(x[:, 0])), batch["labels"])
