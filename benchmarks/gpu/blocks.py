"""What people do by hand today: `torch.utils.checkpoint` around every block of a model.

Chen, Xu, Zhang, Guestrin, Training Deep Nets with Sublinear Memory Cost, 2016, arXiv:1604.06174.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# classes of blocks in torchvision, timm, transformers and the zoo
BLOCK = re.compile(r"BasicBlock|Bottleneck|_DenseLayer|Inception[A-E]|Cell|Block|EncoderBlock|GPT2Block|ViTLayer")


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The outermost submodules that are blocks, in order."""
    found: list[nn.Module] = []

    def look(m: nn.Module) -> None:
        for child in m.children():
            if BLOCK.fullmatch(type(child).__name__):
                found.append(child)
            else:
                look(child)

    look(model)
    return found


def segments_of(layers: nn.Sequential) -> list[nn.Sequential]:
    """A plain stack of layers, cut after every pooling."""
    cut: list[list[nn.Module]] = [[]]
    for layer in layers:
        cut[-1].append(layer)
        if isinstance(layer, nn.MaxPool2d):
            cut.append([])
    return [nn.Sequential(*part) for part in cut if part]


@contextmanager
def checkpointed(model: nn.Module) -> Iterator[int]:
    """Every block recomputes in backward, inside; gives how many there are (0: none was recognised).

    A model without blocks whose `features` are a plain stack (AlexNet, VGG) is cut after every pooling.
    """
    patched: list[nn.Module] = blocks_of(model)
    for m in patched:
        m.__dict__["forward"] = partial(_by_checkpoint, m.forward)
    count = len(patched)
    features = getattr(model, "features", None)
    if not patched and isinstance(features, nn.Sequential):
        segments = segments_of(features)
        features.__dict__["forward"] = partial(_in_segments, segments)
        patched, count = [features], len(segments)
    try:
        yield count
    finally:
        for m in patched:
            del m.__dict__["forward"]


def _by_checkpoint(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A list of tensors (DenseNet's) goes in as it is now: its owner appends to it before backward reads it again."""
    args = tuple(list(a) if isinstance(a, list) else a for a in args)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _in_segments(segments: list[nn.Sequential], x: Tensor) -> Any:
    for segment in segments:
        x = checkpoint(segment, x, use_reentrant=False)
    return x
