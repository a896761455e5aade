"""Checks the arguments of `plan`, `frontier`, `apply` and `checkpoint` before any long work. (`torch.accept` checks models.)"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from . import registry
from .arguments import callback, choice, flag
from .ask import EFFORTS, PARITIES, Goal, PlanOptions
from .errors import UsageError
from .model.graph import COSTS
from .model.plan import Plan

SEEDS = 2**32  # seeds are below it, as NumPy's are


def search(
    goal: Goal, *, solver: Any, cost: Any, effort: Any, time_limit: Any, seed: Any, cache: Any, parity: Any = "bitwise",
    progress: Any = None,
) -> PlanOptions:  # fmt: skip
    """The options of a search, checked, with plain Python numbers in place of NumPy's.

    Raises
    ------
    UsageError : an unknown solver, cost, effort or parity, a time limit that is no finite number above 0, a seed that is no
        whole number from 0 to 2**32 - 1, a cache that is no flag, a progress that cannot be called.
    """
    registry.get(solver)
    choice("cost", cost, COSTS)
    choice("effort", effort, EFFORTS)
    choice("parity", parity, PARITIES)
    flag("cache", cache)
    real = isinstance(time_limit, Real) and not isinstance(time_limit, bool)
    if time_limit is not None and not (real and 0 < time_limit < math.inf):
        raise UsageError(
            f"time_limit={time_limit!r} must be a number of seconds above 0; None lets the solver take what it needs"
        )
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= int(seed) < SEEDS:
        raise UsageError(f"seed={seed!r} must be a whole number from 0 to {SEEDS - 1}; the default is 0")
    callback("progress", progress)
    seconds = time_limit if time_limit is None or type(time_limit) is int else float(time_limit)
    return PlanOptions(
        goal,
        solver=solver,
        cost=cost,
        effort=effort,
        time_limit=seconds,
        seed=int(seed),
        cache=cache,
        parity=parity,
        progress=progress,
    )


def unused(given: Any) -> tuple[str, ...]:
    """The names of `unused` in order, each once; a bare string is one name. The capture says whether there are such results.

    Raises
    ------
    UsageError : it is no name and no list of names.
    """
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else given
    if not isinstance(names, tuple) or not all(isinstance(x, str) and x and x.isprintable() for x in names):
        raise UsageError(f"unused={given!r:.80} must be names of results, such as ['logits']")
    return tuple(sorted(set(names)))


def plan(given: Any) -> None:
    """Check that the argument is a Plan.

    Raises
    ------
    UsageError : the argument is something else; the message says how to get a plan.
    """
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
