"""What forward branches on, while tracing or on fake tensors: values of integer and boolean tensors, where they can be
known.

Libraries look whether a mask masks anything, and where it does not they call another kernel, which rounds otherwise.
Tensors without data cannot tell. What forward makes from shapes alone is computed here when it is asked for; what depends
on integer inputs, from the sample's. Questions of the second kind are part of what was captured: a call whose inputs give
another answer is not the one that was traced.

It touches PyTorch's private surface, as `capture` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from .rules import UNWRITTEN, draws_random

aten = torch.ops.aten

_ASK = {aten._local_scalar_dense.default, aten.equal.default}  # they give Python values
_BY_SHAPE = {aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full}
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
            return bool(self.answer == _run(self.steps, tensors))


def _run(steps: Sequence[RecordedOp], tensors: Sequence[torch.Tensor], elsewhere: bool = False) -> Any:
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
        args, kwargs = pytree.tree_map(real, taken, is_leaf=_is_reference)
        done.append(op(*args, **kwargs))
    return done[-1]


def _is_reference(x: Any) -> bool:
    return isinstance(x, Input | Result | Like)


class _Known(NamedTuple):
    """A tensor's known values. state : of the tensor when they were. by_inputs : whether they depend on inputs' values."""

    state: Any
    reference: Input | Result
    by_inputs: bool


class KnownValues(TorchDispatchMode):
    """Answers what forward asks about tensors that are known.

    given : what stands for the inputs while tracing.
    sample : their values; None: unknown.
    """

    supports_higher_order_operators = True

    def __init__(self, given: Sequence[torch.Tensor], sample: Sequence[torch.Tensor] | None) -> None:
        super().__init__()
        self.questions: list[Question] = []
        self.calls = 0  # of ops so far
        self._sample = sample
        self._steps: list[RecordedOp] = []
        self._sizes: list[int] = []  # of steps, in elements
        self._known = WeakIdKeyDictionary()  # tensor -> _Known; kept alive they would count in a measured peak
        for i, t in enumerate(given if sample is not None else ()):
            self._learn(t, Input(i), True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.calls += 1
        given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        self._forget(_written(func, args, kwargs))
        if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":  # others may do more than they say
            return func(*args, **kwargs)
        known = {id(t): k for t in given if (k := self._of(t)) is not None}
        all_known = all(id(t) in known for t in given)
        by_inputs = any(k.by_inputs for k in known.values())
        # A number may differ in every call, and then each would be another graph.
        yes_or_no = func is aten.equal.default or (given and given[0].dtype == torch.bool)
        if func in _ASK and all_known and (yes_or_no or not by_inputs):
            steps = [*self._steps, (func, _references((args, kwargs), known))]
            needed = _needed(steps)
            if sum(self._sizes[i] for i in needed[:-1]) <= LARGEST:
                return self._answer(_apart(steps, needed), by_inputs)
        by_shape = func._overloadpacket in _BY_SHAPE
        if not _tells(func) or not (all_known or by_shape):
            return func(*args, **kwargs)
        same_device = {"device": kwargs.get("device") or given[0].device} if by_shape else {}
        step = func, _references((args, kwargs | same_device), known)
        out = func(*args, **kwargs)
        made = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
        for i, t in enumerate(made):
            self._learn(t, Result(len(self._steps), i), by_inputs)
        is_view = any(r.alias_info is not None for r in func._schema.returns)
        self._sizes.append(0 if is_view else sum(t.numel() for t in made))
        self._steps.append(step)
        return out

    def knows(self, t: Any) -> bool:
        """Whether questions about the tensor's values get an answer."""
        return isinstance(t, torch.Tensor) and self._of(t) is not None

    def _answer(self, steps: tuple[RecordedOp, ...], by_inputs: bool) -> Any:
        with _disable_current_modes(), torch.no_grad():
            answer = _run(steps, self._sample or (), elsewhere=self._sample is None)
        question = Question(steps, answer)
        if by_inputs and question not in self.questions:
            self.questions.append(question)
        return answer

    def _learn(self, t: torch.Tensor, reference: Input | Result, by_inputs: bool) -> None:
        state = _state(t)
        if state is not None and not t.dtype.is_floating_point and not t.dtype.is_complex:
            self._known[t] = _Known(state, reference, by_inputs)

    def _of(self, t: torch.Tensor) -> _Known | None:
        """What is known of the tensor: nothing more once it was written to."""
        known = self._known.get(t)
        return known if known is not None and _same_state(_state(t), known.state) else None

    def _forget(self, written: Sequence[torch.Tensor]) -> None:
        """What shares memory with these; what is functional tells by its state."""
        memory = [_state(t) for t in written if not isinstance(t, FunctionalTensor)]
        for t, known in [*self._known.items()] if memory else ():
            if any(_same_state(known.state, m) for m in memory):
                del self._known[t]


def _references(taken: Any, known: Mapping[int, _Known]) -> Any:
    """Arguments as a `RecordedOp` has them."""

    def reference(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return known[id(x)].reference if id(x) in known else Like(tuple(x.shape), x.dtype)

    return pytree.tree_map(reference, taken)


def _state(t: torch.Tensor) -> Any:
    """Of a functional tensor: another after each write to it or to what shares its memory. Of others: their memory, and
    the mode sees all that writes to it; the reference keeps the address from being given away, not the bytes. None: nobody
    can tell.
    """
    if isinstance(t, FunctionalTensor):
        torch._sync(t.elem)
        return torch._from_functional_tensor(t.elem)
    return StorageWeakRef(t.untyped_storage()) if t.layout is torch.strided else None


def _same_state(one: Any, two: Any) -> bool:
    return one is two or isinstance(one, StorageWeakRef) and isinstance(two, StorageWeakRef) and one == two


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an op may write to; of what is no op: all that it is given."""
    if not isinstance(func, torch._ops.OpOverload):
        return [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if not func._schema.is_mutable:
        return []
    named = zip(func._schema.arguments, args, strict=False)
    given = [(a, x) for a, x in named] + [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]
    into = [x for a, x in given if a.alias_info is not None and a.alias_info.is_write]
    return [t for t in pytree.tree_leaves(into) if isinstance(t, torch.Tensor)]


def _tells(func: Any) -> bool:
    """Whether what the op gives depends on nothing but its arguments."""
    return not func._schema.is_mutable and not draws_random(func) and func._overloadpacket not in UNWRITTEN


def _needed(steps: Sequence[RecordedOp]) -> list[int]:
    """The steps that the last one needs, in order."""
    needed = {len(steps) - 1}
    for i in range(len(steps) - 1, -1, -1):
        if i in needed:
            needed |= {x.step for x in pytree.tree_leaves(steps[i][1], is_leaf=_is_reference) if isinstance(x, Result)}
    return sorted(needed)


def _apart(steps: Sequence[RecordedOp], needed: Sequence[int]) -> tuple[RecordedOp, ...]:
    """These steps alone, which refer to each other by their new places."""
    place = {step: i for i, step in enumerate(needed)}

    def moved(x: Any) -> Any:
        return Result(place[x.step], x.which) if isinstance(x, Result) else x

    return tuple((steps[i][0], pytree.tree_map(moved, steps[i][1], is_leaf=_is_reference)) for i in needed)
