"""Known values of tensors, on which forward may branch while it is traced or runs on fake tensors.

Libraries check whether a mask masks anything, and call another kernel, which rounds differently, if it does not. Tensors
without data cannot answer. A tensor that forward makes from shapes and constants alone is computed here when its value is asked
for; a tensor that depends on inputs or buffers is computed from the sample. Questions of the second kind belong to the captured
call: a call whose inputs or buffers give another answer needs another graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..operators import hidden_writes
from ..operators.rules import UNWRITTEN, draws_random
from ..private import DispatchKey, FunctionalTensor, OpOverload, TorchDispatchMode, disable_modes, pytree
from ..situation.recorded_ops import (
    ELEMENTS_MOST,
    Held,
    Input,
    Like,
    Question,
    RecordedOp,
    Recording,
    Result,
    result_of,
)
from ..tensors.op_tensors import memory_state, same_state, written_by
from .random_state import Drawn, refuse_own

aten = torch.ops.aten

LITERAL_MOST_ELEMENTS = 4096  # of a tensor of given values that a question may hold; a guess

_BY_SHAPE = {aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full}
_FILLS = {aten.fill_.Scalar, aten.zero_.default}
_CHANGE_SHAPE = {aten.set_, aten.resize_, aten.resize_as_}  # and ops with the tag `inplace_view`

_ASK = {aten._local_scalar_dense.default, aten.equal.default}  # ops that return Python values


class _Known(NamedTuple):
    """How the values of a tensor are known.

    state : of the tensor at that time. reference : the input, buffer or result. by_inputs : whether they depend on values of
    inputs or buffers, and not on shapes and constants alone.
    """

    state: Any
    reference: Input | Held | Result
    by_inputs: bool


class KnownValues(TorchDispatchMode):
    """A dispatch mode that answers questions of forward about tensors whose values are known.

    given : the tensors that stand for the inputs while tracing.
    sample : the real inputs; None: their values are unknown, and so are those of buffers.
    standing : the tensors that stand for buffers, by name. held : the real buffers.
    markers : Python numbers that stand for inputs; what depends on them is not known.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        given: Sequence[torch.Tensor],
        sample: Sequence[torch.Tensor] | None,
        standing: Mapping[str, torch.Tensor] | None = None,
        held: Mapping[str, torch.Tensor] | None = None,
        markers: Container[Any] = (),
    ) -> None:
        super().__init__()
        self.questions: list[Question] = []
        self.calls = 0  # of ops so far
        self._sample, self._held, self._markers = sample, held or {}, markers
        self._recording = Recording()
        self._drawn = Drawn()
        # tensor -> _Known; weak, since tensors kept alive would count in a measured peak
        self._known = WeakIdKeyDictionary()
        if sample is not None:
            for i, t in enumerate(given):
                self._learn(t, Input(i), True)
            for name, t in (standing or {}).items():
                if name in self._held:
                    self._learn(t, Held(name), True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.calls += 1
        leaves = pytree.tree_leaves((args, kwargs))
        given = [t for t in leaves if isinstance(t, torch.Tensor)]
        for x in leaves:
            if isinstance(x, torch.Generator):
                refuse_own(func, x)
        written = written_by(func, args, kwargs)
        if not isinstance(func, OpOverload) or func.namespace != "aten":  # may do more than its schema says
            self._forget(written)
            return func(*args, **kwargs)
        if hidden_writes.writes(func, args):
            for t in given:
                self._known.pop(t, None)
        known = {id(t): k for t in given if (k := self._of(t)) is not None}
        told = not any(type(x) in (int, float) and x in self._markers for x in leaves)
        all_known = told and all(id(t) in known for t in given)
        by_inputs = any(k.by_inputs for k in known.values())
        # Only yes-or-no questions: a number may differ in every call, and each would need another graph.
        yes_or_no = func is aten.equal.default or (given and given[0].dtype == torch.bool)
        if func in _ASK and all_known and (yes_or_no or not by_inputs):
            references = {i: k.reference for i, k in known.items()}
            answer = self._answer((func, _with_references((args, kwargs), references)), by_inputs)
            if answer is not None:
                return answer
        recorded = self._as_recorded(func, args, kwargs, known, all_known) if told else None
        target = known.get(id(written[0])) if len(written) == 1 else None
        may_write = target is not None and self._recording.memory(target.reference) is not None
        if recorded is None or written and recorded[0] is func and not may_write:
            self._forget(written)
            out = self._run(func, args, kwargs)
            self._drawn.note(func, args, out)
            return out
        # A write of known values to known ones is recorded as well: the tensors that share the memory stay known.
        sharing: list[tuple[torch.Tensor, _Known]] = []
        if may_write:
            assert target is not None
            sharing = self._sharing(target)
        else:
            self._forget(written)
        out = self._run(func, args, kwargs)
        made = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
        is_view = recorded[0] is func and any(r.alias_info is not None for r in func._schema.returns)
        source = target if may_write else known[id(given[0])] if is_view else None
        elements = 0 if is_view and not written else sum(t.numel() for t in made)
        view_of = None if source is None else source.reference
        index = self._recording.add(recorded, elements, view_of, may_write)
        for t, k in sharing:
            self._known[t] = k._replace(state=memory_state(t), by_inputs=k.by_inputs or by_inputs)
        for i, t in enumerate(made):
            if not may_write or self._of(t) is None:
                self._learn(t, Result(index, i), by_inputs)
        return out

    def _as_recorded(self, func: Any, args: Any, kwargs: Any, known: Mapping[int, _Known], all_known: bool) -> Any:
        """The op that gives this call's results when it is run again; None: they cannot be known."""
        answer = self._drawn.decides(func, args)
        if answer is not None:
            return aten.full.default, ((tuple(args[0].shape), answer), {"dtype": torch.bool, "device": args[0].device})
        if func is aten.lift_fresh.default:
            return _literal(args[0])
        references = {i: k.reference for i, k in known.items()}
        if all_known and _tells(func):
            return func, _with_references((args, kwargs), references)
        return _by_shape(func, args, kwargs, references)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        out = _selected(func, args, self.count) if func in _SELECTIONS and not kwargs else None
        return func(*args, **kwargs) if out is None else out

    def knows(self, t: Any) -> bool:
        """Whether questions about the tensor's values can be answered."""
        return isinstance(t, torch.Tensor) and self._of(t) is not None

    def _answer(self, op: RecordedOp, by_inputs: bool) -> Any:
        """The answer of an op to a question; None: there is too much to compute."""
        ops = self._recording.with_needed(op, ELEMENTS_MOST)
        if ops is None:
            return None
        answer = self._result(ops)
        self._note_question(Question(ops, answer), by_inputs)
        return answer

    def _result(self, ops: Sequence[RecordedOp]) -> Any:
        with disable_modes():
            made = result_of(ops, self._sample or (), self._held, on_cpu=self._sample is None)
            return made.item() if isinstance(made, torch.Tensor) else made

    def _note_question(self, question: Question, by_inputs: bool) -> None:
        if by_inputs and question not in self.questions:
            self.questions.append(question)

    def count(self, mask: torch.Tensor) -> int | None:
        """The number of elements that are not zero; None: unknown.

        Of a mask that depends on inputs it is known where it selects all or nothing: any other number would differ in every
        call.
        """
        known = self._of(mask)
        if known is None:
            return None
        if not known.by_inputs:
            return self._answer((aten.count_nonzero.default, ((known.reference,), {})), False)
        for op, answer, count in ((aten.all.default, True, mask.numel()), (aten.any.default, False, 0)):
            ops = self._recording.with_needed((op, ((known.reference,), {})), ELEMENTS_MOST)
            if ops is not None and self._result(ops) == answer:
                self._note_question(Question(ops, answer), True)
                return count
        return None

    def _learn(self, t: torch.Tensor, reference: Input | Held | Result, by_inputs: bool) -> None:
        state = memory_state(t)
        if state is not None:
            self._known[t] = _Known(state, reference, by_inputs)

    def _of(self, t: torch.Tensor) -> _Known | None:
        """How the tensor's values are known; None: they are not, or an op has written to it since."""
        known = self._known.get(t)
        return known if known is not None and same_state(memory_state(t), known.state) else None

    def _sharing(self, target: _Known) -> list[tuple[torch.Tensor, _Known]]:
        """The tensors of known values that share memory with this one, and itself."""
        memory = self._recording.memory(target.reference)
        alike = [(t, k) for t, k in self._known.items() if self._recording.memory(k.reference) == memory]
        return [(t, k) for t, k in alike if same_state(memory_state(t), k.state)]

    def _forget(self, written: Sequence[torch.Tensor]) -> None:
        """Forget tensors that share memory with these. Functional tensors need no help: their state changes."""
        memory = [memory_state(t) for t in written if not isinstance(t, FunctionalTensor)]
        self._drawn.forget(memory)
        for t, known in [*self._known.items()] if memory else ():
            if any(same_state(known.state, m) for m in memory):
                del self._known[t]


# -- calls that can be recorded as ones that give the same values again -----------------------------------------------
def _tells(func: Any) -> bool:
    """Whether the op's results, and what it writes, depend on its arguments alone."""
    unlike = func._overloadpacket in UNWRITTEN or func._overloadpacket in _CHANGE_SHAPE
    return not unlike and not draws_random(func) and torch.Tag.inplace_view not in func.tags


def _by_shape(func: Any, args: Any, kwargs: Any, known: Mapping[int, Input | Held | Result]) -> RecordedOp | None:
    """The call as one that needs only the shape of its first tensor; None: it needs more.

    known : references by the ids of tensors.
    """
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor):
        return None
    if func in _FILLS and not kwargs:
        func, args = aten.full_like.default, (first, args[1] if func is aten.fill_.Scalar else 0)
    if func._overloadpacket not in _BY_SHAPE or func._schema.is_mutable:
        return None
    return func, _with_references((args, kwargs | {"device": kwargs.get("device") or first.device}), known)


