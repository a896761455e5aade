"""The range of random numbers, which may decide a comparison whatever is drawn: `torch.rand(()) < 0.0` never holds."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..operators.rules import draws_random
from ..tensors.op_tensors import memory_state, same_state

aten = torch.ops.aten

Range = tuple[float, float]  # from the first number to the second, which is not in the range

_FROM_0_TO_1 = {aten.rand, aten.rand_like}
_COMPARISONS = {
    aten.lt.Scalar: operator.lt,
    aten.le.Scalar: operator.le,
    aten.gt.Scalar: operator.gt,
    aten.ge.Scalar: operator.ge,
}


class Drawn:
    """The tensors of random numbers that live, and the ranges of the numbers."""

    def __init__(self) -> None:
        self._ranges = WeakIdKeyDictionary()  # tensor -> (state of its memory, range)

    def note(self, func: Any, args: Any, out: Any) -> None:
        """Note what the op has drawn, or a view that it has made of random numbers."""
        found: Range | None = None
        if draws_random(func):
            found = _range_drawn(func, args)
        elif isinstance(out, torch.Tensor) and not func._schema.is_mutable and func._schema.returns[0].alias_info:
            found = self._of(args[0])
        if found is not None and (state := memory_state(out)) is not None:
            self._ranges[out] = state, found

    def decides(self, func: Any, args: Any) -> bool | None:
        """The result of this comparison, whatever was drawn; None: it depends on the numbers, or this is no comparison."""
        found = self._of(args[0]) if func in _COMPARISONS and len(args) == 2 else None
        return _decided(func, args[1], found) if found is not None else None

    def forget(self, memories: list[Any]) -> None:
        """Forget tensors with these states of their memory."""
        for t, (state, _) in [*self._ranges.items()]:
            if any(same_state(state, m) for m in memories):
                del self._ranges[t]

    def _of(self, t: Any) -> Range | None:
        state, found = self._ranges.get(t, (None, None)) if isinstance(t, torch.Tensor) else (None, None)
        return found if state is not None and same_state(memory_state(t), state) else None


def _range_drawn(func: Any, args: Any) -> Range | None:
    """The range of the numbers that this random op draws; None: it is not known."""
    packet = func._overloadpacket
    if packet in _FROM_0_TO_1 or func is aten.uniform_.default and tuple(args[1:]) in ((), (0,), (0, 1)):
        return 0.0, 1.0
    if func is aten.randint.default:
        return 0.0, float(args[0])
    if func is aten.randint.low:
        return float(args[0]), float(args[1])
    return None


def _decided(func: Any, bound: Any, drawn: Range) -> bool | None:
    """The result of comparing any number of the range with `bound`; None: it depends on the number."""
    compare, (low, high) = _COMPARISONS[func], drawn
    if not isinstance(bound, int | float) or bound != bound:
        return None
    # A number of the range may be as close to `high` as floats allow: `x < bound` holds for all from bound = high on, and so
    # does `x <= bound`.
    at_high = high <= bound if compare in (operator.lt, operator.le) else high > bound
    return at_high if compare(low, bound) == at_high else None
