"""Known values of integer and boolean tensors, on which forward may branch while it is traced or runs on fake tensors.

Libraries check whether a mask masks anything, and call another kernel, which rounds differently, if it does not. Tensors
without data cannot answer. A tensor that forward makes from shapes alone is computed here when its value is asked for; a
tensor that depends on integer inputs is computed from the sample. Questions of the second kind belong to the captured call: a
call whose inputs give another answer needs another graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from .questions import SETTINGS, Input, Like, Question, RecordedOp, Result, extracted, needed_ops, result_of
from .rules import UNWRITTEN, draws_random

aten = torch.ops.aten

_ASK = {aten._local_scalar_dense.default, aten.equal.default}  # ops that return Python values
_BY_SHAPE = {aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full}


class _Known(NamedTuple):
    """How the values of a tensor are known.

    state : of the tensor at that time. reference : the input or result. by_inputs : whether they depend on values of inputs.
    """

    state: Any
    reference: Input | Result
    by_inputs: bool


class KnownValues(TorchDispatchMode):
    """A dispatch mode that answers questions of forward about tensors whose values are known.

    given : the tensors that stand for the inputs while tracing.
    sample : the real inputs; None: their values are unknown.
    """

    supports_higher_order_operators = True

    def __init__(self, given: Sequence[torch.Tensor], sample: Sequence[torch.Tensor] | None) -> None:
        super().__init__()
        self.questions: list[Question] = []
        self.calls = 0  # of ops so far
        self._sample = sample
        self._ops: list[RecordedOp] = []
        self._sizes: list[int] = []  # of ops, in elements
        self._known = (
            WeakIdKeyDictionary()
        )  # tensor -> _Known; weak, since tensors kept alive would count in a measured peak
        for i, t in enumerate(given if sample is not None else ()):
            self._learn(t, Input(i), True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.calls += 1
        given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        self._forget(_written(func, args, kwargs))
        if (
            not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten"
        ):  # other ops may do more than their schema says
            return func(*args, **kwargs)
        known = {id(t): k for t in given if (k := self._of(t)) is not None}
        all_known = all(id(t) in known for t in given)
        by_inputs = any(k.by_inputs for k in known.values())
        # Only yes-or-no questions: a number may differ in every call, and each would need another graph.
        yes_or_no = func is aten.equal.default or (given and given[0].dtype == torch.bool)
        if func in _ASK and all_known and (yes_or_no or not by_inputs):
            ops = [*self._ops, (func, _references((args, kwargs), known))]
            needed = needed_ops(ops)
            if sum(self._sizes[i] for i in needed[:-1]) <= SETTINGS.elements_most:
                return self._answer(extracted(ops, needed), by_inputs)
        by_shape = func._overloadpacket in _BY_SHAPE
        if not _tells(func) or not (all_known or by_shape):
            return func(*args, **kwargs)
        same_device = {"device": kwargs.get("device") or given[0].device} if by_shape else {}
        recorded = func, _references((args, kwargs | same_device), known)
        out = func(*args, **kwargs)
        made = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
        for i, t in enumerate(made):
            self._learn(t, Result(len(self._ops), i), by_inputs)
        is_view = any(r.alias_info is not None for r in func._schema.returns)
        self._sizes.append(0 if is_view else sum(t.numel() for t in made))
        self._ops.append(recorded)
        return out

    def knows(self, t: Any) -> bool:
        """Whether questions about the tensor's values can be answered."""
        return isinstance(t, torch.Tensor) and self._of(t) is not None

    def _answer(self, ops: tuple[RecordedOp, ...], by_inputs: bool) -> Any:
        with _disable_current_modes(), torch.no_grad():
            answer = result_of(ops, self._sample or (), on_cpu=self._sample is None)
        question = Question(ops, answer)
        if by_inputs and question not in self.questions:
            self.questions.append(question)
        return answer

    def _learn(self, t: torch.Tensor, reference: Input | Result, by_inputs: bool) -> None:
        state = _state(t)
        if state is not None and not t.dtype.is_floating_point and not t.dtype.is_complex:
            self._known[t] = _Known(state, reference, by_inputs)

    def _of(self, t: torch.Tensor) -> _Known | None:
        """How the tensor's values are known; None: they are not, or an op has written to it since."""
        known = self._known.get(t)
        return known if known is not None and _same_state(_state(t), known.state) else None

    def _forget(self, written: Sequence[torch.Tensor]) -> None:
        """Forget tensors that share memory with these. Functional tensors need no help: their state changes."""
        memory = [_state(t) for t in written if not isinstance(t, FunctionalTensor)]
        for t, known in [*self._known.items()] if memory else ():
            if any(_same_state(known.state, m) for m in memory):
                del self._known[t]


def _references(taken: Any, known: Mapping[int, _Known]) -> Any:
    """Arguments in the form of a `RecordedOp`."""

    def reference(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return known[id(x)].reference if id(x) in known else Like(tuple(x.shape), x.dtype)

    return pytree.tree_map(reference, taken)


def _state(t: torch.Tensor) -> Any:
    """A state of the tensor's memory that changes or is forgotten with each write; None: writes cannot be noticed.

    A functional tensor has another inner tensor after each write to it or to an alias. Any other tensor is known by its
    storage, and the mode sees all writes to it; the weak reference keeps the storage's address from being reused, but not
    its bytes.
    """
    if isinstance(t, FunctionalTensor):
        torch._sync(t.elem)
        return torch._from_functional_tensor(t.elem)
    return StorageWeakRef(t.untyped_storage()) if t.layout is torch.strided else None


def _same_state(one: Any, two: Any) -> bool:
    return one is two or isinstance(one, StorageWeakRef) and isinstance(two, StorageWeakRef) and one == two


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an op may write to; for a call that is no op, all its arguments."""
    if not isinstance(func, torch._ops.OpOverload):
        return [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if not func._schema.is_mutable:
        return []
    named = zip(func._schema.arguments, args, strict=False)
    given = [(a, x) for a, x in named] + [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]
    into = [x for a, x in given if a.alias_info is not None and a.alias_info.is_write]
    return [t for t in pytree.tree_leaves(into) if isinstance(t, torch.Tensor)]


def _tells(func: Any) -> bool:
    """Whether the op's results depend on its arguments alone."""
    return not func._schema.is_mutable and not draws_random(func) and func._overloadpacket not in UNWRITTEN