def _literal(t: Any) -> RecordedOp | None:
    """An op that makes a small tensor of given values, as `torch.tensor([1, 2])` does; None: it is no such tensor."""
    if type(t) is not torch.Tensor or t.layout is not torch.strided or t.numel() > LITERAL_MOST_ELEMENTS:
        return None
    with disable_modes():
        values = t.tolist()
    return torch.tensor, ((values,), {"dtype": t.dtype, "device": t.device})


def _with_references(taken: Any, known: Mapping[int, Input | Held | Result]) -> Any:
    """(args, kwargs) in the form of a `RecordedOp`."""

    def reference(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return known[id(x)] if id(x) in known else Like(tuple(x.shape), x.dtype)

    return pytree.tree_map(reference, taken)


# -- masks ------------------------------------------------------------------------------------------------------------
# Tensors without data cannot say how many elements boolean indexing selects. Where the number is known, the indices of the
# elements come from an op of fixed size, and the same elements are selected in the same order.
Count = Callable[[torch.Tensor], int | None]  # the number of elements of a mask that are not zero; None: unknown
_SELECTIONS = {aten.nonzero.default, aten.masked_select.default}
_INDEXING: tuple[Any, ...] = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)


def _selected(func: Any, args: Any, count: Count) -> torch.Tensor | None:
    """The result of an op of `_SELECTIONS`; None: the number of selected elements is unknown."""
    mask = args[-1]
    size = count(mask)
    if size is None:
        return None
    if func is aten.nonzero.default:
        return aten.nonzero_static.default(mask, size=size)
    values, whole = torch.broadcast_tensors(*args)
    size = size * whole.numel() // mask.numel() if mask.numel() else 0
    return aten.index.Tensor(values, aten.nonzero_static.default(whole, size=size).unbind(1))


