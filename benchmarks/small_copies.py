"""Options that make large models small enough for a test. Imports no torch."""

from __future__ import annotations

from typing import Any

from rekindle.errors import UsageError

_TOKENS = {"batch": 2, "layers": 2, "d": 32, "heads": 4, "length": 32, "vocab": 61}
_LLAMA = _TOKENS | {"mlp": 80, "kv_heads": 2}
_SMALL: dict[str, dict[str, Any]] = {
    "resnet1000": {"batch": 2, "layers": 25, "width": 0.125, "image": 32, "classes": 5},
    "lstm_deep": {"batch": 16, "length": 24, "features": 6, "hidden": 8, "layers": 3},
    "gpt2_small": _TOKENS,
    "gpt2_medium": _TOKENS | {"layers": 3},
    "llama_1b": _LLAMA,
    "llama_7b": _LLAMA | {"layers": 3, "kv_heads": 4},
    "bert_large": _TOKENS,
    "t5_base": _TOKENS | {"target_length": 16},
    "vit_b16": {"batch": 8, "image": 64, "layers": 3, "d": 32, "heads": 4, "classes": 5},
    "swin_b": {"batch": 2, "image": 64, "layers": (2, 2), "d": 16, "heads": (2, 4), "window": 4, "classes": 5},
    "convnext_b": {"batch": 2, "image": 64, "layers": (1, 1, 2, 1), "d": 8, "classes": 5},
    "efficientnet_b4": {"batch": 2, "image": 64, "width": 0.25, "layers": 0.5, "classes": 5},
    "mobilenet_v3": {"batch": 2, "image": 64, "width": 0.25, "classes": 5},
    "unet": {"batch": 2, "image": 32, "width": 8, "depth": 2},
    "unet3d": {"batch": 2, "image": 16, "width": 4, "depth": 2},
    "deeplabv3": {"batch": 2, "image": 128, "layers": (1, 1, 1, 1), "classes": 5},
    "moe": _TOKENS | {"mlp": 64, "experts": 4},
    "mamba": {"batch": 2, "layers": 2, "d": 32, "state": 8, "head": 16, "chunk": 8, "length": 32, "vocab": 61},
    "dit": {"batch": 2, "layers": 2, "d": 32, "heads": 4, "image": 8, "classes": 5},
}


def small(name: str) -> dict[str, Any]:
    """Options of `load`, batch included, for a small copy of a deep or modern model: it has every kind of layer, but fewer and
    narrower ones, and its step takes well under a second on a CPU.

    Raises
    ------
    UsageError : this model has no small copy.
    """
    if name not in _SMALL:
        raise UsageError(f"model {name!r} has no small copy; these have: {', '.join(_SMALL)}")
    return dict(_SMALL[name])
