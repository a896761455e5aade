"""Saves and restores random states, so that a recomputed random op draws the same numbers; and notices whether one thread uses
Python's or NumPy's global generator, whatever other threads draw.

A thread that prefetches batches draws all the time, so a changed generator does not show which thread drew. Inside `pythons`
and `numpys` the watched thread draws from a fresh random state, and other threads from copies of the generators. At the end the
generators continue from these copies.

A thread that took a generator's functions under names of its own beforehand (`from random import random`, or
`numpy.random.mtrand._rand`) still draws from the generator itself, and is mistaken for the watched thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from ...errors import RekindleError
from ...saying.frames import line_of, users_frame
from ..private import fake_mode_of, is_fake, tree_leaves
from .objects import values_set


def state(device: str) -> Any:
    """State of the device's default generator, as bytes in host memory; None under fake tensors."""
    if fake_mode_of() is not None:
        return None  # fake tensors hold no numbers, and the generator's state could not be read through the mode
    now = torch.cuda.get_rng_state(device) if device.startswith("cuda") else torch.get_rng_state()
    return now.numpy().tobytes()


def restore(saved: Any, device: str) -> None:
    """Put the device's default generator into a state that `state` returned; None changes nothing."""
    if saved is None:
        return
    tensor = torch.frombuffer(bytearray(saved), dtype=torch.uint8)
    if device.startswith("cuda"):
        torch.cuda.set_rng_state(tensor, device)
    else:
        torch.set_rng_state(tensor)


_turn = threading.RLock()  # threads that train by plans draw in turns; others are noticed
# Random op -> states of the generator before and after its first run, its digest.
Kept = dict[Any, tuple[Any, Any, int]]


def draw(kept: Kept, op: int, device: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Return `call(*args, **kwargs)`, and keep for `replay` where the generator was."""
    with _turn:
        before = state(device)
        result = call(*args, **kwargs)
        kept[op] = before, state(device), _digest(result) if threading.active_count() > 1 else 0
    return result


def replay(kept: Kept, op: int, device: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Return `call(*args, **kwargs)` with the numbers that the op drew first, and put the generator's present state back.

    Raises
    ------
    RekindleError : another thread drew while the op ran, now or then: these would be other numbers.
    """
    with _turn:
        before, (begin, end, digest) = state(device), kept[op]
        restore(begin, device)
        try:
            result = call(*args, **kwargs)
            # Another thread may also have drawn right after the op, which does no harm.
            # With a digest it alone counts: another thread may have drawn as many numbers now as it did then.
            if digest != _digest(result) if digest else state(device) != end:
                raise RekindleError(
                    "a planned step cannot draw its random numbers again: another thread drew from torch's generator of "
                    f"{device} at the same moment, in forward or now, so gradients would be wrong. Let that thread draw "
                    "from a torch.Generator of its own, or plan with must_save= for the modules that draw"
                )
            return result
        finally:
            restore(before, device)


def _digest(result: Any) -> int:
    """A checksum of the bytes of all tensors in host memory; 0: there are none."""
    found = 0
    for t in tree_leaves(result):
        if isinstance(t, torch.Tensor) and t.device.type == "cpu" and not is_fake(t):
            raw = ctypes.c_char * t.untyped_storage().nbytes()
            found = zlib.crc32(raw.from_address(t.untyped_storage().data_ptr()), found) or 1
    return found


def cuda_indices(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Sorted indices of the CUDA devices that the tensors are on."""
    return sorted({t.device.index or 0 for t in tensors if t.device.type == "cuda"})


@contextlib.contextmanager
def pythons(lines: list[str] | None = None) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether this thread has drawn from or seeded Python's generator since.

    lines : gets the user's lines that use it.
    """
    inst, others = random._inst, random.Random()
    others.setstate(inst.getstate())
    inst.seed()
    kind = type(inst)
    over, methods = _divided({k: (getattr(kind, k), _of(getattr(others, k))) for k in _ENDS}, lines)
    # Every method of Random calls one of the methods below in the end, also a method that a module imported
    # (`from random import choice`).
    inst.__class__ = type(kind.__name__, (kind,), {**methods, "gauss_next": _second_of_a_pair(others)})
    try:
        with values_set([(vars(random), k, getattr(inst, k)) for k in _ENDS]):
            _settle()
            fresh = kind.getstate(inst)
            yield lambda: kind.getstate(inst) != fresh
    finally:
        over.set()
        inst.__class__ = kind
        inst.setstate(others.getstate())


@contextlib.contextmanager
def numpys(lines: list[str] | None = None) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether this thread has drawn from or seeded NumPy's generator since.

    lines : gets the user's lines that use it.
    """
    shared: Any = np.random
    get, put = shared.get_state, shared.set_state
    others, fresh = (np.random.RandomState(type(shared.get_bit_generator())()) for _ in range(2))
    others.set_state(get(legacy=False))
    put(fresh.get_state(legacy=False))
    before = {k: vars(shared)[k] for k in shared.__all__ if hasattr(others, _ALIASES.get(k, k))}
    over, divided = _divided({k: (own, getattr(others, _ALIASES.get(k, k))) for k, own in before.items()}, lines)
    try:
        with values_set([(vars(shared), k, call) for k, call in divided.items()]):
            _settle()
            state = pickle.dumps(get(legacy=False))
            yield lambda: pickle.dumps(get(legacy=False)) != state
    finally:
        over.set()
        put(others.get_state(legacy=False))


_ENDS = ("random", "getrandbits", "seed", "getstate", "setstate")
_ALIASES = {"sample": "random_sample", "ranf": "random_sample"}


def _divided(
    functions: dict[str, tuple[Callable[..., Any], Callable[..., Any]]],
    lines: list[str] | None,
) -> tuple[threading.Event, dict[str, Callable[..., Any]]]:
    """(event, functions by name): until the event, this thread calls the first of a pair and other threads the second.

    lines : gets the user's line of each call of the first.
    """
    here, over = threading.get_ident(), threading.Event()

    def one(own: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            is_own = threading.get_ident() == here
            if is_own and lines is not None and not over.is_set() and (frame := users_frame()) is not None:
                lines.append(line_of(frame))
            return (own if over.is_set() or is_own else theirs)(*args, **kwargs)

        return call

    return over, {k: one(*pair) for k, pair in functions.items()}


def _of(bound: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls `bound` and ignores its own object."""
    return lambda _, *args, **kwargs: bound(*args, **kwargs)


def _second_of_a_pair(others: random.Random) -> property:
    """A property for the number that `gauss` keeps for its next call: one for this thread, one for the others."""
    here = threading.get_ident()

    def holder(self: random.Random) -> dict[str, Any]:
        return vars(self if threading.get_ident() == here else others)

    return property(lambda self: holder(self)["gauss_next"], lambda self, x: holder(self).update(gauss_next=x))


def _settle() -> None:
    """Wait until draws that other threads have begun are surely done."""
    if threading.active_count() > 1:
        time.sleep(0.01)
