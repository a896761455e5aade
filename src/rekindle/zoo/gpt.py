"""A small GPT with its loss, and the same model at the size of GPT-2."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal self-attention, [batch, length, d] -> the same shape."""

    def __init__(self, d: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.out = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.query, self.key, self.value))
        return self.out(self.attend(q, k, v, self.dropout if self.training else 0.0).transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        """Queries, keys and values [batch, heads, length, channels] -> the same shape."""
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)


class Block(nn.Module):
    """Layer norm before attention and before the MLP (four times as wide), each added to its own input."""

    def __init__(self, d: int, heads: int, dropout: float):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention = Attention(d, heads, dropout)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class GPT(nn.Module):
    """Tokens [batch, length] -> {"loss": [], "logits": [batch, length, vocab]}. Without targets it returns only the logits."""

    def __init__(self, n_layer: int, d: int, heads: int, length: int, vocab: int, dropout: float):
        super().__init__()
        self.token = nn.Embedding(vocab, d)
        self.position = nn.Embedding(length, d)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(d, heads, dropout) for _ in range(n_layer)))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.02)
        self.head.weight = self.token.weight

    def forward(self, input_ids: Tensor, targets: Tensor | None = None) -> dict[str, Tensor]:
        x = self.token(input_ids) + self.position.weight[: input_ids.shape[1]]
        logits = self.head(self.norm(self.blocks(self.dropout(x))))
        if targets is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits.flatten(0, 1), targets.flatten()), "logits": logits}


def _gpt(
    batch: int = 8, *, n_layer: int = 4, d: int = 256, heads: int = 4, length: int = 128, vocab: int = 1000,
    dropout: float = 0.1,
) -> tuple[nn.Module, dict[str, Tensor]]:  # fmt: skip
    model = GPT(n_layer, d, heads, length, vocab, dropout)
    ids = torch.randint(vocab, (batch, length + 1))
    return model, {"input_ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}


MODELS = {
    "gpt": _gpt,
    "gpt2": partial(_gpt, n_layer=12, d=768, heads=12, length=1024, vocab=50257),
}
