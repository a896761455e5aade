"""Image models of today at their published sizes: transformers and ConvNeXt from timm, the others from torchvision.

Dropout and stochastic depth are the library's defaults unless they are given (0.4 and 0.2 in EfficientNet-B4, 0.2 and
none in MobileNetV3, none and 0.1 in Swin-B, 0.5 and none in DeepLabV3; none elsewhere).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rekindle.zoo.vision import image_sample, import_library

from .building import Sized, build

Made = tuple[nn.Module, Tensor]


def _given(**options: Any) -> dict[str, Any]:
    """The options that are not None."""
    return {k: v for k, v in options.items() if v is not None}


def _timm(name: str, **keywords: Any) -> nn.Module:
    timm = import_library("timm")
    return build(lambda: timm.create_model(name, pretrained=False, **keywords))


@dataclass(frozen=True)
class ViTSize:
    """Options of a vision transformer; by default ViT-B/16.

    image : side of the images in pixels.
    layers, d, heads : blocks, channels and attention heads.
    dropout, drop_path : probabilities of dropout and of stochastic depth.
    input_grad : the sample requires a gradient.
    """

    image: int = 224
    layers: int = 12
    d: int = 768
    heads: int = 12
    classes: int = 1000
    dropout: float = 0.0
    drop_path: float = 0.0
    input_grad: bool = False


def _vit(batch: int, size: ViTSize) -> Made:
    model = _timm(
        "vit_base_patch16_224", img_size=size.image, depth=size.layers, embed_dim=size.d, num_heads=size.heads,
        num_classes=size.classes, proj_drop_rate=size.dropout, pos_drop_rate=size.dropout,
        attn_drop_rate=size.dropout, drop_path_rate=size.drop_path,
    )  # fmt: skip
    return model, image_sample(batch, size.image, size.input_grad)


@dataclass(frozen=True)
class SwinSize:
    """Options of a Swin transformer; by default Swin-B.

    image, window : sides in pixels, and in tokens.
    layers, heads : blocks and attention heads of each stage.
    d : channels of the first stage.
    dropout, drop_path : probabilities of dropout and of stochastic depth; None takes the library's.
    input_grad : the sample requires a gradient.
    """

    image: int = 224
    layers: tuple[int, ...] = (2, 2, 18, 2)
    d: int = 128
    heads: tuple[int, ...] = (4, 8, 16, 32)
    window: int = 7
    classes: int = 1000
    dropout: float = 0.0
    drop_path: float | None = None
    input_grad: bool = False


def _swin(batch: int, size: SwinSize) -> Made:
    model = _timm(
        "swin_base_patch4_window7_224", img_size=size.image, depths=tuple(size.layers), embed_dim=size.d,
        num_heads=tuple(size.heads), window_size=size.window, num_classes=size.classes, proj_drop_rate=size.dropout,
        attn_drop_rate=size.dropout, **_given(drop_path_rate=size.drop_path),
    )  # fmt: skip
    return model, image_sample(batch, size.image, size.input_grad)


def _convnext_b(
    batch: int = 64, *, image: int = 224, layers: tuple[int, ...] = (3, 3, 27, 3), d: int = 128, classes: int = 1000,
    drop_path: float = 0.0, input_grad: bool = False,
) -> Made:  # fmt: skip
    """layers : blocks of each stage. d : channels of the first stage; each stage doubles them."""
    dims = tuple(d * 2**i for i in range(len(layers)))
    model = _timm("convnext_base", depths=tuple(layers), dims=dims, num_classes=classes, drop_path_rate=drop_path)
    return model, image_sample(batch, image, input_grad)


# expansion, kernel, stride, channels in and out, blocks of each stage: EfficientNet-B0 (Tan, Le, ICML 2019, table 1)
_EFFICIENTNET = (
    (1, 3, 1, 32, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 40, 2), (6, 3, 2, 40, 80, 3), (6, 5, 1, 80, 112, 3),
    (6, 5, 2, 112, 192, 4), (6, 3, 1, 192, 320, 1),
)  # fmt: skip


def _efficientnet_b4(
    batch: int = 32, *, image: int = 380, width: float = 1.4, layers: float = 1.8, classes: int = 1000,
    dropout: float = 0.4, drop_path: float = 0.2, input_grad: bool = False,
) -> Made:  # fmt: skip
    """width, layers : channels and blocks, as multiples of EfficientNet-B0's."""
    efficientnet = import_library("torchvision.models.efficientnet")
    stages = [efficientnet.MBConvConfig(*row, width_mult=width, depth_mult=layers) for row in _EFFICIENTNET]
    model = build(
        lambda: efficientnet.EfficientNet(stages, dropout, stochastic_depth_prob=drop_path, num_classes=classes)
    )
    return model, image_sample(batch, image, input_grad)


def _mobilenet_v3(
    batch: int = 128, *, image: int = 224, width: float = 1.0, classes: int = 1000, dropout: float = 0.2,
    input_grad: bool = False,
) -> Made:  # fmt: skip
    """MobileNetV3-Large. width : channels, as a multiple of the published ones."""
    models = import_library("torchvision.models")
    model = build(
        lambda: models.mobilenet_v3_large(weights=None, width_mult=width, num_classes=classes, dropout=dropout)
    )
    return model, image_sample(batch, image, input_grad)


class _Out(nn.Module):
    """A segmentation model that returns the map of scores alone: [batch, classes, height, width]."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)["out"]


def _deeplabv3(
    batch: int = 8, *, image: int = 512, layers: tuple[int, ...] = (3, 4, 6, 3), classes: int = 21,
    dropout: float = 0.5, input_grad: bool = False,
) -> Made:  # fmt: skip
    """DeepLabV3 on ResNet-50, without the auxiliary head. layers : blocks of each stage of the ResNet."""
    deeplab = import_library("torchvision.models.segmentation.deeplabv3")
    resnet = import_library("torchvision.models.resnet")
    getter = import_library("torchvision.models._utils").IntermediateLayerGetter

    def make() -> nn.Module:
        body = resnet.ResNet(resnet.Bottleneck, list(layers), replace_stride_with_dilation=[False, True, True])
        return deeplab.DeepLabV3(getter(body, {"layer4": "out"}), deeplab.DeepLabHead(2048, classes), None)

    model = _Out(build(make))
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.p = dropout
    return model, image_sample(batch, image, input_grad)


MODELS: dict[str, Callable[..., Made]] = {
    "vit_b16": Sized(_vit, ViTSize(), batch=64),
    "swin_b": Sized(_swin, SwinSize(), batch=64),
    "convnext_b": _convnext_b,
    "efficientnet_b4": _efficientnet_b4,
    "mobilenet_v3": _mobilenet_v3,
    "deeplabv3": _deeplabv3,
}
