"""The plans on one module, and the choice of the plan for a call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from ...model.graph import Graph
from ...model.judge import simulate
from ...model.plan import Plan
from ..run.bound import BoundPlan
from ..situation.guards import Expected, Guards
from ..situation.module_call import Key, ModuleCall
from ..situation.numbers import Place, numbers_in, replaced


@dataclass(frozen=True)
class BoundPlansSettings:
    """Limits, all guesses. A plan for a GPT of 430 ops takes 3 MiB of the process's memory (measured).

    plans_least : plans that a module may hold, however large their graphs are.
    plans_most : plans that it may hold at most. The one that ran longest ago makes room for a new one.
    ops_most : ops of all their graphs together, beyond which it holds no more than `plans_least`.
    """

    plans_least: int = 16
    plans_most: int = 64
    ops_most: int = 30_000


SETTINGS = BoundPlansSettings()
CHANGING_MOST = 16  # sets of Python numbers that are inputs of plans; the oldest is forgotten. A guess


class BoundPlans:
    """The plans on one module. Calls with one key may have several plans: one per state of the module.

    changing : places of the Python numbers that are inputs of plans.
    """

    def __init__(self) -> None:
        self._by_key: dict[Key, list[BoundPlan]] = {}
        self.changing: dict[tuple[Place, ...], None] = {}

    def __iter__(self) -> Iterator[BoundPlan]:
        for family in [*self._by_key.values()]:
            yield from family

    def family(self, key: Key) -> list[BoundPlan]:
        """The plans for calls with this key, the one that ran last first."""
        return self._by_key.get(key, [])

    def guards(self, model: nn.Module, expected: Expected) -> Guards:
        """The guards for this state, which a plan may have already."""
        return next((b.guards for b in self if b.guards.expected is expected), None) or Guards(model, expected)

    def find(self, model: nn.Module, key: Key, call: ModuleCall) -> BoundPlan | None:
        """The plan for the call; None: there is none. Every plan gets a quick look before any gets a thorough one, since a
        module may alternate between two states."""
        keys = [key]
        for k in itertools.chain((key,), (_key_with(p, call) for p in [*self.changing])):
            if (found := self._in_family(k, model, call, True)) is not None:
                return found
            if k not in keys:
                keys.append(k)
        return next(filter(None, (self._in_family(k, model, call, False) for k in keys)), None)

    def _in_family(self, key: Key, model: nn.Module, call: ModuleCall, at_a_glance: bool) -> BoundPlan | None:
        for b in self.family(key):
            if b.serves(model, call, at_a_glance):
                self._put_first(key, b)
                return b
        return None

    def add(self, bound: BoundPlan) -> None:
        """Let this plan serve calls too."""
        while self._no_room_for(bound):
            self.remove(min(self, key=lambda b: b.turn))
        self._put_first(bound.trace.key, bound)

    def _no_room_for(self, bound: BoundPlan) -> bool:
        every = [*self]
        if len(every) < SETTINGS.plans_least:
            return False
        ops = sum(len(b.trace.graph.ops) for b in (*every, bound))
        return len(every) >= SETTINGS.plans_most or ops > SETTINGS.ops_most

    def note_changing(self, places: tuple[Place, ...]) -> None:
        """Note that the numbers at these places are inputs of a plan."""
        self.changing[places] = None
        while len(self.changing) > CHANGING_MOST:
            self.changing.pop(next(iter(self.changing)))

    def remove(self, bound: BoundPlan) -> None:
        """Let this plan serve no more calls."""
        key = bound.trace.key
        left = [b for b in self.family(key) if b is not bound]
        if left:
            self._by_key[key] = left
        else:
            self._by_key.pop(key, None)

    def _put_first(self, key: Key, bound: BoundPlan) -> None:
        """Try this plan first next time. Lists are replaced, not changed: another thread may be reading them."""
        family = self.family(key)
        if not family or family[0] is not bound:
            self._by_key[key] = [bound, *(b for b in family if b is not bound)]


def _key_with(places: tuple[Place, ...], call: ModuleCall) -> Key:
    """The key of the call with the types of the numbers at these places instead of the numbers."""
    given = numbers_in(call.spec)
    return replace(call, spec=replaced(call.spec, {p: type(given[p]) for p in places if p in given})).key


def is_for_graph(plan: Plan, graph: Graph) -> bool:
    """Whether the plan is for this graph of a captured step, whose module may hold other bytes during the step, and keeps its
    budget there."""
    budget = plan.goal.budget
    if graph.hash != (plan.graph_hash if plan.rewriting is None else plan.rewriting.captured_hash):
        return False
    if budget is None or plan.rewriting is not None:
        return budget is None or graph.with_resident(plan.activation_peak_bytes) <= budget
    return simulate(replace(graph, link=plan.graph.link), plan.schedule, plan.cost).peak_bytes <= budget
