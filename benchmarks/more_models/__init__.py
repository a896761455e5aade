"""Models of the benchmarks and the tests beside those of the zoo; `load` builds either by name.

Asking for the names imports no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from rekindle import zoo

# file -> the names in its MODELS
FILES = {
    "gpt_blocks": ("gpt_blocks",),
    "recurrent": ("lstm_unrolled", "lstm"),
    "deep": ("resnet1000",),
    "lstm_steps": ("lstm_deep",),
    "language": ("gpt2_small", "gpt2_medium", "llama_1b", "llama_7b", "bert_large", "t5_base"),
    "images": ("vit_b16", "swin_b", "convnext_b", "efficientnet_b4", "mobilenet_v3", "deeplabv3"),
    "moe": ("moe",),
    "mamba": ("mamba",),
    "dit": ("dit",),
}
# suite of the benchmark that is not installed -> its models
SUITES: dict[str, tuple[str, ...]] = {
    "deep": (*FILES["deep"], *FILES["lstm_steps"]),
    "modern": (*FILES["language"], *FILES["images"][:-1], "unet", "unet3d", "deeplabv3", "moe", "mamba", "dit"),
}


def names() -> list[str]:
    """All names that `load` takes."""
    return [*zoo.names(), *(name for family in FILES.values() for name in family)]


def load(
    name: str, batch: int | None = None, *, seed: int = 0, fake: bool = False, train: bool = True, **options: Any
) -> tuple[Any, Any]:
    """As `rekindle.zoo.load`, with the models of this folder too."""
    file = next((file for file, family in FILES.items() if name in family), None)
    make = zoo.maker(name) if file is None else importlib.import_module(f".{file}", __name__).MODELS[name]
    return zoo.built(name, make, batch, seed=seed, fake=fake, train=train, options=options)
