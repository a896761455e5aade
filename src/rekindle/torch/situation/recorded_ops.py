"""Questions of forward about values of its inputs and buffers, with the ops that answer them again on other inputs.

Recorded ops are run in their order, with their writes: views share memory then as they did when they were recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from ..private import FakeTensor, disable_autocast, pytree

# A question is answered only if its ops compute at most so many elements, not all of which live at once. A guess: it admits the
# comparison that torch's own transformer makes of its mask, up to about 7,000 positions.
ELEMENTS_MOST = 2**28


class Input(NamedTuple):
    """A reference to an input, by its index."""

    number: int


class Held(NamedTuple):
    """A reference to a buffer of the model, or to a tensor in an attribute, by its qualified name."""

    name: str


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


# An op and its (args, kwargs), with an Input, a Held, a Result or a Like instead of each tensor.
RecordedOp = tuple[Any, Any]


def result_of(
    ops: Sequence[RecordedOp],
    tensors: Sequence[torch.Tensor],
    held: Mapping[str, torch.Tensor] | None = None,
    on_cpu: bool = False,
) -> Any:
    """Run recorded ops on inputs and return the result of the last one.

    held : buffers by name. on_cpu : on the CPU, whatever device they name.
    """
    last: dict[int, int] = {}  # op -> the last op that reads its results
    for i, (_, taken) in enumerate(ops):
        last |= {x.op: i for x in pytree.tree_leaves(taken, is_leaf=is_reference) if isinstance(x, Result)}
    over: dict[int, list[int]] = {}  # op -> the ops whose results are freed after it
    for j, i in last.items():
        over.setdefault(i, []).append(j)
    done: list[Any] = []

    def real(x: Any) -> Any:
        if isinstance(x, Input):
            return tensors[x.number]
        if isinstance(x, Held):
            return (held or {})[x.name]
        if isinstance(x, Result):
            made = done[x.op]
            return made[x.which] if isinstance(made, tuple | list) else made
        if isinstance(x, Like):
            return torch.empty(x.shape, dtype=x.dtype, device="meta")
        return torch.device("cpu") if on_cpu and isinstance(x, torch.device) else x

    # The recorded ops are those below autocast, casts included.
    with torch.no_grad(), disable_autocast():
        for i, (op, taken) in enumerate(ops):
            args, kwargs = pytree.tree_map(real, taken, is_leaf=is_reference)
            done.append(op(*args, **kwargs))
            del args, kwargs
            for j in over.get(i, ()):
                done[j] = None
    return done[-1]


def is_reference(x: Any) -> bool:
    return isinstance(x, Input | Held | Result | Like)


class Recording:
    """Recorded ops in their order, and which of them a further op needs."""

    def __init__(self) -> None:
        self._ops: list[RecordedOp] = []
        self._elements: list[int] = []  # that each op computes
        self._reads: list[set[int]] = []  # op -> the ops whose results it reads
        self._memory: list[int | None] = []  # op -> the op that made the memory of its results; None: an input's memory
        self._writers: dict[int, list[int]] = {}  # op that made memory -> ops that write to it

    def memory(self, reference: Input | Held | Result) -> int | None:
        """The op that made the memory behind the reference; None: it is an input's or a buffer's."""
        return self._memory[reference.op] if isinstance(reference, Result) else None

    def add(
        self, op: RecordedOp, elements: int, view_of: Input | Held | Result | None = None, writes: bool = False
    ) -> int:
        """Record an op and return its index. view_of : the reference whose memory its results share. writes : to it."""
        self._ops.append(op)
        self._elements.append(elements)
        self._reads.append(_results_in(op))
        self._memory.append(len(self._ops) - 1 if view_of is None else self.memory(view_of))
        if writes and (memory := self._memory[-1]) is not None:
            self._writers.setdefault(memory, []).append(len(self._ops) - 1)
        return len(self._ops) - 1

    def with_needed(self, op: RecordedOp, elements_most: int) -> tuple[RecordedOp, ...] | None:
        """The op after all ops that it needs; None: they compute more than so many elements.

        An op needs those whose results it reads, and those that wrote to memory which it reads.
        """
        needed: set[int] = set()
        todo = [(len(self._ops), i) for i in _results_in(op)]  # (the op that reads, the op that it reads)
        while todo:
            reader, i = todo.pop()
            memory = self._memory[i]
            for j in (i, *[w for w in self._writers.get(-1 if memory is None else memory, ()) if w < reader]):
                if j not in needed:
                    needed.add(j)
                    todo += [(j, k) for k in self._reads[j]]
        if sum(self._elements[i] for i in needed) > elements_most:
            return None
        place = {old: new for new, old in enumerate(sorted(needed))}

        def moved(x: Any) -> Any:
            return Result(place[x.op], x.which) if isinstance(x, Result) else x

        chosen = [*[self._ops[i] for i in sorted(needed)], op]
        return tuple([(f, pytree.tree_map(moved, taken, is_leaf=is_reference)) for f, taken in chosen])


def _results_in(op: RecordedOp) -> set[int]:
    return {x.op for x in pytree.tree_leaves(op[1], is_leaf=is_reference) if isinstance(x, Result)}


@dataclass(frozen=True)
class Question:
    """A question about inputs or buffers, and its answer. ops : recorded ops that answer it again; the last one asks."""

    ops: tuple[RecordedOp, ...]
    answer: bool

    def same(self, tensors: Sequence[torch.Tensor], model: nn.Module) -> bool:
        """Whether these inputs, and the model's buffers as they are now, give the same answer."""
        names = {x.name for x in pytree.tree_leaves(self.ops, is_leaf=is_reference) if isinstance(x, Held)}
        held = {k: t for k in names if isinstance(t := _attribute(model, k), torch.Tensor)}
        if len(held) < len(names) or any(isinstance(t, FakeTensor) for t in [*tensors, *held.values()]):
            return False  # fake tensors have no values
        return bool(self.answer == result_of(self.ops, tensors, held))


def _attribute(model: nn.Module, name: str) -> Any:
    """The attribute of this qualified name; None: there is none."""
    path, _, leaf = name.rpartition(".")
    try:
        return getattr(model.get_submodule(path), leaf)
    except AttributeError:
        return None
