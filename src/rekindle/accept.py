"""Checks arguments of the public functions before any long work. Needs no torch; `torch.accept` checks models."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from .errors import UsageError
from .graph import COSTS
from .solvers import registry

SEEDS = 2**32


def search(solver: Any, cost: Any, time_limit: Any, seed: Any, progress: Any = None) -> None:
    """The options of a search for a plan.

    Raises
    ------
    UsageError : an unknown solver or cost, a time limit that is no finite number above 0, a seed that is no whole number
        from 0 to 2**32 - 1, a progress that cannot be called.
    """
    registry.get(solver)
    choice("cost", cost, COSTS)
    real = isinstance(time_limit, Real) and not isinstance(time_limit, bool)
    if time_limit is not None and not (real and 0 < time_limit < math.inf):
        raise UsageError(
            f"time_limit={time_limit!r} must be a number of seconds above 0; None lets the solver take what it needs"
        )
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= int(seed) < SEEDS:
        raise UsageError(f"seed={seed!r} must be a whole number from 0 to {SEEDS - 1}; the default is 0")
    callback("progress", progress)


def callback(name: str, given: Any) -> None:
    """Check that it is a function, or None, True or False in its place.

    Raises
    ------
    UsageError : it is something else.
    """
    if given is not None and not isinstance(given, bool) and not callable(given):
        raise UsageError(
            f"{name}={given!r} cannot be called; give a function that takes one line of text, or leave it out"
        )


def choice(name: str, given: Any, known: Iterable[str]) -> None:
    """Check that it is one of the known names; UsageError lists them where it is not."""
    known = list(known)
    if not isinstance(given, str) or given not in known:
        raise UsageError(f"{name}={given!r} is unknown; {close(given, known)}choose one of {', '.join(known)}")


def flag(name: str, given: Any) -> None:
    """Check that it is True or False; UsageError where it is not."""
    if type(given).__name__ not in ("bool", "bool_"):  # NumPy's is as good
        raise UsageError(f"{name}={given!r} must be True or False")


def close(given: Any, known: Iterable[str], most: int = 3) -> str:
    """ "did you mean 'chen-sqrt'? ", or "" where no known name is like the given one."""
    near = difflib.get_close_matches(given, list(known), most) if isinstance(given, str) else []
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


def file_name(path: Any) -> str:
    """The path of a file as text.

    Raises
    ------
    UsageError : it is no path.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise UsageError(f"{path!r:.80} is not the path of a file; give a str or a Path")
    return text


def plan(given: Any) -> None:
    """Check that it is a Plan.

    Raises
    ------
    UsageError : it is something else; the message says how to get one.
    """
    from .plan import Plan

    if isinstance(given, Plan):
        return
    if isinstance(given, str | os.PathLike):
        raise UsageError(f"plan={given!r} is the name of a file; read it first: rekindle.load({os.fspath(given)!r})")
    got = "None" if given is None else f"of type {type(given).__name__}"
    hint = (
        "take one of the list"
        if isinstance(given, list | tuple)
        else "make one: rekindle.plan(rekindle.trace(model, sample), budget=…)"
    )
    raise UsageError(f"plan is {got}, not a Plan; {hint}")
