"""A transformer whose MLPs are mixtures of experts, two experts per token.

Tokens reach their experts by products with one-hot masks, into a fixed number of places per expert (its capacity); tokens
that find no place are passed over. So every shape is known beforehand, whatever the router chooses. Gathering the tokens
of each expert by index, as libraries do, makes shapes depend on the data, and no plan could be made for such a step.

Lepikhin et al., GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding, ICLR 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rekindle.zoo.gpt import Attention

from .building import Sized

BALANCE = 0.01  # weight of the balancing loss beside the loss of the tokens


@dataclass(frozen=True)
class MoESize:
    """Options of the model.

    layers, d, heads : blocks, channels and attention heads.
    length, vocab : tokens per sequence, and different tokens.
    mlp, experts : channels inside an expert, and experts per block.
    capacity : see `Experts`.
    dropout : probability, in attention and after each part of a block.
    """

    layers: int = 12
    d: int = 768
    heads: int = 12
    length: int = 1024
    mlp: int = 3072
    experts: int = 8
    capacity: float = 1.25
    vocab: int = 50257
    dropout: float = 0.0


class Experts(nn.Module):
    """[batch, length, d] -> (the same shape, the loss that balances the experts []). Each sequence is a group of its own.

    capacity : places of one expert in one group, as a multiple of the places needed if the router chose all experts equally
        often.
    """

    def __init__(self, d: int, mlp: int, experts: int, capacity: float):
        super().__init__()
        self.experts, self.capacity = experts, capacity
        self.router = nn.Linear(d, experts, bias=False)
        self.wide = nn.Parameter(torch.randn(experts, d, mlp) / math.sqrt(d))
        self.narrow = nn.Parameter(torch.randn(experts, mlp, d) / math.sqrt(mlp))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        combine, balance = self._route(x)
        there = torch.einsum("gsec,gsd->egcd", (combine > 0).to(x.dtype), x)
        y = F.gelu(there.flatten(1, 2) @ self.wide) @ self.narrow
        return torch.einsum("gsec,egcd->gsd", combine, y.unflatten(1, there.shape[1:3])), balance

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weight of each expert's place for each token [groups, tokens, experts, places], and the balancing loss."""
        shares = self.router(x).softmax(-1)
        top, chosen = shares.topk(2, dim=-1)
        top = top / top.sum(-1, keepdim=True)
        places = math.ceil(2 * x.shape[1] / self.experts * self.capacity)
        expert = torch.arange(self.experts, device=x.device)
        place = torch.arange(places, device=x.device)
        combine: Tensor | None = None
        taken: Tensor | int = 0
        for k in range(2):
            mask = (chosen[..., k, None] == expert).to(x.dtype)  # [groups, tokens, experts]
            position = mask.cumsum(1) - 1 + taken
            taken = taken + mask.sum(1, keepdim=True)
            spot = (position.unsqueeze(-1) == place).to(x.dtype) * mask.unsqueeze(-1)
            part = top[..., k, None, None] * spot
            combine = part if combine is None else combine + part
        first = (chosen[..., :1] == expert).to(x.dtype)
        assert combine is not None
        return combine, self.experts * (first.mean((0, 1)) * shares.mean((0, 1))).sum()


class Block(nn.Module):
    """Layer norm before attention and before the experts, each added to its own input."""

    def __init__(self, size: MoESize):
        super().__init__()
        self.attention_norm, self.experts_norm = nn.LayerNorm(size.d), nn.LayerNorm(size.d)
        self.attention = Attention(size.d, size.heads, size.dropout)
        self.experts = Experts(size.d, size.mlp, size.experts, size.capacity)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        y, balance = self.experts(self.experts_norm(x))
        return x + self.dropout(y), balance


class MixtureOfExperts(nn.Module):
    """Tokens and targets [batch, length] -> {"loss": [], "logits": [batch, length, vocab]}."""

    def __init__(self, size: MoESize):
        super().__init__()
        self.token, self.position = nn.Embedding(size.vocab, size.d), nn.Embedding(size.length, size.d)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.d), nn.Linear(size.d, size.vocab, bias=False)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, input_ids: Tensor, targets: Tensor) -> dict[str, Tensor]:
        x = self.token(input_ids) + self.position.weight[: input_ids.shape[1]]
        balance = x.new_zeros(())
        for block in self.blocks:
            x, more = block(x)
            balance = balance + more
        logits = self.head(self.norm(x))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return {"loss": loss + BALANCE * balance / len(self.blocks), "logits": logits}


def _load(batch: int, size: MoESize) -> tuple[nn.Module, dict[str, Tensor]]:
    model = MixtureOfExperts(size)
    ids = torch.randint(size.vocab, (batch, size.length + 1))
    return model, {"input_ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}


MODELS = {"moe": Sized(_load, MoESize(), batch=8)}
