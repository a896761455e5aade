"""Gradients of the casts that autocast shares: between planned calls, and with plain code that ran before them.

Autocast casts a trained leaf once in a block. The gradients of all uses are added up in the lower precision at that one cast,
and reach the leaf after the gradients of everything that ran after the cast. A planned call has casts of its own, which it may
free and make again. So it hands the gradient of a cast over where eager does:

- Where plain code has cast the leaf before in the same block: to that cast.
- Where an earlier planned call has: to a node that runs after the rest of this call's backward. If the same backward comes to
  the earlier call, the gradient is left there, and added to that call's own.
- Where nobody has: to the leaf, as without autocast. This is the usual case, and costs next to nothing.

Plain code that casts the leaf after the planned call makes another cast. The gradient of one that a planned module makes in a
call without a plan is left for the planned call (`join_plain`); the gradient of any other is added in float32.

To look for a cast in autocast's cache takes some 30 microseconds (measured on a CPU). So a call looks only for casts of leaves
to which an autograd graph refers. Where such leaves are many, since the graph of an earlier step is alive or data-parallel
training holds on to all leaves, only the first call looks for all, and the second, the fourth, the eighth …; the others look
for those that were found before.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ...saying.notices import warn
from .. import private
from ..lowering.gradient_additions import Cast
from ..private import TorchDispatchMode, backward_number, disable_modes, is_in_use, modes_are_on, tree_leaves, will_run
from ..situation.surroundings import casting_device, shares_casts

FEW = 8  # leaves of which each call looks for the casts; a guess


class PlainCasts:
    """Finds the casts that plain code has made before calls of one program."""

    def __init__(self) -> None:
        self._calls, self._found = 0, set[int]()

    def among(self, inputs: Sequence[Any], casts: Mapping[int, Cast]) -> dict[int, torch.Tensor]:
        """Number of an input -> its cast in autocast's cache. casts : as `Runner.casts`."""
        self._calls += 1
        used = [i for i in casts if is_in_use(inputs[i])]
        if len(used) > FEW and self._calls & (self._calls - 1):
            used = [i for i in used if i in self._found]
        seen = {i: t for i in used if (t := _cached(inputs[i], casts[i].dtype)) is not None}
        self._found |= seen.keys()
        return seen


class CallInBlock:
    """One planned call in an autocast block.

    leaves : number of an input -> the id of the leaf, where it casts it.
    before : the calls before it whose backward may come. later : id of a leaf -> the node of `_Later`, weakly.
    stages : the autograd nodes, weakly, of the stages of its backward, the last first. begun : the backward in which it began
        last.
    left : id of a leaf -> (number of a backward, the gradient of its cast that later calls have left for this one).
    """

    def __init__(self, stage_of: Mapping[int, int], before: Sequence[CallInBlock]) -> None:
        self.before, self._stage_of = before, stage_of
        self.leaves: dict[int, int] = {}
        self.stages: list[Any] = []
        self.begun = -1
        self.left: dict[int, tuple[int, torch.Tensor]] = {}
        self.later: dict[int, Any] = {}

    @property
    def is_over(self) -> bool:
        """Whether no backward can come to the call."""
        return not self.stages or self.stages[0]() is None

    def gathers(self, leaf: int) -> bool:
        """Whether the running backward is still to hand over the gradient of the leaf's cast in this call."""
        number = next((i for i, known in self.leaves.items() if known == leaf), None)
        if number is None or self.begun == backward_number() or self.is_over:
            return False
        node = self.later[leaf]() if leaf in self.later else self.stages[-1 - self._stage_of[number]]()
        return node is not None and will_run(node)

    def leave(self, leaf: int, gradient: torch.Tensor) -> bool:
        """Leave the gradient of a cast for an earlier call that is still to hand its own over; False: there is none."""
        to = next((c for c in reversed(self.before) if c.gathers(leaf)), None)
        if to is not None:
            to.left[leaf] = backward_number(), to.with_left(leaf, [gradient])[0]
        return to is not None

    def with_left(self, leaf: int, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        """The parts of the gradient of a cast, of which the first is added to all that later calls have left."""
        number, left = self.left.pop(leaf, (-1, None))
        if left is None or number != backward_number():  # of a backward that failed
            return parts
        return [left + parts[0], *parts[1:]] if parts else [left]


class _Block:
    """An autocast block. mark : the autograd node of a cast in autocast's cache. cast : id -> each leaf, weakly, that planned
    calls have cast, and its version then. plain : id -> the cast, weakly, that plain code has made of such a leaf since.
    calls : those whose backward may come."""

    def __init__(self, mark: Any) -> None:
        self.mark = mark
        self.cast: dict[int, tuple[Any, int]] = {}
        self.plain: dict[int, Any] = {}
        self.calls: list[CallInBlock] = []
        self.told = False


_now: _Block | None = None
# kind of device -> nothing to multiply a leaf of ours with, the leaf
_LEAVES: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}


