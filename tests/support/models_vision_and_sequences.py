"""Small convolutional, recurrent and attention models."""

from __future__ import annotations

import more_models
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rekindle.zoo as zoo
from model_tables import Made, Mean, entry


@entry
def cnn() -> Made:
    def block(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.Dropout(0.2)]

    body = nn.Sequential(*block(3, 8), *block(8, 8), nn.MaxPool2d(2), *block(8, 16), nn.Flatten(), nn.Linear(1024, 5))
    return Mean(body), torch.rand(4, 3, 16, 16)


@entry
def unet() -> Made:
    model, sample = zoo.load("unet", 2, image=16, width=8, depth=2)
    return model, sample


@entry
def unet_with_input_gradient() -> Made:
    model, sample = zoo.load("unet", 2, image=16, width=8, depth=2, input_grad=True)
    return Mean(model), sample


@entry
def inplace_cnn() -> Made:
    """ReLU and residual additions in place, and a block with BatchNorm that runs twice."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, padding=1)
            self.shared, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for _ in range(2):
                y = self.shared(x)
                y += x
                x = F.relu(self.norm(y).mul_(0.5), inplace=True)
            x = self.stem.weight.sum() * x
            return F.hardswish(x.add_(0.1), inplace=True).square().mean()

    return Net(), torch.rand(4, 3, 16, 16)


@entry
def depthwise_channels_last() -> Made:
    body = nn.Sequential(
        nn.Conv2d(4, 16, 3, padding=1, groups=4), nn.BatchNorm2d(16), nn.SiLU(inplace=True),
        nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.Hardtanh(0, 6, inplace=True),
        nn.Conv2d(16, 8, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip
    model = Mean(body).to(memory_format=torch.channels_last)
    return model, torch.rand(4, 4, 16, 16).to(memory_format=torch.channels_last)


@entry
def other_norms() -> Made:
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True), nn.LeakyReLU(0.1, inplace=True),
        nn.ConvTranspose2d(8, 4, 2, stride=2), nn.LocalResponseNorm(2), nn.Softplus(), nn.PixelUnshuffle(2),
        nn.Conv2d(16, 4, 3), nn.LayerNorm([4, 14, 14]), nn.PReLU(),
    )  # fmt: skip
    return Mean(body), torch.rand(2, 3, 16, 16)


@entry
def random_layers() -> Made:
    """Every kind of noise, inside and between the layers."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            self.drop2d, self.alpha = nn.Dropout2d(0.3), nn.AlphaDropout(0.2)
            self.rrelu = nn.RReLU()

        def forward(self, x: Tensor) -> Tensor:
            x = x + 0.1 * torch.randn_like(x)
            x = self.drop2d(self.rrelu(self.a(x)))
            keep = torch.bernoulli(x.new_full((x.shape[0], 1, 1, 1), 0.8))  # stochastic depth
            x = x + keep * self.alpha(self.b(x).tanh())
            gate = F.gumbel_softmax(x.flatten(2).mean(2), tau=0.7)
            noise = torch.empty_like(gate).uniform_(-0.01, 0.01) + torch.rand(gate.shape, device=x.device)
            return (x * (gate + noise)[:, :, None, None]).square().mean()

    return Net(), torch.rand(4, 3, 16, 16)


@entry
def frozen_backbone() -> Made:
    """Early layers and one late weight frozen; BatchNorm still follows the data, as is often forgotten."""
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
        nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(8, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(2048, 4),
    )  # fmt: skip
    body[:5].requires_grad_(False)
    body[10].weight.requires_grad_(False)
    return Mean(body), torch.rand(4, 3, 16, 16)


@entry
def gpt() -> Made:
    return zoo.load("gpt", 2, n_layer=2, d=32, heads=2, length=32, vocab=60, dropout=0.1)


@entry
def lstm_unrolled() -> Made:
    model, sample = more_models.load("lstm_unrolled", 8, length=12, features=16, hidden=32)
    return Mean(model), sample


@entry
def lstm_fused() -> Made:
    model, sample = more_models.load("lstm", 8, length=12, features=16, hidden=32, layers=1)
    return Mean(model), sample


@entry
def lstm_bidirectional() -> Made:
    return Mean(nn.LSTM(16, 24, 2, bidirectional=True, dropout=0.2)), torch.rand(12, 8, 16)


@entry
def gru() -> Made:
    return Mean(nn.GRU(16, 24, 2, batch_first=True, dropout=0.2)), torch.rand(8, 12, 16, requires_grad=True)


@entry
def rnn_cells() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.gru = nn.RNNCell(16, 24), nn.GRUCell(24, 24)

        def forward(self, x: Tensor) -> Tensor:
            h = g = x.new_zeros(x.shape[0], 24)
            losses = []
            for step in x.unbind(1):
                h = self.cell(step, h)
                g = self.gru(h, g)
                losses.append(g.square().mean())
            return torch.stack(losses).mean()

    return Net(), torch.rand(16, 10, 16)


@entry
def attention() -> Made:
    """nn.MultiheadAttention with its weights, a key padding mask and dropout."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True, add_bias_kv=True)

        def forward(self, x: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
            y, weights = self.attention(x, x, x, key_padding_mask=padding)
            return y.square().mean() + weights.square().sum(), weights

    padding = torch.zeros(4, 24, dtype=torch.bool)
    padding[:, 20:] = True
    return Net(), (torch.rand(4, 24, 16), padding)


@entry
def transformer_encoder() -> Made:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, activation="gelu")
    return Mean(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)), torch.rand(4, 24, 16)


@entry
def transformer() -> Made:
    model = nn.Transformer(16, 2, 1, 1, 32, dropout=0.1, batch_first=True)
    return Mean(model), (torch.rand(4, 16, 16), torch.rand(4, 12, 16))


@entry
def embedding_bags() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(50, 32, mode="mean")
            self.top = nn.EmbeddingBag(50, 32, mode="sum", padding_idx=0)
            self.one = nn.Embedding(50, 32, padding_idx=0)
            self.head = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
            per = self.one(ids).cumsum(0)[offsets]
            x = torch.cat([self.bag(ids, offsets), self.top(ids, offsets), per], 1)
            return F.binary_cross_entropy_with_logits(self.head(x).squeeze(1), torch.ones(len(offsets)))

    return Net(), (torch.randint(50, (256,)), torch.arange(0, 256, 4))
