"""Notices whether one thread uses Python's or NumPy's global random generator, whatever other threads draw.

A thread that prefetches batches draws all the time, so a changed generator does not show which thread drew. Inside the context
managers of this file the watched thread draws from a fresh random state, and other threads from copies of the generators. At
the end the generators continue from these copies.

A thread that took a generator's functions under names of its own beforehand (`from random import random`, or
`numpy.random.mtrand._rand`) still draws from the generator itself, and is mistaken for the watched thread.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...saying.frames import line_of, users_frame


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
    before = {k: getattr(random, k) for k in _ENDS}
    vars(random).update({k: getattr(inst, k) for k in _ENDS})
    _settle()
    fresh = kind.getstate(inst)
    try:
        yield lambda: kind.getstate(inst) != fresh
    finally:
        over.set()
        vars(random).update(before)
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
    vars(shared).update(divided)
    _settle()
    state = pickle.dumps(get(legacy=False))
    try:
        yield lambda: pickle.dumps(get(legacy=False)) != state
    finally:
        over.set()
        vars(shared).update(before)
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
