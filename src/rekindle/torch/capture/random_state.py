"""The random numbers of forward while it is traced: it may only draw from torch's default generators, any other use is a
TraceError; and their range may decide a comparison, whatever is drawn: `torch.rand(()) < 0.0` never holds."""

from __future__ import annotations

import contextlib
import operator
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ...errors import TraceError
from ...saying.frames import in_short, is_users, line_of, users_frame
from ..operators.rules import draws_random
from ..private import disable_modes
from ..tensors.op_tensors import memory_state, same_state
from ..tensors.rng import numpys, pythons

aten = torch.ops.aten

SETS_GENERATOR = "reads or sets the state of torch's random generator"
# Functions in these modules act for their callers.
_PASSED_OVER = {
    "torch.random",
    "torch.cuda",
    "torch.cuda.random",
    "torch._compile",
    "torch._dynamo.eval_frame",
    "contextlib",
}
_REFUSED = {"get_state", "set_state", "manual_seed", "seed", "initial_seed", "get_offset", "set_offset",
            "graphsafe_get_state", "graphsafe_set_state", "clone_state"}  # fmt: skip


@contextlib.contextmanager
def only_draws() -> Iterator[None]:
    """Raise TraceError, with the line, if the user's code reads, sets or seeds the state of torch's default generators.

    It would happen once, while tracing, and never in a planned step.
    """
    cpu, cuda = torch.random.default_generator, getattr(torch.cuda, "default_generators", ())
    before, seed = _state(cpu), cpu.initial_seed()
    guarded = _Guarded(cpu)
    torch.random.default_generator = guarded  # type: ignore[assignment]
    if cuda:  # else CUDA is not in use yet; where forward begins to use it, torch sets them
        torch.cuda.default_generators = tuple(map(_Guarded, cuda))  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.random.default_generator = cpu
        if cuda:
            torch.cuda.default_generators = cuda  # type: ignore[assignment]
    # Uses that bypass `_Guarded`. Tracing itself draws nothing; other threads may have drawn.
    if guarded.others:
        return
    if cpu.initial_seed() != seed or _state(cpu) != before and threading.active_count() == 1:
        cpu.set_state(torch.frombuffer(bytearray(before), dtype=torch.uint8))
        raise TraceError(_message("the model changes the state of torch's random generator"), reason=SETS_GENERATOR)


def _state(generator: torch.Generator) -> bytes:
    with disable_modes():
        return generator.get_state().numpy().tobytes()


class _Guarded:
    """Stands for one of torch's generators and refuses some methods to one thread. others : whether other threads used them."""

    def __init__(self, generator: torch.Generator):
        self._generator, self._thread, self.others = generator, threading.get_ident(), False

    def __getattr__(self, name: str) -> Any:
        asks = name in _REFUSED
        if asks and threading.get_ident() != self._thread:
            self.others = True
        elif asks and (frame := _user_frame(sys._getframe(1))) is not None:
            raise TraceError(
                _message(f"the model reads or sets the state of torch's random generator at {line_of(frame)}"),
                reason=SETS_GENERATOR,
            )
        return getattr(self._generator, name)


def _message(what: str) -> str:
    return (
        f"{what}, which happens once, while the call is captured, and not in planned steps. Seed outside of forward; or draw "
        "there and pass the numbers in"
    )


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """The user's frame that called; None: torch or this library called for its own purposes."""
    while frame is not None and frame.f_globals.get("__name__") in _PASSED_OVER:
        frame = frame.f_back
    return frame if frame is not None and is_users(frame) else None


@contextlib.contextmanager
def no_other_random() -> Iterator[None]:
    """Raise TraceError if forward uses Python's or NumPy's random generator, whose numbers would be constants of the graph.

    Both start from fresh states, so that a forward that seeds them is noticed at every capture.
    """
    lines: list[str] = []
    with pythons(lines) as python_used, numpys(lines) as numpy_used:

        def refuse_use() -> None:
            used = [name for name, is_used in (("Python's", python_used), ("NumPy's", numpy_used)) if is_used()]
            if used:
                where = f" at {lines[0]}" if lines else ""
                raise TraceError(
                    f"the model draws from {used[0]} random generator, or seeds it{where}; its numbers would be constants of "
                    "the plan; draw with torch and decide with torch.where, or draw outside of forward and pass the result in",
                    line=in_short(lines[0]) if lines else "",
                    reason="draws from Python's or NumPy's random generator",
                )

        try:
            yield
        except TraceError:  # numbers that differ in every attempt may be its cause
            refuse_use()
            raise
        refuse_use()


def refuse_own(op: Any, generator: torch.Generator) -> NoReturn:
    """Raise TraceError for an op of forward that draws from this generator, with the user's name for it and the line."""
    frame = users_frame()
    local = {} if frame is None else frame.f_locals
    owner = next(iter(local)) if local else ""  # the first parameter: `self` in a method
    seen = [*local.items(), *({} if frame is None else frame.f_globals).items()]
    seen += [(f"{owner}.{k}", x) for k, x in getattr(local.get(owner), "__dict__", {}).items()]
    names = [k for k, x in seen if isinstance(x, torch.Generator) and x._cdata == generator._cdata]  # type: ignore[attr-defined]
    which = f", {names[0]}," if names else ""
    where = f" at {line_of(frame)}" if frame is not None else ""
    raise TraceError(
        f"the model draws from a generator of its own{which} by {op}{where}. A plan cannot put its state back to draw the "
        "same numbers again: draw from torch's default generator, which torch.manual_seed seeds, or draw outside of forward "
        "and pass the numbers in",
        reason="draws from a generator of its own",
    )


# -- ranges -------------------------------------------------------------------------------------------------------------
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
