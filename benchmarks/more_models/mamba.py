"""A stack of selective state-space layers at the size of Mamba-130M.

The scan is written in chunks, as matrix products with static shapes: attention with decay within a chunk, and one small
product over the states of the chunks between them. It needs no loop over the sequence and no kernel of its own.

Dao, Gu, Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space Duality, ICML
2024, arXiv:2405.21060, listing 1. Gu, Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rekindle.errors import UsageError

from .building import Sized

REACH = 4  # tokens that the short convolution reads


@dataclass(frozen=True)
class MambaSize:
    """Options of the model; by default Mamba-130M.

    layers, d : layers and channels.
    state : size of a head's state per channel.
    head : channels per head.
    chunk : tokens that the scan takes at once; divides `length`.
    length, vocab : tokens per sequence, and different tokens.
    dropout : probability after each layer.
    """

    layers: int = 24
    d: int = 768
    state: int = 128
    head: int = 64
    chunk: int = 256
    length: int = 1024
    vocab: int = 50288
    dropout: float = 0.0


def _decay(a: Tensor) -> Tensor:
    """[..., n] -> [..., n, n]: entry (i, j) is exp(a[j+1] + … + a[i]), 0 where j > i."""
    total = a.cumsum(-1)
    difference = total.unsqueeze(-1) - total.unsqueeze(-2)
    ahead = torch.ones(a.shape[-1], a.shape[-1], dtype=torch.bool, device=a.device).triu(1)
    return difference.masked_fill(ahead, -math.inf).exp()


def scan(x: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk: int) -> Tensor:
    """y[t] = c[t] · s[t], with the state s[t] = exp(a[t]) s[t-1] + b[t] x[t]ᵀ and s[-1] = 0.

    x : [batch, length, heads, p]. a : [batch, length, heads]. b, c : [batch, length, n], the same for all heads.
    chunk : divides the length. Returns [batch, length, heads, p].
    """
    x = x.unflatten(1, (-1, chunk)).permute(0, 3, 1, 2, 4)  # [batch, heads, chunks, chunk, p]
    a = a.unflatten(1, (-1, chunk)).permute(0, 3, 1, 2)  # [batch, heads, chunks, chunk]
    b, c = (t.unflatten(1, (-1, chunk)).unsqueeze(1) for t in (b, c))  # [batch, 1, chunks, chunk, n]
    total = a.cumsum(-1)
    within = (c @ b.transpose(-1, -2) * _decay(a)) @ x
    to_end = (total[..., -1:] - total).exp()
    states = b.transpose(-1, -2) @ (x * to_end.unsqueeze(-1))  # each chunk adds: [batch, heads, chunks, n, p]
    # before chunk i: the states that earlier chunks added, decayed by the chunks in between
    between = _decay(F.pad(total[..., -1], (1, 0)))[..., :-1, 1:]
    before = (between @ states.flatten(-2)).unflatten(-1, states.shape[-2:])
    y = within + (c @ before) * total.exp().unsqueeze(-1)
    return y.permute(0, 2, 3, 1, 4).flatten(1, 2)


class Mixer(nn.Module):
    """[batch, length, d] -> the same: projection, short causal convolution, scan, gate, projection.

    state : size of a head's state per channel. head : channels per head.
    """

    def __init__(self, d: int, state: int, head: int, chunk: int):
        super().__init__()
        self.inner, self.state, self.head, self.chunk = 2 * d, state, head, chunk
        heads = self.inner // head
        mixed = self.inner + 2 * state
        self.project = nn.Linear(d, self.inner + mixed + heads, bias=False)
        self.convolution = nn.Conv1d(mixed, mixed, REACH, groups=mixed, padding=REACH - 1)
        self.step_bias = nn.Parameter(torch.linspace(-4.0, -2.0, heads))
        self.log_rate = nn.Parameter(torch.linspace(1.0, 16.0, heads).log())
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm = nn.RMSNorm(self.inner)
        self.out = nn.Linear(self.inner, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, mixed, step = self.project(x).split([self.inner, self.inner + 2 * self.state, len(self.skip)], -1)
        mixed = F.silu(self.convolution(mixed.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        values, b, c = mixed.split([self.inner, self.state, self.state], -1)
        values = values.unflatten(-1, (-1, self.head))
        step = F.softplus(step + self.step_bias)
        y = scan(values * step.unsqueeze(-1), -step * self.log_rate.exp(), b, c, self.chunk)
        y = (y + values * self.skip.unsqueeze(-1)).flatten(2)
        return self.out(self.norm(y * F.silu(gate)))


class Mamba(nn.Module):
    """Tokens and targets [batch, length] -> {"loss": [], "logits": [batch, length, vocab]}."""

    def __init__(self, size: MambaSize):
        super().__init__()
        d, layers = size.d, range(size.layers)
        self.token = nn.Embedding(size.vocab, d)
        self.norms = nn.ModuleList(nn.RMSNorm(d) for _ in layers)
        self.mixers = nn.ModuleList(Mixer(d, size.state, size.head, size.chunk) for _ in layers)
        self.dropout = nn.Dropout(size.dropout)
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, size.vocab, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        self.head.weight = self.token.weight

    def forward(self, input_ids: Tensor, targets: Tensor) -> dict[str, Tensor]:
        x = self.token(input_ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + self.dropout(mixer(norm(x)))
        logits = self.head(self.norm(x))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), targets.flatten()), "logits": logits}


def _load(batch: int, size: MambaSize) -> tuple[nn.Module, dict[str, Tensor]]:
    if size.length % size.chunk:
        raise UsageError(
            f"length={size.length} must be a multiple of chunk={size.chunk}, because the scan runs in whole chunks"
        )
    if 2 * size.d % size.head:
        raise UsageError(f"head={size.head} must divide the {2 * size.d} channels inside of a layer")
    model = Mamba(size)
    ids = torch.randint(size.vocab, (batch, size.length + 1))
    return model, {"input_ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}


MODELS = {"mamba": Sized(_load, MambaSize(), batch=8)}
