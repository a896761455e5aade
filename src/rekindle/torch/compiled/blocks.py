"""Finds the repeated blocks of any model: the modules around which a user would put `torch.utils.checkpoint`.

A *level* is the list of composite modules below a module, looking through containers (ModuleList, ModuleDict, their
subclasses, and plain Sequential). The level of a ResNet holds its residual blocks of all four stages. Starting at the model,
the search takes the first level at which some class of composite modules occurs at least twice; the repeated modules are the
blocks: residual blocks, dense layers, a transformer's layers, cells. Two rules refine this:

- A module that occurs once at its level, and a *stage*, is not a block; the search goes on inside it. A stage holds a container
  in which a class of modules repeats that are themselves made of composite modules (the stages of a Swin transformer, the two
  stacks of T5). An inverted residual, which holds a Sequential of convolution-and-norm units, is a block, and so is a layer
  with a list of experts.
- Leaves are not blocks: a VGG has none. But a list of plain Sequentials of leaves, as in many a U-Net, is a list of blocks,
  and so are the plain Sequentials beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks in the order in which the model holds them; no block lies within another."""
    return list({id(b): b for b in _blocks(model)}.values())


def chain_of_leaves(model: nn.Module) -> nn.Sequential | None:
    """The plain Sequential with most elements, such as the convolutions of a VGG; None if none has four elements."""
    chains = [m for m in model.modules() if type(m) is nn.Sequential and len(m) >= 4]
    return max(chains, key=len, default=None)


def _blocks(m: nn.Module) -> Iterator[nn.Module]:
    level = list(_level(m))
    if any(type(x) is nn.Sequential for x in level):  # the Sequentials beside the list are blocks of the same kind
        level += [x for x in m.children() if type(x) is nn.Sequential and _of_leaves(x)]
    counts = Counter(type(x) for x in level)
    for x in level:
        if counts[type(x)] > 1 and not _is_stage(x):
            yield x
        else:
            yield from _blocks(x)


def _level(m: nn.Module) -> Iterator[nn.Module]:
    """The composite modules below m, looking through containers."""
    for child in m.children():
        listed = isinstance(m, nn.ModuleList | nn.ModuleDict) and type(child) is nn.Sequential
        if listed and _of_leaves(child):
            yield child
        elif _is_container(child):
            yield from _level(child)
        elif any(True for _ in child.children()):
            yield child


def _of_leaves(m: nn.Module) -> bool:
    return not any(True for x in m.children() for _ in x.children())


def _is_container(m: nn.Module) -> bool:
    return isinstance(m, nn.ModuleList | nn.ModuleDict) or type(m) is nn.Sequential


def _is_stage(m: nn.Module) -> bool:
    for child in m.children():
        if _is_container(child):
            inside = list(_level(child))
            counts = Counter(type(x) for x in inside)
            if any(counts[type(x)] > 1 and any(True for _ in _level(x)) for x in inside):
                return True
    return False
