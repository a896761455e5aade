"""A diffusion transformer, DiT-B/2, with its loss: the squared error of the noise that it predicts.

Peebles, Xie, Scalable Diffusion Models with Transformers, ICCV 2023, arXiv:2212.09748. The projections that make scales,
shifts and gates start at random here, not at zero: through gates of zero no gradient reaches the blocks in the first step,
so a parity check of that step would show nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rekindle.errors import UsageError

from .building import Sized

TIME_WAVES = 256  # sines and cosines of the time
MOST_TIME = 1000  # steps of the diffusion


def _waves(position: Tensor, size: int) -> Tensor:
    """Sines and cosines of a position at `size` / 2 frequencies each: [...] -> [..., size]."""
    frequency = torch.exp(-math.log(10000.0) / (size // 2) * torch.arange(size // 2, device=position.device))
    angle = position.unsqueeze(-1) * frequency
    return torch.cat([angle.cos(), angle.sin()], -1)


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


@dataclass(frozen=True)
class DiTSize:
    """Options of the model; by default DiT-B/2.

    layers, d, heads : blocks, channels and attention heads.
    image : side of the latents; 32 belongs to an image of 256².
    patch : side of the square of latents that becomes a token.
    channels, classes : of the latents, and of the labels.
    dropout : probability, in attention and after each MLP.
    """

    layers: int = 12
    d: int = 768
    heads: int = 12
    image: int = 32
    patch: int = 2
    channels: int = 4
    classes: int = 1000
    dropout: float = 0.0


class Block(nn.Module):
    """Tokens [batch, tokens, d] and condition [batch, d] -> tokens: attention and MLP between adaptive layer norms."""

    def __init__(self, d: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.p = heads, dropout
        self.attention_norm, self.mlp_norm = (nn.LayerNorm(d, elementwise_affine=False) for _ in range(2))
        self.condition = nn.Linear(d, 6 * d)
        self.query_key_value, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU("tanh"), nn.Linear(4 * d, d), nn.Dropout(dropout))

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0)
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.condition(F.silu(condition)).chunk(6, -1)
        x = x + gate.unsqueeze(1) * self.attention(_modulated(self.attention_norm(x), shift, scale))
        return x + mlp_gate.unsqueeze(1) * self.mlp(_modulated(self.mlp_norm(x), mlp_shift, mlp_scale))


class DiffusionTransformer(nn.Module):
    """Noisy latents [batch, channels, image, image], time [batch] in [0, 1000), class [batch], and the noise in the latents
    -> {"loss": [], "noise": the noise that the model predicts}."""

    places: Tensor  # [tokens, d]: the place of a token in the image, as waves of its row and column

    def __init__(self, size: DiTSize):
        super().__init__()
        self.side, self.patch, d = size.image // size.patch, size.patch, size.d
        self.patches = nn.Conv2d(size.channels, d, size.patch, stride=size.patch)
        at = torch.arange(self.side)
        row, column = (t.flatten() for t in torch.meshgrid(at, at, indexing="ij"))
        self.register_buffer("places", torch.cat([_waves(row, d // 2), _waves(column, d // 2)], -1), persistent=False)
        self.time = nn.Sequential(nn.Linear(TIME_WAVES, d), nn.SiLU(), nn.Linear(d, d))
        self.label = nn.Embedding(size.classes, d)
        self.blocks = nn.ModuleList(Block(d, size.heads, size.dropout) for _ in range(size.layers))
        self.norm, self.condition = nn.LayerNorm(d, elementwise_affine=False), nn.Linear(d, 2 * d)
        self.head = nn.Linear(d, size.patch * size.patch * size.channels)

    def forward(self, latents: Tensor, time: Tensor, label: Tensor, noise: Tensor) -> dict[str, Tensor]:
        condition = self.time(_waves(time, TIME_WAVES)) + self.label(label)
        x = self.patches(latents).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.condition(F.silu(condition)).chunk(2, -1)
        x = self.head(_modulated(self.norm(x), shift, scale))
        x = x.unflatten(-1, (self.patch, self.patch, -1)).unflatten(1, (self.side, self.side))
        x = x.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
        return {"loss": F.mse_loss(x, noise), "noise": x}


def _load(batch: int, size: DiTSize) -> tuple[nn.Module, dict[str, Tensor]]:
    if size.image % size.patch or size.d % 4:
        raise UsageError(f"image={size.image} must be a multiple of patch={size.patch}, and d={size.d} one of 4")
    shape = (batch, size.channels, size.image, size.image)
    return DiffusionTransformer(size), {
        "latents": torch.randn(shape),
        "time": torch.rand(batch) * MOST_TIME,
        "label": torch.randint(size.classes, (batch,)),
        "noise": torch.randn(shape),
    }


MODELS = {"dit": Sized(_load, DiTSize(), batch=64)}
