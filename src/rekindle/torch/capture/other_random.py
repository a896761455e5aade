"""Watches one thread's use of Python's and NumPy's global random generators; the draws of other threads are none of it.

A thread that prefetches batches draws all the time, so the states of the generators alone do not tell who drew. Meanwhile the
watched thread draws from a fresh state, which no code seeds it with, and other threads draw from copies of what the generators
were. Those copies are what stays afterwards.

A thread that calls a generator's functions by names of its own, which it took beforehand (`from random import random`, sampling
by `numpy.random.mtrand._rand`), still draws from the generator itself, and cannot be told from the watched thread.
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


@contextlib.contextmanager
def pythons() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether this thread has drawn from Python's generator meanwhile, or seeded it."""
    inst, others = random._inst, random.Random()
    others.setstate(inst.getstate())
    inst.seed()
    kind = type(inst)
    over, methods = _divided({k: (getattr(kind, k), _of(getattr(others, k))) for k in _ENDS})
    # Every method of Random's ends in one of these, also where a module took it by its name (`from random import choice`).
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
def numpys() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether this thread has drawn from NumPy's generator meanwhile, or seeded it."""
    shared: Any = np.random
    get, put = shared.get_state, shared.set_state
    others, fresh = (np.random.RandomState(type(shared.get_bit_generator())()) for _ in range(2))
    others.set_state(get(legacy=False))
    put(fresh.get_state(legacy=False))
    before = {k: vars(shared)[k] for k in shared.__all__ if hasattr(others, _ALIASES.get(k, k))}
    over, divided = _divided({k: (own, getattr(others, _ALIASES.get(k, k))) for k, own in before.items()})
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
) -> tuple[threading.Event, dict[str, Callable[..., Any]]]:
    """(event that ends it, functions by name): of each pair this thread calls the first, and other threads the second."""
    here, over = threading.get_ident(), threading.Event()

    def one(own: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: (own if over.is_set() or threading.get_ident() == here else theirs)(
            *args, **kwargs
        )

    return over, {k: one(*pair) for k, pair in functions.items()}


def _of(bound: Callable[..., Any]) -> Callable[..., Any]:
    """A method that leaves the object aside on which it is called."""
    return lambda _, *args, **kwargs: bound(*args, **kwargs)


def _second_of_a_pair(others: random.Random) -> property:
    """The number that `gauss` keeps for its next call, for each side its own."""
    here = threading.get_ident()

    def holder(self: random.Random) -> dict[str, Any]:
        return vars(self if threading.get_ident() == here else others)

    return property(lambda self: holder(self)["gauss_next"], lambda self, x: holder(self).update(gauss_next=x))


def _settle() -> None:
    """Let draws end that other threads had begun."""
    if threading.active_count() > 1:
        time.sleep(0.01)
