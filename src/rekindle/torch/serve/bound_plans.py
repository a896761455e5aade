"""The plans on one module, the choice of the plan for a call, and calls that differ from planned ones in numbers alone."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...model.graph import Graph
from ...model.judge import simulate
from ...model.plan import Plan
from ..private import pytree
from ..run.bound import BoundPlan
from ..situation.guards import Expected, Guards
from ..situation.module_call import Key, ModuleCall
from ..situation.numbers import Attribute, Place, name_of, numbers_in, replaced
from ..situation.values import constants, key_of


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


def changed_numbers(
    model: nn.Module, key: Key, call: ModuleCall, bound: BoundPlan
) -> tuple[BoundPlan, tuple[Place, ...]] | None:
    """(the plan, places of the numbers that differ) if the call differs from the planned one only in numbers; else None."""
    theirs = bound.trace
    if (theirs.key[0], theirs.key[2]) != (key[0], key[2]) or bound.numbers.places or theirs.fake:
        return None
    ours, was = numbers_in(call.spec), numbers_in(theirs.spec)
    places: list[Place] = [
        p for p in ours if p in was and type(ours[p]) is type(was[p]) and key_of(ours[p]) != key_of(was[p])
    ]
    if constants(replaced(call.spec, {p: None for p in places})) != constants(
        replaced(theirs.spec, {p: None for p in places})
    ):
        return None
    for name in theirs.expected.differences(model):
        path, _, leaf = name.rpartition(".")
        key_before = theirs.expected.keys.get(name)
        x = None
        with contextlib.suppress(AttributeError):
            x = model.get_submodule(path).__dict__.get(leaf)
        if type(x) not in (int, float) or not isinstance(key_before, tuple) or key_before[0] is not type(x):
            return None
        places.append(Attribute(path, leaf))
    return (bound, tuple(places)) if places else None


def numbers_of(bound: BoundPlan, places: tuple[Place, ...]) -> dict[Place, Any] | None:
    """The numbers that stood at these places when the plan was made."""
    was = numbers_in(bound.trace.spec)
    found: dict[Place, Any] = {}
    for p in places:
        if isinstance(p, Attribute):
            kind, text = bound.trace.expected.keys[name_of(p, None)]
            found[p] = float.fromhex(text) if kind is float else text
        else:
            found[p] = was[p]
    return found


def matches(found: Any, earlier: Any, before: Mapping[Place, Any]) -> bool:
    """Whether a step captured with markers is the same as an earlier capture with the numbers `before`.

    Both must have the same ops with the same constants; a marker matches the value of its expression for `before`.
    """
    one, two = found.nodes, earlier.nodes
    if len(one) != len(two):
        return False
    place = {n: i for i, n in enumerate([*found.placeholders, *found.tangents, *one])}
    place_before = {n: i for i, n in enumerate([*earlier.placeholders, *earlier.tangents, *two])}

    def leaves(n: Any, at: Mapping[Any, int]) -> list[Any]:
        return [
            ("node", at.get(x)) if hasattr(x, "all_input_nodes") else x for x in pytree.tree_leaves((n.args, n.kwargs))
        ]

    def same(x: Any, y: Any) -> bool:
        expression = found.numbers.markers.get(x) if type(x) in (int, float) else None
        return key_of(x if expression is None else expression.value(before)) == key_of(y)

    def same_call(a: Any, b: Any) -> bool:
        xs, ys = leaves(a, place), leaves(b, place_before)
        return a.target == b.target and len(xs) == len(ys) and all(map(same, xs, ys))

    if not all(map(same_call, one, two)):
        return False
    written = [[c.writing[n].target if n in c.writing else None for n in c.nodes] for c in (found, earlier)]
    if written[0] != written[1]:
        return False
    constants = [c.constants.values() for c in (found, earlier)]
    return len(constants[0]) == len(constants[1]) and all(map(_same_tensor, *constants))


def _same_tensor(s: torch.Tensor, t: torch.Tensor) -> bool:
    return s is t or (s.shape, s.dtype, s.device) == (t.shape, t.dtype, t.device) and torch.equal(s, t)
