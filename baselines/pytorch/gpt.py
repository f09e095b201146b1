# SPDX-License-Identifier: Apache-2.0
"""The model that Kuafu trains, in plain PyTorch: a GPT-2 style decoder over bytes.

B batch, S sequence, H hidden, N heads, D head dim, V vocabulary. Learned positions, pre-norm, biases
everywhere, tanh GELU, output tied to the embedding: 12 H^2 + 13 H parameters a layer. f32."""

import torch
from torch import nn
from torch.nn import functional as F

import start

VOCABULARY = 256


class Attention(nn.Module):
    """Causal self-attention; q, k and v are interleaved per head, so that a slice of the columns of
    `qkv` is whole heads: the local number of heads follows from the width that arrives."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.head_dim = hidden // heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x):                                           # (B, S, H)
        batch, sequence, _ = x.shape
        qkv = self.qkv(x).view(batch, sequence, -1, 3 * self.head_dim).transpose(1, 2)
        q, k, v = qkv.chunk(3, dim=-1)                              # (B, N local, S, D)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, sequence, -1))


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.norm2 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x):                                           # (B, S, H)
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, hidden, heads, sequence):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, hidden)
        self.positions = nn.Embedding(sequence, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)
        self.apply(self._initialise)
        self.tie()

    def tie(self):
        self.head.weight = self.tokens.weight

    @staticmethod
    def _initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens):                                      # (B, S) -> logits (B, S, V)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(options, count=8):
    """`count` global batches of seeded random bytes, or those of --start: [(tokens, targets)], each
    (B, S)."""
    if options.start:
        return start.batches(options.start)
    generator = torch.Generator().manual_seed(options.seed)
    shape = (options.batch, options.sequence + 1)
    made = [torch.randint(VOCABULARY, shape, generator=generator) for _ in range(count)]
    return [(m[:, :-1].contiguous(), m[:, 1:].contiguous()) for m in made]


def made(options):
    """The model of the options; with --start, its parameters are those of that file."""
    model = Gpt(options.layers, options.hidden, options.heads, options.sequence)
    if options.start:
        start.load(model, options.start)
    return model


def share(options, rank):
    """A rank's part of every global batch."""
    if options.batch % options.ranks:
        raise ValueError(f"--batch {options.batch} does not divide among {options.ranks} ranks")
    each = options.batch // options.ranks
    mine = slice(rank * each, (rank + 1) * each)
    return [(tokens[mine].contiguous(), targets[mine].contiguous())
            for tokens, targets in batches(options)]


def adamw_values(options):
    """The values of Kuafu's default plan; `implementation` picks PyTorch's loop."""
    chosen = {} if options.implementation == "default" else {options.implementation: True}
    return {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, **chosen}


def adamw(parameters, options):
    return torch.optim.AdamW(parameters, **adamw_values(options))


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def loss_function(model, options):
    """(tokens, targets) -> loss; with --compile through torch.compile, and so is its backward."""
    def loss(tokens, targets):
        return loss_of(model(tokens), targets)
    return torch.compile(loss) if options.compile else loss
