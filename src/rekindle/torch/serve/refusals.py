"""Calls for which a module has no plan, and those that cannot be planned: the next call like them runs plain at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...ask import TraceOptions
from ...printed import listed
from ..run.bound import BoundPlan
from ..situation.guards import Expected, Guards
from ..situation.module_call import Key, ModuleCall
from ..situation.numbers import Place
from ..situation.values import apart_from_identity
from ..tensors.sharded import own_class
from ..trace import Trace, trace_call
from .bound_plans import BoundPlans
from .lengths import covers

# When planning is given up for a kind of call. All numbers are guesses.
WASTED_PLANS_MOST = 8  # hardly used plans for calls of the same shapes: something varies, and no further plan is made
MADE_ANEW_MOST = 3  # the same where only an object differs that each call makes anew: a tensor in a hook's closure, say
HARDLY_USED_RUNS = 2  # a plan that ran more often is no waste: a rate that changes every epoch may go on changing
FAILED_STATES_MOST = 3  # states of the module in which one call could not be planned; then it is not tried again
Why = tuple[str, str]  # the sentence that says why such a call runs plain, and the kind of the reason
FAILED_CALLS_MOST = 512  # kinds of calls that could not be planned and are remembered; the oldest is tried again


@dataclass(frozen=True)
class _Varying:
    """A kind of call of which something varies from call to call.

    names : parameters of forward whose arguments vary.
    rest : the key of such a call without those arguments.
    guards : check the module's state, except for the parts of it that vary. tried : plans that were wasted.
    why : the reason, in words.
    """

    names: frozenset[Any]
    rest: Key
    guards: Guards
    tried: int
    why: str


class Refusals:
    """The calls of one planned module that run plain; `plans` are its plans."""

    def __init__(self, plans: BoundPlans) -> None:
        self._plans = plans
        # calls that cannot be planned, by states of the module
        self._failed: dict[Key, list[tuple[Guards, Why]]] = {}
        self._varying: list[_Varying] = []

    def hold(self, model: nn.Module, key: Key) -> Why | None:
        """Why this call runs plain, where that is known; None: it is not."""
        failed = self._failed.get(key, ())
        for guards, why in failed:
            if len(failed) >= FAILED_STATES_MOST or guards.hold(model):
                return why
        for v in self._varying:
            if _without(key, v.names) == v.rest and self._tried(key) >= v.tried and v.guards.hold(model):
                return f"{type(model).__name__} runs plain where {v.why}", v.why
        return None

    def add(self, model: nn.Module, key: Key, why: Why) -> None:
        """Note that this call cannot be planned in the module's present state."""
        self._failed.setdefault(key, []).append((Guards(model, Expected.of(model)), why))
        while len(self._failed) > FAILED_CALLS_MOST:
            self._failed.pop(next(iter(self._failed)))

    def what_varies(self, model: nn.Module, key: Key) -> str:
        """Why another plan for calls of the given shapes is not worth making, as part of a message; "" if it is.

        The reason is remembered: later calls that differ only in the varying parts run plain at once.
        """
        count = self._tried(key)
        alike = [k for k in (*dict.fromkeys(b.trace.key for b in self._plans), *self._failed) if k[0] == key[0]]
        anew = sum(k != key and apart_from_identity(k) == apart_from_identity(key) for k in alike)
        anew += sum(_wasted(b) and b.trace.expected.made_anew(model) for b in self._plans.family(key))
        if count < WASTED_PLANS_MOST and anew < MADE_ANEW_MOST:
            return ""
        names = [x for x, values in _by_name([k[1] for k in (*alike, key)]) if len(set(values)) > 1]
        like = next((b for b in self._plans if b.trace.key[0] == key[0]), None)
        expected = None if like is None else like.trace.expected
        changed: list[str] = []
        if not names:
            family = self._plans.family(key)
            changed = [d for b in family for d in b.trace.expected.differences(model)]
        what = listed([*map(str, names), *changed]) or "the values of its inputs"
        how = ", in objects that each call makes anew" if anew >= MADE_ANEW_MOST else ""
        why = f"{what} differ from call to call{how}: {count} plans were tried"
        if expected is not None:
            state = Expected.of(model, expected.reads, {*expected.ignored, *changed})
            self._varying = self._varying[-WASTED_PLANS_MOST:]
            self._varying.append(_Varying(frozenset(names), _without(key, names), Guards(model, state), count, why))
        return why

    def let_go(self) -> None:
        """Hold no reference to submodules and attributes until the next look at the module."""
        failed = (g for family in self._failed.values() for g, _ in family)
        for guards in (*failed, *(v.guards for v in self._varying)):
            guards.let_go()

    def _tried(self, key: Key) -> int:
        """Number of hardly used plans for calls of the given shapes, plus number of such calls that could not be planned."""
        count = sum(_wasted(b) for b in self._plans if b.trace.key[0] == key[0])
        return count + sum(k[0] == key[0] for k in self._failed)


