"""A plain 2-D U-Net: long skip connections keep the early, large activations alive through the whole forward.

Ronneberger, Fischer, Brox, U-Net: Convolutional Networks for Biomedical Image Segmentation, MICCAI 2015; here with
batch norm and padded convolutions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UsageError


def _two_convolutions(c_in: int, c_out: int) -> nn.Module:
    layers: list[nn.Module] = []
    for c in (c_in, c_out):
        layers += [nn.Conv2d(c, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """[batch, 3, height, width] -> [batch, classes, height, width]; height and width multiples of 2^depth.

    width : channels at full resolution; they double at each of the `depth` steps down.
    """

    def __init__(self, width: int, depth: int, classes: int):
        super().__init__()
        c = [width * 2**i for i in range(depth + 1)]
        self.first = _two_convolutions(3, width)
        self.down = nn.ModuleList(_two_convolutions(c[i], c[i + 1]) for i in range(depth))
        self.enlarge = nn.ModuleList(nn.ConvTranspose2d(c[i + 1], c[i], 2, stride=2) for i in reversed(range(depth)))
        self.up = nn.ModuleList(_two_convolutions(c[i + 1], c[i]) for i in reversed(range(depth)))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(F.max_pool2d(x, 2))
        for enlarge, up in zip(self.enlarge, self.up, strict=True):
            x = up(torch.cat([skips.pop(), enlarge(x)], dim=1))
        return self.head(x)


def _load(
    batch: int = 8, *, image: int = 128, width: int = 32, depth: int = 4, classes: int = 2, input_grad: bool = False
) -> tuple[nn.Module, Tensor]:
    if image % 2**depth:
        raise UsageError(f"image={image} must be a multiple of {2**depth}, because the unet halves it {depth} times")
    return UNet(width, depth, classes), torch.rand(batch, 3, image, image, requires_grad=input_grad)


MODELS = {"unet": _load}