def _mark() -> Any:
    """The node of the cast of a leaf of ours: the same one until the cache is cleared, at the end of a block."""
    kind = casting_device()
    with disable_modes() if modes_are_on() else contextlib.nullcontext(), torch.set_grad_enabled(True):
        if kind not in _LEAVES:
            leaf = torch.zeros(1, 1, device=kind, requires_grad=True)
            _LEAVES[kind] = leaf.detach()[:0], leaf
        return torch.mm(*_LEAVES[kind]).grad_fn.next_functions[1][0]  # type: ignore[union-attr]


def _block() -> _Block:
    global _now
    mark = _mark()
    if _now is None or _now.mark is not mark:
        _now = _Block(mark)
    return _now


@contextlib.contextmanager
def block_of_its_own() -> Iterator[None]:
    """Inside and afterwards, autocast casts anew: a cast that a step finds in the cache gets its gradients in another order."""
    global _now
    before = _block() if shares_casts() else None
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        if before is not None and shares_casts():
            before.mark, _now = _mark(), before


def entered(
    inputs: Sequence[Any], casts: Mapping[int, Cast], stage_of: Mapping[int, int], plain: PlainCasts
) -> tuple[CallInBlock, dict[int, torch.Tensor]]:
    """(the record of a planned call; number of an input -> the tensor to which the gradient of its cast goes, not to the leaf).

    casts : number of an input -> its cast. stage_of : the stage of backward that hands its gradient over.
    """
    block = _block()
    block.calls = [c for c in block.calls if not c.is_over]
    call, known = CallInBlock(stage_of, tuple(block.calls)), block.cast
    call.leaves = leaves = {i: id(inputs[i]) for i in casts}
    again = {i for i, leaf in leaves.items() if leaf in known and known[leaf][0]() is inputs[i]} if known else set()
    if again and not block.told and any(known[leaves[i]][1] != inputs[i]._version for i in again):
        block.told = True
        warn(
            "weights changed inside an autocast block in which a planned call had read them: planned steps cast the new ones, "
            "while eager goes on with its casts of the old ones until the block ends. End the block before optimizer.step()"
        )
    instead = plain.among(inputs, {i: cast for i, cast in casts.items() if i not in again})
    instead |= {i: t for i in again if leaves[i] in block.plain and (t := block.plain[leaves[i]]()) is not None}
    for i in instead:
        del leaves[i]
    for i in again - instead.keys():
        instead[i] = _Later.apply(inputs[i], casts[i].dtype, call)
    known.update({leaf: (weakref.ref(inputs[i]), inputs[i]._version) for i, leaf in leaves.items()})
    block.calls.append(call)
    return call, instead


def join_plain(leaves: Iterable[torch.Tensor]) -> None:
    """Let the casts of leaves that plain code has just made leave their gradients for the planned calls before it."""
    if _now is None or all(c.is_over for c in _now.calls) or private.in_func_transform() or not shares_casts():
        return
    block = _block()
    call = CallInBlock({}, tuple(c for c in block.calls if not c.is_over))
    cast_before = {leaf for c in call.before for leaf in c.leaves.values()} - block.plain.keys()
    for leaf in (t for t in leaves if id(t) in cast_before):
        if (made := _cached(leaf, torch.get_autocast_dtype(leaf.device.type))) is not None:
            block.plain[id(leaf)] = weakref.ref(made)
            made.grad_fn.register_hook(functools.partial(_leave, call, id(leaf)))  # type: ignore[union-attr]


def _leave(call: CallInBlock, leaf: int, _: Any, of_cast: Sequence[torch.Tensor]) -> tuple[None] | None:
    return (None,) if call.leave(leaf, of_cast[0]) else None


def forget(leaves: Iterable[torch.Tensor]) -> None:
    """Hold no reference to these leaves, not even a weak one: `torch.utils.swap_tensors` refuses such tensors."""
    for t in leaves:
        if _now is not None:
            _now.cast.pop(id(t), None)


class _Later(torch.autograd.Function):
    """Stands, without memory, for a cast that an earlier call has made, and hands its gradient over when that cast does."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, dtype: torch.dtype, call: CallInBlock) -> torch.Tensor:
        ctx.leaf, ctx.call = id(leaf), call
        call.later[id(leaf)] = weakref.ref(ctx)
        return torch.empty((), dtype=dtype, device=leaf.device).expand(leaf.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        return None if ctx.call.leave(ctx.leaf, gradient) else gradient.float(), None, None


def _cached(leaf: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """The cast of the leaf in autocast's cache; None: there is none."""
    row = torch.empty(0, leaf.shape[-1] if leaf.dim() else 1, dtype=dtype, device=leaf.device)
    with contextlib.suppress(_Stop), _Caught() as seen:
        torch.nn.functional.linear(row, leaf)
    return next((t for t in seen.tensors if t.dtype == dtype and t.shape == leaf.shape and t.requires_grad), None)


class _Stop(Exception):
    pass


class _Caught(TorchDispatchMode):
    """Keeps the tensors that the first operator is given, unless it is the cast of one, and runs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten._to_copy.default:
            self.tensors = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
        raise _Stop
