"""The bare stack of the small GPT's blocks, with attention written out."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rekindle.zoo.gpt import Attention, Block


class EagerAttention(Attention):
    """softmax(Q K^T) V written out, so that the [length, length] scores are values of the graph."""

    ahead: Tensor  # bool [length, length]: the tokens that a token may not see

    def __init__(self, d: int, heads: int, length: int, dropout: float):
        super().__init__(d, heads, dropout)
        ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("ahead", ahead, persistent=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        n = q.shape[-2]
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(self.ahead[:n, :n], -math.inf)
        return F.dropout(scores.softmax(-1), dropout) @ v


def _blocks(
    batch: int = 8, *, n_layer: int = 4, d: int = 256, heads: int = 4, length: int = 128, dropout: float = 0.0,
    input_grad: bool = False,
) -> tuple[nn.Module, Tensor]:  # fmt: skip
    model = nn.Sequential(*(Block(d, heads, dropout) for _ in range(n_layer)))
    for block in model:
        block.attention = EagerAttention(d, heads, length, dropout)
    return model, torch.rand(batch, length, d, requires_grad=input_grad)


MODELS = {"gpt_blocks": _blocks}
