"""Checks the arguments of `plan`, `frontier`, `apply` and `checkpoint` before any long work. (`torch.accept` checks models.)"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

from ..arguments import callback, choice, flag, names_in
from ..ask import EFFORTS, GRADIENTS, OFFLOADS, PARITIES, WITH_STATE, PlanOptions
from ..compiling import CompileOptions
from ..errors import UsageError
from ..model.any_plan import AnyPlan
from ..model.graph import COSTS, Graph
from ..printed import value
from ..saying.sizes import parse_bytes
from . import registry

TIME_MOST_S = 1e9  # of a search: thirty years
SEEDS = 2**32  # seeds are below it, as NumPy's are


def search(asked: PlanOptions) -> PlanOptions:
    """The options of a search, checked, with plain Python numbers in place of NumPy's.

    Raises
    ------
    UsageError : an unknown solver, cost, effort or parity, an offload that is none or whose cost is not seconds, a host budget
        without offload, a time limit that is no finite number above 0, a seed out of range, a flag that is none, or_least
        without a budget, a progress that cannot be called.
    """
    registry.get(asked.solver)
    choice("cost", asked.cost, COSTS)
    choice("effort", asked.effort, EFFORTS)
    choice("parity", asked.parity, PARITIES)
    flag("cache", asked.cache)
    flag("or_least", asked.or_least)
    if asked.or_least and not asked.goal.is_budget:
        raise UsageError(
            "or_least=True is for a budget: where none can be kept, the plan of least memory takes its place"
        )
    if not isinstance(asked.offload, bool | str) or asked.offload not in OFFLOADS:
        raise UsageError(
            'offload="optimizer" is for rekindle.checkpoint, which is given the optimizer itself; here leave optimizer= out, '
            'so that its state does not count, and give offload="auto"'
            if isinstance(asked.offload, str) and asked.offload == WITH_STATE
            else f'offload={value(asked.offload)} must be True, False or "auto", or for rekindle.checkpoint "optimizer"'
        )
    if asked.offload is True and asked.cost != "seconds":
        raise UsageError(
            f'offload=True weighs copies against recomputation in seconds, and cost="{asked.cost}" was asked; leave out one of '
            "the two"
        )
    if asked.host_budget is not None and not asked.offload:
        raise UsageError(
            f"host_budget={asked.host_budget} is for values that are copied to the host; give offload=True beside it"
        )
    time_limit: Any = asked.time_limit
    real = isinstance(time_limit, Real) and not isinstance(time_limit, bool)
    if time_limit is not None and not (real and 0 < time_limit <= TIME_MOST_S):
        raise UsageError(
            f"time_limit={value(time_limit)} must be a number of seconds above 0 and at most {TIME_MOST_S:g}; None lets the "
            "solver take what it needs"
        )
    callback("progress", asked.progress)
    seconds = time_limit if time_limit is None or type(time_limit) is int else float(time_limit)
    offload = asked.offload if asked.cost == "seconds" else False
    host = asked.host_budget if offload else None
    return replace(asked, time_limit=seconds, seed=seed(asked.seed), offload=offload, host_budget=host)


def host_bytes(given: str | int | None) -> int | None:
    """The bytes of `host_budget=`.

    Raises
    ------
    UsageError : it is no size.
    """
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, Integral | str):
        raise UsageError(f'host_budget={value(given)} is no size; write it like "16GiB" or as a number of bytes')
    try:
        return parse_bytes(str(given))
    except UsageError as e:
        raise UsageError(f"host_budget: {e}") from None


def seed(given: Any) -> int:
    """The seed as Python's int.

    Raises
    ------
    UsageError : it is no whole number from 0 to 2**32 - 1.
    """
    if not isinstance(given, Integral) or isinstance(given, bool) or not 0 <= int(given) < SEEDS:
        raise UsageError(f"seed={value(given)} must be a whole number from 0 to {SEEDS - 1}; the default is 0")
    return int(given)


def unused(given: Any) -> tuple[str, ...]:
    """The names of `unused` in order, each once; a bare string is one name. The capture says whether there are such results.

    Raises
    ------
    UsageError : it is no name and no list of names.
    """
    of = "names of results, such as ['logits']"
    names = names_in("unused", given, of)
    if not all(map(str.isprintable, names)):
        raise UsageError(f"unused={value(given)} must be {of}")
    return tuple(sorted(set(names)))


def unused_of(what: Any, given: Any) -> None:
    """Check that the results named as unused are those that the trace leaves out: its graph holds nothing for them.

    Raises
    ------
    UsageError : other results are named, or results of a bare Graph, which has no names for them.
    """
    if given is None:
        return
    names = unused(given)
    if isinstance(what, Graph):
        if names:
            raise UsageError("unused needs a Trace; a bare Graph does not know the names of results")
        return
    known = getattr(getattr(what, "options", None), "unused", names)  # of something else, another check tells
    if names != known:
        made = f"was made with unused={list(known)}" if known else "makes all results"
        raise UsageError(
            f"unused={value(list(names))}: the trace {made}; name the results when the model is traced: "
            f"rekindle.trace(model, sample, unused=…)"
        )


def trace_or_graph(what: Any, target: str | None, options: PlanOptions, gradients: str | None) -> Any:
    """The given Trace or Graph; a Trace with the seconds of the target and for the treatment of gradients that are named.

    Raises
    ------
    UsageError : `what` is neither, or a target or gradients are named for a bare Graph.
    """
    if gradients is not None:
        choice("gradients", gradients, GRADIENTS)
    if isinstance(what, Graph):
        if target is not None or gradients is not None:
            raise UsageError("target and gradients need a Trace; a bare Graph carries its own seconds and gradients")
        return what
    if not isinstance(getattr(what, "graph", None), Graph):
        got = "None" if what is None else f"something of type {type(what).__name__}"
        raise UsageError(
            f"plan and frontier take a Trace or a Graph, not {got}; trace the model first: rekindle.trace(model, sample)"
        )
    trace = what if gradients is None else what.with_gradients(gradients)
    return trace if target is None else trace.costed(target, options.report)


def plan(given: Any) -> None:
    """Check that the argument is a plan, of a whole step or of parts.

    Raises
    ------
    UsageError : the argument is something else; the message says how to get a plan.
    """
    if isinstance(given, AnyPlan):
        return
    if isinstance(given, str | os.PathLike):
        raise UsageError(
            f"plan={value(given)} is the name of a file; read it first: rekindle.load({value(os.fspath(given))})"
        )
    got = "None" if given is None else f"of type {type(given).__name__}"
    hint = (
        "take one of the list"
        if isinstance(given, list | tuple)
        else "make one: rekindle.plan(rekindle.trace(model, sample), budget=…)"
    )
    raise UsageError(f"plan is {got}, not a Plan; {hint}")


def compiled(compile: Any, options: PlanOptions, strict: bool, must_save: Sequence[str]) -> CompileOptions | None:
    """The options of `compile=`; None: nothing is compiled.

    Raises
    ------
    UsageError : it is none, or goes together with what compiled parts cannot keep.
    """
    found = CompileOptions.parse(compile)
    if found is None:
        return None
    if options.cost != "seconds":
        raise UsageError(
            f'compile=True measures seconds, and cost="{options.cost}" was asked; leave `cost` out, or `compile`'
        )
    if strict:
        raise UsageError(
            "strict=True captures the whole model, and compile=True plans its parts; leave out one of the two"
        )
    if must_save:
        raise UsageError(
            f"must_save={value(list(must_save))} is for captured steps, and compiled parts are none; leave out one of the two"
        )
    return found
