"""Questions of forward about values of its inputs, recorded so that a later call can answer them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class QuestionSettings:
    """elements_most : a question is answered only if its ops compute at most so many elements. A guess."""

    elements_most: int = 2**26


SETTINGS = QuestionSettings()


class Input(NamedTuple):
    """A reference to an input, by its index."""

    number: int


class Result(NamedTuple):
    """A reference to a result of an earlier recorded op.

    op : its index. which : index of the result, if the op returns several.
    """

    op: int
    which: int


class Like(NamedTuple):
    """A tensor of which only shape and type matter."""

    shape: tuple[int, ...]
    dtype: torch.dtype


RecordedOp = tuple[Any, Any]  # an op and its (args, kwargs), with an Input, a Result or a Like instead of each tensor


@dataclass(frozen=True)
class Question:
    """A question about the inputs, and its answer. ops : recorded ops that answer it again; the last one asks."""

    ops: tuple[RecordedOp, ...]
    answer: bool

    def same(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these inputs give the same answer."""
        if any(isinstance(t, FakeTensor) for t in tensors):
            return False  # fake tensors have no values
        with torch.no_grad():
            return bool(self.answer == result_of(self.ops, tensors))


def result_of(ops: Sequence[RecordedOp], tensors: Sequence[torch.Tensor], on_cpu: bool = False) -> Any:
    """Run recorded ops on inputs and return the result of the last one.

    on_cpu : on the CPU, whatever device they name; integers are the same there.
    """
    done: list[Any] = []

    def real(x: Any) -> Any:
        if isinstance(x, Input):
            return tensors[x.number]
        if isinstance(x, Result):
            made = done[x.op]
            return made[x.which] if isinstance(made, tuple | list) else made
        if isinstance(x, Like):
            return torch.empty(x.shape, dtype=x.dtype, device="meta")
        return torch.device("cpu") if on_cpu and isinstance(x, torch.device) else x

    for op, taken in ops:
        args, kwargs = pytree.tree_map(real, taken, is_leaf=is_reference)
        done.append(op(*args, **kwargs))
    return done[-1]


def is_reference(x: Any) -> bool:
    return isinstance(x, Input | Result | Like)


def needed_ops(ops: Sequence[RecordedOp]) -> list[int]:
    """Indices of the ops that the last one needs, in order, with its own."""
    needed = {len(ops) - 1}
    for i in range(len(ops) - 1, -1, -1):
        if i in needed:
            needed |= {x.op for x in pytree.tree_leaves(ops[i][1], is_leaf=is_reference) if isinstance(x, Result)}
    return sorted(needed)


def extracted(ops: Sequence[RecordedOp], needed: Sequence[int]) -> tuple[RecordedOp, ...]:
    """These ops alone, with references by their new indices."""
    place = {old: new for new, old in enumerate(needed)}

    def moved(x: Any) -> Any:
        return Result(place[x.op], x.which) if isinstance(x, Result) else x

    return tuple((ops[i][0], pytree.tree_map(moved, ops[i][1], is_leaf=is_reference)) for i in needed)
