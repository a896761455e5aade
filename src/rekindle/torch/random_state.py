"""While tracing, forward may only draw from torch's default random generators; anything else is a TraceError."""

from __future__ import annotations

import contextlib
import linecache
import os
import random
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import TraceError

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Functions in these files act for whoever calls them.
_PASSED_OVER = tuple(
    os.path.join(_TORCH, f) for f in ("random.py", "cuda/random.py", "_compile.py", "_dynamo/eval_frame.py")
)
_REFUSED = {"get_state", "set_state", "manual_seed", "seed", "initial_seed", "get_offset", "set_offset",
            "graphsafe_get_state", "graphsafe_set_state", "clone_state"}  # fmt: skip


@contextlib.contextmanager
def only_draws() -> Iterator[None]:
    """Raise TraceError, naming the line, where code that is not torch's own reads, sets or seeds the state of torch's
    default generators: that would happen once, while tracing, and never in a planned step."""
    cpu, cuda = torch.random.default_generator, getattr(torch.cuda, "default_generators", ())
    before = _state(cpu)
    torch.random.default_generator = _Guarded(cpu)  # type: ignore[assignment]
    torch.cuda.default_generators = tuple(map(_Guarded, cuda))  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.random.default_generator = cpu
        torch.cuda.default_generators = cuda  # type: ignore[assignment]
    if _state(cpu) != before:  # past the guard; tracing itself draws nothing
        cpu.set_state(torch.frombuffer(bytearray(before), dtype=torch.uint8))
        raise TraceError(_message("the model changes the state of torch's random generator"))


def _state(generator: torch.Generator) -> bytes:
    with _disable_current_modes():
        return generator.get_state().numpy().tobytes()


class _Guarded:
    def __init__(self, generator: torch.Generator):
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED and (frame := _user_frame(sys._getframe(1))) is not None:
            file, line = frame.f_code.co_filename, frame.f_lineno
            text = linecache.getline(file, line).strip()
            where = f'{file}:{line}, in {frame.f_code.co_name}: "{text}"'
            raise TraceError(_message(f"the model reads or sets the state of torch's random generator at {where}"))
        return getattr(self._generator, name)


def _message(what: str) -> str:
    return (
        f"{what}, which happens once, while the call is captured, and not in planned steps. Seed outside of forward; or draw "
        "there and pass the numbers in"
    )


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """The frame that asks, unless torch or this library asks for its own ends."""
    while frame is not None:
        file = os.path.abspath(frame.f_code.co_filename)
        if file not in _PASSED_OVER and os.path.basename(file) != "contextlib.py":
            return None if file.startswith((_TORCH, _OURS)) else frame
        frame = frame.f_back
    return None


@contextlib.contextmanager
def no_other_random() -> Iterator[None]:
    """Raise TraceError where forward uses Python's or NumPy's random generator, whose numbers would be constants of the graph.

    Both start from a state that no model seeds them with: one that forward seeds itself is seen each time, not only the first.
    """
    before = random.getstate(), np.random.get_state(legacy=False)
    random.seed()
    np.random.seed()
    fresh = random.getstate(), str(np.random.get_state(legacy=False))
    try:
        yield
        after = random.getstate(), str(np.random.get_state(legacy=False))
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
    for name, x, y in zip(("Python's", "NumPy's"), fresh, after, strict=True):
        if x != y:
            raise TraceError(
                f"the model draws from {name} random generator, or seeds it; a plan would fix its numbers for good; draw "
                "with torch and decide with torch.where, or draw outside of forward and pass the result in"
            )
