"""Where a user would put `torch.utils.checkpoint`: the repeated blocks of a model, found without knowing the model.

A *level* is what lies under a module once containers (ModuleList, ModuleDict and what derives from them, plain
Sequential) are looked through: of a ResNet its first convolution, all residual blocks of all four stages, its
classifier. From the model downwards, the first level at which some class of composite module occurs at least twice is
taken; what repeats there are the blocks: residual blocks, dense layers, a transformer's layers, cells. Exceptions:

- A module that occurs once at its level, or a *stage*, is no block, and its own level is looked at in turn. A stage holds
  a container in which a class of modules repeats that are composed of composite modules themselves (the stages of a Swin
  transformer, the two stacks of T5). An inverted residual, which holds a Sequential of convolution-and-norm units, is a
  block, and so is a layer with a list of experts.
- Leaves are no blocks: a VGG has none. But a list of plain Sequentials of leaves, as in many a U-Net, is a list of blocks,
  and so are the plain Sequentials beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks in the order in which they stand in the model; none lies within another."""
    return list({id(b): b for b in _blocks(model)}.values())


def chain_of_leaves(model: nn.Module) -> nn.Sequential | None:
    """The plain Sequential with most elements, at least four, such as the convolutions of a VGG; None without one."""
    chains = [m for m in model.modules() if type(m) is nn.Sequential and len(m) >= 4]
    return max(chains, key=len, default=None)


def _blocks(m: nn.Module) -> Iterator[nn.Module]:
    level = list(_level(m))
    if any(type(x) is nn.Sequential for x in level):  # those beside the list are blocks of the same kind
        level += [x for x in m.children() if type(x) is nn.Sequential and _of_leaves(x)]
    counts = Counter(type(x) for x in level)
    for x in level:
        if counts[type(x)] > 1 and not _is_stage(x):
            yield x
        else:
            yield from _blocks(x)


def _level(m: nn.Module) -> Iterator[nn.Module]:
    """The composite modules under m, with containers looked through."""
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
