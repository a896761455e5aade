"""A plain U-Net for images and for volumes, whose long skip connections hold the early, large activations through the whole
forward.

Ronneberger, Fischer, Brox, U-Net: Convolutional Networks for Biomedical Image Segmentation, MICCAI 2015; Çiçek et al.,
3D U-Net, MICCAI 2016; here with batch norm and padded convolutions.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UsageError

_CONVOLUTION = {2: nn.Conv2d, 3: nn.Conv3d}
_ENLARGE = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_NORM = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_HALVE = {2: F.max_pool2d, 3: F.max_pool3d}


def _two_convolutions(dims: int, c_in: int, c_out: int) -> nn.Module:
    layers: list[nn.Module] = []
    for c in (c_in, c_out):
        layers += [_CONVOLUTION[dims](c, c_out, 3, padding=1, bias=False), _NORM[dims](c_out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """[batch, channels, *size] -> [batch, classes, *size], with 2 or 3 sizes, each a multiple of 2^depth.

    dims : 2 for images, 3 for volumes.
    width : channels at full resolution; they double at each of the `depth` steps down.
    """

    def __init__(self, dims: int, channels: int, width: int, depth: int, classes: int):
        super().__init__()
        c = [width * 2**i for i in range(depth + 1)]
        self.halve = _HALVE[dims]
        self.first = _two_convolutions(dims, channels, width)
        self.down = nn.ModuleList(_two_convolutions(dims, c[i], c[i + 1]) for i in range(depth))
        self.enlarge = nn.ModuleList(_ENLARGE[dims](c[i + 1], c[i], 2, stride=2) for i in reversed(range(depth)))
        self.up = nn.ModuleList(_two_convolutions(dims, c[i + 1], c[i]) for i in reversed(range(depth)))
        self.head = _CONVOLUTION[dims](width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(self.halve(x, 2))
        for enlarge, up in zip(self.enlarge, self.up, strict=True):
            x = up(torch.cat([skips.pop(), enlarge(x)], dim=1))
        return self.head(x)


def _load(
    dims: int, channels: int, batch: int = 8, *, image: int = 128, width: int = 32, depth: int = 4, classes: int = 2,
    input_grad: bool = False,
) -> tuple[nn.Module, Tensor]:  # fmt: skip
    if image % 2**depth:
        raise UsageError(f"image={image} must be a multiple of {2**depth}, because the unet halves it {depth} times")
    sample = torch.rand(batch, channels, *[image] * dims, requires_grad=input_grad)
    return UNet(dims, channels, width, depth, classes), sample


def _volumes(
    batch: int = 2, *, image: int = 128, width: int = 32, depth: int = 4, classes: int = 2, input_grad: bool = False
) -> tuple[nn.Module, Tensor]:
    """The model for volumes of one channel, as of a medical scan."""
    return _load(3, 1, batch, image=image, width=width, depth=depth, classes=classes, input_grad=input_grad)


MODELS = {"unet": partial(_load, 2, 3), "unet3d": _volumes}
