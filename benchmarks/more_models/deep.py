"""The 1000-layer ResNet: bottleneck units with pre-activation, from timm.

Chen, Xu, Zhang, Guestrin, Training Deep Nets with Sublinear Memory Cost, 2016, arXiv:1604.06174; units as in He et al.,
Identity Mappings in Deep Residual Networks, ECCV 2016.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rekindle.errors import UsageError
from rekindle.zoo.vision import import_library

from .building import build

STAGES = 4


def units(layers: int) -> tuple[int, ...]:
    """Bottleneck units in each stage, so that their convolutions (three each) and the stem's are `layers` in all.

    The paper deepens every stage and does not tell by how much. With the same number in all stages, a plain step of 1000
    layers holds 48 GB at batch 32 and 224², as the paper reports.
    """
    each, more = divmod((layers - 1) // 3, STAGES)
    return tuple(each + (stage < more) for stage in range(STAGES))


def _resnet(
    batch: int = 32, *, layers: int = 1000, width: float = 1.0, image: int = 224, classes: int = 1000,
    input_grad: bool = False,
) -> tuple[nn.Module, Tensor]:  # fmt: skip
    if layers < 1 + 3 * STAGES:
        raise UsageError(
            f"layers={layers} must be at least {1 + 3 * STAGES}: the stem and a unit of three in each stage"
        )
    timm = import_library("timm.models.resnetv2")
    channels = tuple(int(c * width) for c in (256, 512, 1024, 2048))
    model = build(
        lambda: timm.ResNetV2(
            units(layers), channels, classes, stem_chs=int(64 * width), conv_layer=timm.create_conv2d,
            norm_layer=timm.BatchNormAct2d,
        )
    )  # fmt: skip
    return model, torch.rand(batch, 3, image, image, requires_grad=input_grad)


MODELS = {"resnet1000": _resnet}
