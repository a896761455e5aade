"""QUESTIONS"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

LARGEST = 2**26  # elements of what is computed for an answer


class Input(NamedTuple):
    """The input of that number."""

    number: int


class Result(NamedTuple):
    """One result of a step; steps count from the first."""

    step: int
    which: int


class Like(NamedTuple):
    """A tensor of which shape and type alone matter."""

    shape: tuple[int, ...]
    dtype: torch.dtype


RecordedOp = tuple[Any, Any]  # an op and its (args, kwargs), with the three above in the place of tensors


@dataclass(frozen=True)
class Question:
    """What forward asked about its inputs, and what was answered. steps : how to answer it again; the last one asks."""

    steps: tuple[RecordedOp, ...]
    answer: bool

    def same(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether it would get the same answer with these inputs."""
        if any(isinstance(t, FakeTensor) for t in tensors):
            return False  # nobody can tell
        with torch.no_grad():
            return bool(self.answer == result_of(self.steps, tensors))


def result_of(steps: Sequence[RecordedOp], tensors: Sequence[torch.Tensor], elsewhere: bool = False) -> Any:
    """What the last step gives. elsewhere : on the CPU, whatever device it was to be on; integers are the same."""
    done: list[Any] = []

    def real(x: Any) -> Any:
        if isinstance(x, Input):
            return tensors[x.number]
        if isinstance(x, Result):
            made = done[x.step]
            return made[x.which] if isinstance(made, tuple | list) else made
        if isinstance(x, Like):
            return torch.empty(x.shape, dtype=x.dtype, device="meta")
        return torch.device("cpu") if elsewhere and isinstance(x, torch.device) else x

    for op, taken in steps:
        args, kwargs = pytree.tree_map(real, taken, is_leaf=is_reference)
        done.append(op(*args, **kwargs))
    return done[-1]


def is_reference(x: Any) -> bool:
    return isinstance(x, Input | Result | Like)


def needed_ops(steps: Sequence[RecordedOp]) -> list[int]:
    """The steps that the last one needs, in order."""
    needed = {len(steps) - 1}
    for i in range(len(steps) - 1, -1, -1):
        if i in needed:
            needed |= {x.step for x in pytree.tree_leaves(steps[i][1], is_leaf=is_reference) if isinstance(x, Result)}
    return sorted(needed)


def extracted(steps: Sequence[RecordedOp], needed: Sequence[int]) -> tuple[RecordedOp, ...]:
    """These steps alone, which refer to each other by their new places."""
    place = {step: i for i, step in enumerate(needed)}

    def moved(x: Any) -> Any:
        return Result(place[x.step], x.which) if isinstance(x, Result) else x

    return tuple((steps[i][0], pytree.tree_map(moved, steps[i][1], is_leaf=is_reference)) for i in needed)