@contextlib.contextmanager
def indices_for_masks(count: Count) -> Iterator[None]:
    """Inside, indexing by a mask of known count is indexing by the places of its true elements, for autograd too.

    Its backward indexes again, and has to know the number of elements as well.
    """
    key = DispatchKey.Autograd

    def listen(on: bool) -> None:
        for op in _INDEXING:
            op.py_kernels.pop(key, None)
            if kernel := (kernels if on else before)[op]:
                op.py_kernels[key] = kernel
            op._dispatch_cache.clear()

    def indexing(op: Any) -> Callable[..., Any]:
        def index(x: torch.Tensor, places: Sequence[torch.Tensor | None], *rest: Any, **how: Any) -> Any:
            # Without values that require grad, backward of index_put selects nothing.
            selects = op is aten.index.Tensor or rest[0].requires_grad
            listen(False)
            try:
                return op(x, _as_indices(places, count) if selects else places, *rest, **how)
            finally:
                listen(True)

        return index

    kernels = {op: indexing(op) for op in _INDEXING}
    before = {op: op.py_kernels.get(key) for op in _INDEXING}  # of a context around this one
    listen(True)
    try:
        yield
    finally:
        listen(False)
        kernels.clear()  # a circle of references that would keep the tensors behind `count` alive


def _as_indices(places: Sequence[torch.Tensor | None], count: Count) -> list[torch.Tensor | None]:
    found: list[torch.Tensor | None] = []
    for t in places:
        size = count(t) if t is not None and t.dtype in (torch.bool, torch.uint8) else None
        found += [t] if t is None or size is None else aten.nonzero_static.default(t, size=size).unbind(1)
    return found