def _wasted(bound: BoundPlan) -> bool:
    return bound.uses <= HARDLY_USED_RUNS


def _without(key: Key, names: Any) -> Key:
    """The key of a call without the named arguments."""
    shapes, constants, surroundings = key
    rest = [(k, x) for table in _tables([constants]) for k, x in table.items() if k not in names]
    return shapes, tuple(rest), surroundings


def _tables(constants: list[Any]) -> list[dict[Any, Any]]:
    return [dict(zip(names or (), values, strict=False)) for _, names, values, *_ in constants]


def _by_name(constants: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """(parameter of forward, its arguments in the calls)."""
    tables = _tables(constants)
    for name in dict.fromkeys(k for t in tables for k in t):
        yield name, [t.get(name) for t in tables]


@dataclass(frozen=True)
class NewCall:
    """A call for which a module has no plan.

    model, plain : the module and its own forward.
    call, key : the arguments, and the key that tells calls of one kind from others.
    began : when work on the call began, in seconds of `time.perf_counter`.
    """

    model: nn.Module
    plain: Callable[..., Any]
    call: ModuleCall
    key: Key
    began: float

    @property
    def words(self) -> str:
        """The call as the beginning of a message."""
        given = f"with inputs {self.call.shapes}" if self.call.tensors else "without tensors"
        return f"{own_class(self.model).__name__} was called {given}"

    @property
    def trains(self) -> bool:
        """Whether a parameter or an argument requires grad."""
        return any(p.requires_grad for p in self.model.parameters()) or any(t.requires_grad for t in self.call.tensors)

    @property
    def unplanned(self) -> tuple[str, str] | None:
        """Why no call like this can be planned, as part of a message, and the kind of the reason; None: it may be."""
        if stands_in := next((n for n, p in self.model.named_parameters() if not isinstance(p, nn.Parameter)), None):
            return (
                f" with a tensor in place of its parameter {stands_in!r}, as torch.func.functional_call does",
                "stand-in",
            )
        words = f"; {', '.join(self.call.used_up)} can be read only once, and planning would read it: pass a list"
        return (words, "") if self.call.used_up else None

    @property
    def took(self) -> float:
        """Seconds since work on the call began."""
        return time.perf_counter() - self.began

    def trace(
        self,
        how: TraceOptions,
        *,
        report: Callable[[str], None] | None,
        by_values: bool = True,
        inputs: Mapping[Place, Any] | None = None,
    ) -> Trace:
        """The captured call. Arguments as `trace_call`; report : called with lines of progress. A call without a result that
        `how.unused` names is captured all the same: forward may return it in some calls only.

        No op is timed: a training loop waits. Costs are modelled, by what was timed before. A trace with `inputs` has no costs.
        """
        args, kwargs = self.call.arguments
        how = replace(how, inside=self.call.inside)
        made = trace_call(
            self.model, args, kwargs, how, forward=self.plain, progress=report, by_values=by_values, inputs=inputs or {}
        )
        return made if inputs else made.costed(how.target, report, measure=False)


def fits_plain(new: NewCall, budget: int | None, plain: Iterable[tuple[Key, int | None]]) -> bool:
    """Whether the call's plain step takes no more than the budget in bytes, or than its GPU has, as far as larger calls tell.
    plain : keys of planned calls, and the peaks of their plain steps."""
    on = next((t.device for t in (*new.call.tensors, *new.model.parameters()) if t.is_cuda), None)
    limit = budget or on and torch.cuda.get_device_properties(on).total_memory
    return not limit or any(peak is not None and peak <= limit for key, peak in plain if covers(key, new.key))
