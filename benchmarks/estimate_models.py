"""The models of `estimate.py`: name -> a function that returns (model, sample). Sizes are a laptop's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import more_models
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, Any]
MODELS: dict[str, Callable[[], Made]] = {}

ZOO: dict[str, dict[str, Any]] = {
    "resnet18": {"batch": 8}, "resnet50": {"batch": 4}, "vgg11": {"batch": 1}, "alexnet": {"batch": 16},
    "densenet121": {"batch": 2}, "inception_v3": {"batch": 2}, "mobilenet_v3": {"batch": 8}, "efficientnet_b4": {"batch": 1},
    "unet": {"batch": 2}, "unet3d": {"batch": 1, "image": 64}, "gpt": {"batch": 8}, "lstm": {"batch": 32}, "lstm_unrolled": {},
    "vit_b16": {"batch": 2}, "swin_b": {"batch": 1}, "convnext_b": {"batch": 1},
    "moe": {"batch": 1, "layers": 3, "d": 256, "mlp": 1024, "heads": 4, "length": 256, "vocab": 5000},
    "mamba": {"batch": 1, "layers": 3, "d": 256, "length": 512, "vocab": 5000}, "dit": {"batch": 2, "layers": 4},
    "nasnet_cifar10": {"batch": 4, "cells": 2}, "deeplabv3": {"batch": 2, "image": 128},
    "gpt2_small": {"batch": 1, "length": 128, "layers": 4}, "bert_large": {"batch": 1, "layers": 2, "length": 128},
    "t5_base": {"batch": 2, "layers": 2}, "llama_1b": {"batch": 1, "layers": 1, "length": 256, "vocab": 8000},
}  # fmt: skip
MODELS |= {name: partial(more_models.load, name, **options) for name, options in ZOO.items()}

TIMM = (
    "resnet26d", "regnety_008", "convnext_atto", "mixer_s32_224", "vit_tiny_patch16_224", "deit3_small_patch16_224",
    "swin_tiny_patch4_window7_224", "efficientnetv2_rw_t", "mobilevit_xs", "poolformer_s12", "ghostnet_100", "levit_128s",
    "coatnet_pico_rw_224", "maxvit_pico_rw_256", "hrnet_w18_small", "res2net50_14w_8s", "nfnet_l0", "xcit_nano_12_p16_224",
)  # fmt: skip


def _timm(name: str) -> Made:
    import timm

    model = timm.create_model(name, pretrained=False, drop_rate=0.1)
    size = model.pretrained_cfg["input_size"]
    return model, torch.randn(2, *size)


MODELS |= {f"timm:{name}": partial(_timm, name) for name in TIMM}

# family and head -> options of its configuration, in which None stands for the library's own
HF: dict[str, tuple[str, dict[str, Any]]] = {
    "GPTNeoX": ("ForCausalLM", {"num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 4,
                                "intermediate_size": 1024, "vocab_size": 4000}),
    "Roberta": ("ForMaskedLM", {"num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 4,
                                "intermediate_size": 1024, "vocab_size": 4000}),
    "Qwen2": ("ForCausalLM", {"num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
                              "intermediate_size": 768, "vocab_size": 4000}),
    "Mixtral": ("ForCausalLM", {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4,
                                "num_key_value_heads": 2, "intermediate_size": 256, "vocab_size": 2000}),
    "OPT": ("ForCausalLM", {"num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 4, "ffn_dim": 1024,
                            "word_embed_proj_dim": 256, "vocab_size": 4000}),
    "Electra": ("ForMaskedLM", {"num_hidden_layers": 4, "vocab_size": 4000}),
}  # fmt: skip


def _transformers(family: str) -> Made:
    import transformers

    head, options = HF[family]
    config = getattr(transformers, f"{family}Config")(**options, pad_token_id=0)
    ids = torch.randint(1, options["vocab_size"], (4, 128))
    return getattr(transformers, family + head)(config), {"input_ids": ids, "labels": ids}


MODELS |= {f"transformers:{family}": partial(_transformers, family) for family in HF}


class Tied(nn.Module):
    """A recurrent language model whose head shares the embedding's weight, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.drop = (
            nn.Embedding(5000, 256),
            nn.LSTM(256, 256, 2, batch_first=True),
            nn.Dropout(0.3),
        )
        self.head = nn.Linear(256, 5000, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        out = self.head(self.drop(self.lstm(self.drop(self.embed(ids)))[0]))
        return F.cross_entropy(out[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Denoiser(nn.Module):
    """A small U-Net with batch norm, dropout and a mean squared error."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()

        def block(a: int, b: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True), nn.Dropout2d(0.1)
            )

        self.down, self.mid, self.up = block(3, width), block(width, 2 * width), block(3 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor, clean: Tensor) -> Tensor:
        a = self.down(x)
        b = F.interpolate(self.mid(F.max_pool2d(a, 2)), scale_factor=2.0)
        return F.mse_loss(self.out(self.up(torch.cat([a, b], 1))), clean)


class FrozenTrunk(nn.Module):
    """A frozen convolutional trunk below a head that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            *(nn.Sequential(nn.Conv2d(3 if i == 0 else 48, 48, 3, padding=1), nn.GELU()) for i in range(4))
        )
        self.trunk.requires_grad_(False)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(48 * 64, 512), nn.ReLU(), nn.Linear(512, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))  # type: ignore[no-any-return]


class Gru(nn.Module):
    """A two-way GRU over a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gru = nn.Conv1d(16, 64, 5, padding=2), nn.GRU(64, 96, bidirectional=True, batch_first=True)
        self.out = nn.Linear(192, 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.conv(x).relu().transpose(1, 2))[0])  # type: ignore[no-any-return]


def _mlp() -> Made:
    layers = [nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512), nn.SiLU(), nn.Dropout(0.2)) for _ in range(8)]
    return nn.Sequential(*layers), torch.randn(256, 512)


def _encoder() -> Made:
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 3), torch.randn(8, 100, 128)


MODELS |= {
    "tied lstm": lambda: (Tied(), torch.randint(5000, (16, 64))),
    "denoiser": lambda: (Denoiser(), (torch.randn(4, 3, 96, 96), torch.randn(4, 3, 96, 96))),
    "frozen trunk": lambda: (FrozenTrunk(), torch.randn(4, 3, 64, 64)),
    "gru": lambda: (Gru(), torch.randn(16, 16, 200)),
    "mlp": _mlp,
    "transformer encoder": _encoder,
}
