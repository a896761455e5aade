"""Models that cannot be captured whole: experts routed by `nonzero`, a loss that is read, LayerDrop, packed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

WORDS = 50


class Attention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        a = self.drop(torch.softmax(q @ k.transpose(-1, -2) / x.shape[-1] ** 0.5, -1))
        return self.out(a @ v)


class Expert(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Experts(nn.Module):
    """Routes each token to one expert by `nonzero`. notes : whether a list notes the calls."""

    def __init__(self, width: int, notes: bool):
        super().__init__()
        self.gate, self.notes = nn.Linear(width, 3), notes
        self.noted: list[int] = []
        self.experts = nn.ModuleList(Expert(width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.notes:
            self.noted.append(x.shape[0])
        weight, chosen = torch.softmax(self.gate(x), -1).flatten(0, -2).max(-1)
        flat = x.flatten(0, -2)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            at = (chosen == i).nonzero().squeeze(-1)
            out = out.index_add(0, at, expert(flat[at]) * weight[at].unsqueeze(-1))
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, width: int, notes: bool):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.experts = Attention(width), Experts(width, notes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.experts(self.norm2(x))


class RoutedGPT(nn.Module):
    """Routes tokens by `nonzero`, and reads its loss."""

    def __init__(self, layers: int = 2, width: int = 64, notes: bool = False):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        self.blocks = nn.ModuleList(Block(width, notes) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        loss = F.cross_entropy(self.head(h).flatten(0, 1), x.flatten())
        if loss.item() > 1e6:
            raise ValueError("the loss is large")
        return loss


class Packed(nn.Module):
    """Layers before an LSTM that reads packed sequences."""

    def __init__(self, layers: int = 2, width: int = 64):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True) for _ in range(layers)
        )
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, dropout=0.1)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        packed = nn.utils.rnn.pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return F.cross_entropy(self.head(h).flatten(0, 1), x[:, : h.shape[1]].flatten())


def words(batch: int = 4, length: int = 32) -> torch.Tensor:
    return torch.randint(0, WORDS, (batch, length))


def routed(**options: Any) -> tuple[nn.Module, Any]:
    return RoutedGPT(**options).train(), (words(),)


def packed() -> tuple[nn.Module, Any]:
    return Packed().train(), (words(), torch.tensor([32, 20, 32, 7]))


def opt(layerdrop: float = 0.3, layers: int = 2, use_cache: bool = False) -> tuple[nn.Module, Any]:
    pytest.importorskip("transformers")
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        hidden_size=64, num_attention_heads=4, ffn_dim=256, num_hidden_layers=layers, vocab_size=WORDS,
        word_embed_proj_dim=64, layerdrop=layerdrop, use_cache=use_cache, max_position_embeddings=64,
    )  # fmt: skip
    x = words()
    return OPTForCausalLM(config).train(), {"input_ids": x, "labels": x}


def m2m100(use_cache: bool) -> tuple[nn.Module, Any]:
    pytest.importorskip("transformers")
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    config = M2M100Config(
        vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64, decoder_start_token_id=1, use_cache=use_cache,
        encoder_layerdrop=0.1, decoder_layerdrop=0.1,
    )  # fmt: skip
    x = torch.randint(4, 64, (2, 12))
    return M2M100ForConditionalGeneration(config).train(), {"input_ids": x, "labels": x[:, :8].clone()}


def train(model: nn.Module, sample: Any, steps: int = 3) -> list[torch.Tensor | None]:
    """Everything that a few steps of training give: losses, gradients, buffers, random states."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    found: list[torch.Tensor | None] = []
    for _ in range(steps):
        result = model(**sample) if isinstance(sample, dict) else model(*sample)
        loss = result if isinstance(result, torch.Tensor) else result.loss
        loss.backward()
        found += [loss.detach().clone(), *(None if p.grad is None else p.grad.clone() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
        found += [*(b.clone() for b in model.buffers()), torch.get_rng_state()]
    return found


def differing(a: list[torch.Tensor | None], b: list[torch.Tensor | None]) -> int:
    """How many of the tensors are not equal bit for bit."""
    same = [x is y if x is None or y is None else torch.equal(x, y) for x, y in zip(a, b, strict=True)]
    return same.count(False)
