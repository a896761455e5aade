"""The parts of a model with the ways to run each: a choice of one way for each part can be put on the model and taken off."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import nn

from ...ask import PlanOptions
from ...compiling import CompileOptions
from ...model.graph import Link
from ...model.plan import Plan
from ...parts.division import OPEN, Moment, Step
from ...parts.plan import CompiledPart, Part
from ...parts.ways import WAYS_MOST, Saves, Way, as_part_plan, thinned, with_copies
from ...saying.progress import announce
from ..compiled.stage import compiled_forward
from ..offload.away import HostPool, host_room
from ..offload.part_copies import CallOrder, PartCopies
from ..run import stages
from ..run.own_forward import forward_instead
from ..trace import plain_forward
from ..ways.again import AgainForward
from ..ways.finding import Unit
from ..ways.trial_steps import TrialSteps
from .applied import Forward, PartForward, part_forward
from .between import Between, with_uncalled

log = logging.getLogger("rekindle")
T = TypeVar("T")

Chosen = Sequence[int]  # of each unit, the number of its way


@dataclass(frozen=True)
class Choices:
    """The units of a model and their ways.

    ways : of each unit. within : of each unit, the one in which it lies, or None. options : those of the search. keeps_caches :
    whether the step makes key-value caches. compile : how parts are compiled; None: they are not.
    eager_seconds : of a step of each compiled unit without the compiler. pool : of the host's memory to which ways copy; None:
    they copy nothing.
    """

    units: Sequence[Unit]
    ways: Sequence[Sequence[Way]]
    within: Sequence[int | None]
    options: PlanOptions
    keeps_caches: bool = False
    compile: CompileOptions | None = None
    eager_seconds: Sequence[float] = ()
    pool: HostPool | None = None
    _known: dict[Any, Plan] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls, rows: Sequence[tuple[Unit, Sequence[Way]]], options: PlanOptions, keeps_caches: bool = False
    ) -> Choices:
        """The choices of these units, each with its ways."""
        units = [u for u, _ in rows]
        return cls(units, [w for _, w in rows], [_around(u, units) for u in units], options, keeps_caches)

    def without(self, units: Collection[int]) -> Choices:
        """The choices of the other units."""
        rows = [(u, w) for i, (u, w) in enumerate(zip(self.units, self.ways, strict=True)) if i not in units]
        return self.of(rows, self.options, self.keeps_caches)

    def with_exact_ways(self) -> Choices | None:
        """The choices of the ways that have the bits of parts compiled as they are; None: there are no others."""
        ways = [[w for w in found if w.is_exact] for found in self.ways]
        return None if ways == [[*found] for found in self.ways] else replace(self, ways=ways)

    # -- as a step to be divided -------------------------------------------------------------------------------------
    def step(self, moments: Sequence[Moment] = (), calls: Sequence[int] | None = None) -> Step:
        """The step with these moments. calls : how often each unit is called; None: once."""
        figures = [[w.figures for w in found] for found in self.ways]
        counts = [1] * len(self.units) if calls is None else calls
        host = math.inf if self.pool is None else min(self.options.host_bytes, host_room())
        return Step(figures, counts, moments, self.within, host)

    def measured_step(self, model: nn.Module, now: Between) -> Step:
        """The measured step, but with every unit called: one that it left out beside the unit before it."""
        calls = [max(n, u.calls, 1) for n, u in zip(now.calls, self.units, strict=True)]
        called = next((i for i, n in enumerate(now.calls) if n), None)
        order = {u.path: i for i, u in enumerate(self.units)}
        neighbour: dict[int, int | None] = {}
        for path, _ in model.named_modules():
            if (i := order.get(path)) is not None:
                called = i if now.calls[i] else called
                neighbour[i] = called
        like = [None if n else neighbour.get(i) for i, n in enumerate(now.calls)]
        # A part that ran uncompiled, from inputs without gradients, is not noted: what it held counts as outside of parts.
        if self.compile is not None or all(x is None for x in like):
            return self.step(now.moments, calls)
        return self.step(with_uncalled(now, like, [u.input_bytes for u in self.units]), calls)

    def plain_cost(self, calls: Sequence[int]) -> float:
        """Cost of the plain steps of all parts; one inside of another one counts once."""
        own = [n * w[0].figures.plain for w, n in zip(self.ways, calls, strict=True)]
        inner = [sum(own[v] for v, around in enumerate(self.within) if around == u) for u in range(len(own))]
        return sum(max(own[u], inner[u]) for u, around in enumerate(self.within) if around is None) or 1.0

    def least(self) -> tuple[int, ...]:
        """The ways that hold least, with every part open that is not captured."""
        is_open = [u.trace is None and self.compile is None for u in self.units]
        return tuple(OPEN if o else smallest(w) for o, w in zip(is_open, self.ways, strict=True))

    @property
    def staying(self) -> Choices:
        """The choices of the ways that copy nothing to the host."""
        return replace(self, ways=[[w for w in found if w.offloaded is None] for found in self.ways])

    # -- on the model ------------------------------------------------------------------------------------------------
    def parts(self, chosen: Chosen) -> tuple[list[Part], list[int]]:
        """(the parts that do not run plain with these ways, the numbers of their units)."""
        step = self.step()
        parts, used = [], []
        for numbers in self.by_module():
            first = self.units[numbers[0]]
            way = self.ways[numbers[0]][chosen[numbers[0]]]
            if not step.runs(numbers[0], chosen) or way.is_plain:
                continue
            used += numbers
            copied = way.offloaded, 1 if way.offloaded is None else max(first.calls, 1)
            if first.trace is None:
                compiled = self._as_compiled(numbers[0], way)
                parts.append(Part(first.path, (), way.again, way.rule, compiled, *copied))
                continue
            plans = tuple(self.plan(u, chosen[u]) for u in numbers)
            parts.append(Part(first.path, plans, False, None, None, *copied))
        return parts, used

    def _as_compiled(self, unit: int, way: Way) -> CompiledPart | None:
        if way.compiled is None:
            return None
        f, plain = way.figures, self.ways[unit][0].figures
        u = self.units[unit]
        return CompiledPart(
            way.compiled.saves, f.held_bytes + f.away_bytes, plain.held_bytes, f.extra, max(u.calls, 1), u.kind
        )

    @contextlib.contextmanager
    def applied(self, chosen: Chosen) -> Iterator[list[tuple[Forward, list[int], list[Unit]]]]:
        """Inside, the parts run by these ways. Gives (forward, numbers of its module's units, those units) for each module,
        open modules included."""
        step, forwards = self.step(), []
        copying = self._copying(step, chosen)
        with contextlib.ExitStack() as stack:
            for numbers in self.by_module():
                if not step.runs(numbers[0], chosen):
                    continue
                module, forward = self.units[numbers[0]].module, self.forward(numbers, chosen)
                forward.copies = copying.get(numbers[0])
                stack.enter_context(forward_instead(module, forward))
                if isinstance(forward, PartForward):
                    stack.enter_context(forward.silent())
                forwards.append((forward, numbers, [self.units[u] for u in numbers]))
            yield forwards

    def _copying(self, step: Step, chosen: Chosen) -> dict[int, PartCopies]:
        """The object that copies for each unit; {} where none copies. The blocks of host memory are there."""
        ways = [found[c] for found, c in zip(self.ways, chosen, strict=True)]
        blocks = [
            w.offloaded.bytes for i, w in enumerate(ways) if w.offloaded is not None and step.runs(i, chosen)
            for _ in range(max(self.units[i].calls, 1))
        ]  # fmt: skip
        if not blocks or self.pool is None:
            return {}
        order, most = CallOrder(), self.options.host_budget
        self.pool.reserve(blocks, most)
        return {i: PartCopies(w.offloaded, order, self.pool, most) for i, w in enumerate(ways)}

    def by_module(self) -> list[list[int]]:
        """The numbers of the units of each module."""
        found: dict[str, list[int]] = {}
        for i, u in enumerate(self.units):
            found.setdefault(u.path, []).append(i)
        return list(found.values())

    def plan(self, unit: int, way: int) -> Plan:
        """The plan of a unit for one of its ways."""
        u = self.units[unit]
        assert u.trace is not None
        key = id(u.trace), self.ways[unit][way].schedule  # equal units share their trace
        if key not in self._known:
            made = as_part_plan(u.trace.graph, self.ways[unit][way], self.options, stages.finish(u.trace.lowered))
            self._known[key] = replace(made, trace=u.trace)
        return self._known[key]

    def forward(self, numbers: Sequence[int], chosen: Chosen) -> Forward:
        """The forward of a module with these units."""
        module = self.units[numbers[0]].module
        if self.units[numbers[0]].trace is None:
            way = self.ways[numbers[0]][chosen[numbers[0]]]
            if self.compile is not None:
                return compiled_forward(
                    module, way.compiled, self.compile, self.units[numbers[0]].kind, self.keeps_caches
                )
            forward = AgainForward(module, way.rule, self.keeps_caches)
            forward.is_off = not way.again
            return forward
        return part_forward(module, [self.plan(u, chosen[u]) for u in numbers], "plain", check=False)


def _around(unit: Unit, units: Sequence[Unit]) -> int | None:
    """The number of the innermost unit in which this one lies."""
    around = [(len(v.path), i) for i, v in enumerate(units) if unit.is_inside(v.path)]
    return max(around)[1] if around else None


def smallest(found: Sequence[Way]) -> int:
    """The way that holds least from forward to backward and copies nothing; among equal ways, one of the lowest peak."""
    staying = [i for i, w in enumerate(found) if w.offloaded is None]
    return min(staying, key=lambda i: (found[i].figures.held_bytes, found[i].figures.backward_bytes))


def with_copied_ways(choices: Choices, now: Between, link: Link, pool: HostPool, device: torch.device) -> Choices:
    """The choices, and besides ways that copy to the host. Modules that are called in several kinds of calls copy nothing.

    now : what a measured step says of the order of calls, and of the tensors that several parts have. pool : of the host's
    memory to which ways copy. Forwards of one part of each kind are run, to see what they save and how long they take.
    """
    own = choices.staying
    alone = {numbers[0] for numbers in own.by_module() if len(numbers) == 1}
    known: dict[Any, Any] = {}

    def once(unit: int, what: Any, ask: Callable[[TrialSteps], T]) -> T:
        """The answer of one part of the unit's kind."""
        u = own.units[unit]
        key = (u.kind or u.path) if u.trace is None else id(u.trace), what
        if key not in known:
            with TrialSteps(u, device).ready() as trial:
                known[key] = ask(trial)
        return known[key]  # type: ignore[no-any-return]

    def seconds(unit: int | None) -> tuple[float, float]:
        """Of a forward and a backward of the unit as it is; None: of nothing."""
        if unit is None:
            return 0.0, 0.0
        taken = once(unit, "seconds", lambda trial: trial.forward_seconds(_plain(own, unit)))
        return taken, max(0.0, own.ways[unit][0].figures.plain - taken)

    def saves(unit: int, number: int, way: Way) -> Saves | None:
        if way.is_plain or not now.calls[unit]:
            return None
        chosen = [number if i == unit else 0 for i in range(len(own.units))]
        try:
            found = once(unit, number, lambda trial: trial.saved(own.forward([unit], chosen)))
        except torch.OutOfMemoryError:
            raise
        except Exception as e:  # Dynamo refuses torch.func.vjp in forward where something sees what is saved
            log.debug("%s copies nothing: %s", own.units[unit].path, e)
            return None
        sizes = tuple(size for size, given in found if given is None or given not in now.shared[unit])
        times = [seconds(n) for n in now.next[unit]]
        return Saves(sizes, tuple(sorted(now.shared[unit])), *(min(x) for x in zip(*times, strict=True)))

    ways = []
    for i, found in enumerate(own.ways):
        announce(own.options.progress, f"looking what {own.units[i].path} saves, to copy it to the host")
        made = with_copies(found, [saves(i, n, w) for n, w in enumerate(found)], link) if i in alone else [*found]
        ways.append(thinned(made, max(len(found), 2 * WAYS_MOST)))
    return replace(own, ways=ways, pool=pool)


def _plain(choices: Choices, unit: int) -> Callable[..., Any]:
    """The unit's forward in its first way."""
    if choices.units[unit].trace is None and choices.compile is None:
        return plain_forward(choices.units[unit].module)
    return choices.forward([unit], [0] * len(choices.units))
