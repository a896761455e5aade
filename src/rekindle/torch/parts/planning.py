"""Plans the parts of a model under one goal: find them, search their ways, measure the step, divide the goal, measure again."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...ask import PlanOptions, TraceOptions
from ...candidates import EPS
from ...errors import InfeasibleBudget, ParityError, RekindleError, TraceError, UsageError
from ...model.graph import Graph
from ...model.plan import Plan
from ...parts.division import OPEN, Division, Moment, Step, divide
from ...parts.figures import Figures
from ...parts.plan import Part, PartsPlan
from ...parts.ways import Way, as_part_plan, ways
from ...progress import announce
from ...sizes import format_bytes
from .. import accept
from ..check.verify import compare, subject
from ..costs.levels import Levels
from ..costs.optimizers import not_counted, state_bytes
from ..run import stages, trial
from ..run.bound import Bound
from ..run.measured_step import Outcome, Subject, deterministic, gradients_as_before, run
from ..run.measured_step import Way as Steps
from ..trace import plain_forward, resident_bytes
from .again import AgainForward, figures_of
from .applied import PartForward, part_forward
from .between import Between, Forward, Watched, between, with_uncalled
from .finding import Finder, Found, Unit
from .recording import signature
from .words import Covered, covered

log = logging.getLogger("rekindle")


@dataclass(frozen=True)
class PartsSettings:
    """When a part is worth a plan and when a division is good enough. All are guesses.

    saves_least : share of the bytes that a part holds plain which its ways must save at least.
    matters : share of the bytes that all parts hold plain which a part must save at least.
    divisions_most : divisions that are tried by a measured step.
    close : share of a budget that may stay unused without another division.
    """

    saves_least: float = 0.1
    matters: float = 0.02
    divisions_most: int = 4
    close: float = 0.03


SETTINGS = PartsSettings()


@dataclass(frozen=True)
class Request:
    """One request for plans of parts.

    named : paths of the submodules that the user names; None: those that can be captured are found.
    error : why the whole model cannot be captured; None: nobody tried.
    """

    model: nn.Module
    sample: object
    options: PlanOptions
    captured: TraceOptions
    check: bool
    named: tuple[str, ...] | None = None
    error: TraceError | None = None


def plan_parts(request: Request) -> PartsPlan:
    """The plans of a model's parts under one goal. The model is left as it was.

    Raises
    ------
    TraceError : no part can be planned, or one that the user names.
    InfeasibleBudget : no division keeps the budget in a measured step.
    ParityError : a step with planned parts does not give the plain step's numbers.
    """
    begin = time.monotonic()
    s = subject(request.model, request.sample)
    with accept.gradients_on(), gradients_as_before(request.model, s.sample.tensors), s.fake or deterministic():
        return _Planning(request, s, begin).plan()


class _Planning:
    """The work on one request."""

    def __init__(self, request: Request, s: Subject, begin: float):
        self.request, self.s, self.begin = request, s, begin
        self.model, self.options = request.model, request.options
        self.units: list[Unit] = []
        self.ways: list[list[Way]] = []  # of each unit
        self.within: list[int | None] = []  # of each unit, the one that it lies in
        self.searches = 0
        self.theirs: Outcome | None = None  # the plain step
        self.plain_peak: int | None = None  # of a plain step that calls every unit, without resident bytes
        state = 0 if request.captured.optimizer is None else state_bytes(request.captured.optimizer, self.model)
        self.resident = resident_bytes(self.model, s.sample.tensors) + state

    def plan(self) -> PartsPlan:
        found = self._find()
        self._search(found)
        if not self.units:
            raise self._nothing(found)
        self._run_plain()
        announce(self.options.progress, "measuring a step, to see what it holds outside of its parts")
        before = self._measure(self._least(), compared=self.request.check)
        chosen, division, peak = self._divide(before)
        return self._as_plan(found, before, chosen, division, peak)

    def _find(self) -> Found:
        try:
            return Finder(self.s, self.options, self.request.captured, self.request.named, self.request.error).find()
        except RekindleError:
            raise
        except Exception as e:  # the module itself fails on the sample
            if self.request.error is not None:
                raise self.request.error from e
            raise TraceError(
                f"{type(self.model).__name__} itself fails on this sample: {type(e).__name__}: {e}. Give a sample that "
                "model(…) works on"
            ) from e

    # -- the ways of each part ---------------------------------------------------------------------------------------
    def _search(self, found: Found) -> None:
        """The ways of each unit, one search for each graph. Units for which no plan saves enough are left out."""
        planned = self._plans(found)
        again = self._again(found)
        rows = [(u, w) for u in found.units if (w := (again if u.trace is None else planned)[id(u)])]
        self.units, self.ways = [u for u, _ in rows], [w for _, w in rows]
        self.within = [self._around(u) for u in self.units]
        self.searches = len({u.trace.graph.hash for u in self.units if u.trace is not None})

    def _plans(self, found: Found) -> dict[int, list[Way]]:
        """The ways of each unit that was captured; [] where they save too little."""
        known: dict[str, list[Way]] = {}
        units = [(u, u.trace.graph) for u in found.units if u.trace is not None]
        for unit, graph in units:
            if graph.hash not in known:
                announce(self.options.progress, f"searching plans for {unit.path} ({len(graph.ops):,} ops)")
                known[graph.hash] = ways(graph, self.options, stages.group)
        count = Counter(graph.hash for _, graph in units)
        every = sum(n * known[h][0].figures.held_bytes for h, n in count.items())
        for unit, graph in units:
            useful = known[graph.hash]
            if not useful:
                continue
            saved, plain = _saved(useful), useful[0].figures
            few = saved < SETTINGS.saves_least * max(plain.held_bytes, plain.backward_bytes)
            if few or count[graph.hash] * saved < SETTINGS.matters * every:
                known[graph.hash] = []
            elif self._is_first(unit, units) and (wrong := self._differs(unit, useful[_smallest(useful)])):
                found.plain.append(f"{type(unit.module).__name__} (its planned step differs in {wrong})")
                known[graph.hash] = []
        return {id(u): known[graph.hash] for u, graph in units}

    def _is_first(self, unit: Unit, units: Sequence[tuple[Unit, Graph]]) -> bool:
        return unit is next(u for u, g in units if unit.trace is not None and g.hash == unit.trace.graph.hash)

    def _again(self, found: Found) -> dict[int, list[Way]]:
        """Two ways of each unit that was not captured: left open, and running again in backward; [] where it cannot."""
        known: dict[Any, list[Way]] = {}
        made: dict[int, list[Way]] = {}
        for unit in found.units:
            if unit.trace is not None:
                continue
            kind = (signature(unit.module), unit.key)
            if kind not in known:
                announce(self.options.progress, f"measuring {unit.path}, which may run again in backward")
                known[kind] = []
                with contextlib.suppress(torch.OutOfMemoryError, RekindleError, RuntimeError):
                    again = figures_of(unit.module, unit.given, self.s.device, self.options.cost)
                    known[kind] = [Way(None, Figures(0, 0, 0, 0.0, again.plain)), Way(None, again)]
            made[id(unit)] = known[kind]
        return made

    def _around(self, unit: Unit) -> int | None:
        """The number of the innermost unit in which this one lies."""
        around = [(len(v.path), i) for i, v in enumerate(self.units) if unit.is_inside(v.path)]
        return max(around)[1] if around else None

    def _differs(self, unit: Unit, way: Way) -> str:
        """How a planned step of the part by itself differs from its plain step, in words; "" if it does not."""
        given = unit.given
        if not self.request.check or self.s.fake is not None:
            return ""
        assert unit.trace is not None
        bound = Bound(unit.module, unit.trace, as_part_plan(unit.trace.graph, way, self.options, stages.group))
        with given.surroundings():
            return ", ".join(trial.differences(unit.module, plain_forward(unit.module), bound, given.call))

    def _nothing(self, found: Found) -> RekindleError:
        why = self.request.error
        if why is not None:
            return TraceError(f"{why} No part of the model can be planned by itself with a gain either.")
        return UsageError(
            "parts: no plan of these submodules saves memory; name larger ones, such as the blocks of the model"
        )

    # -- measured steps ----------------------------------------------------------------------------------------------
    def _run_plain(self) -> None:
        """One plain step, with whose numbers and peak the others are compared; none if it does not fit the device."""
        if not self.request.check and self.options.goal.fraction is None:
            return
        announce(self.options.progress, "running a plain step")
        with contextlib.suppress(torch.OutOfMemoryError):
            self.theirs = run(self.s, plain_forward(self.model), "plain", Steps.HELD, self._levels())

    def _measure(self, chosen: Sequence[int], compared: bool) -> Between:
        """A step with these ways: what it holds outside of the parts.

        Raises
        ------
        ParityError : it does not give the plain step's numbers.
        """
        levels = self._levels()
        watched = Watched(levels)
        with self._applied(chosen) as forwards, watched.watching(forwards):
            ours = run(self.s, plain_forward(self.model), "planned", Steps.HELD, levels)
        if compared and self.theirs is not None:
            _, differences = compare(ours, self.theirs, self.s.fake is not None)
            if differences:
                raise ParityError(
                    f"the step with planned parts does not give the plain step's numbers: {'; '.join(differences)}. The model "
                    "is as it was. It may use a kernel that is not deterministic on this device, or change its own state"
                )
        used = [self.ways[u][c].figures for u, c in enumerate(chosen)]
        is_open = [u.trace is None and c == OPEN for u, c in zip(self.units, chosen, strict=True)]
        return between(levels.found, watched.calls, used, is_open)

    def _least(self) -> tuple[int, ...]:
        """The ways that hold least, with every part open that is not captured."""
        return tuple(OPEN if u.trace is None else _smallest(w) for u, w in zip(self.units, self.ways, strict=True))

    def _levels(self) -> Levels:
        known = None
        if self.s.fake is not None:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            known = [*self.model.parameters(), *self.model.buffers(), *gradients]
        return Levels(self.s.device, known)

    @contextlib.contextmanager
    def _applied(self, chosen: Sequence[int]) -> Iterator[list[tuple[Forward, list[int], list[Unit]]]]:
        """Inside, the parts run by these ways."""
        step, forwards = self._step((), [1] * len(self.units)), []
        before: list[tuple[nn.Module, object]] = []
        try:
            for numbers in self._by_module():
                if not step.runs(numbers[0], chosen):
                    continue
                module, forward = self.units[numbers[0]].module, self._forward(numbers, chosen)
                before.append((module, module.__dict__.get("forward")))
                module.__dict__["forward"] = forward
                forwards.append((forward, numbers, [self.units[u] for u in numbers]))
            with contextlib.ExitStack() as stack:
                for forward, _, _ in forwards:
                    if isinstance(forward, PartForward):
                        stack.enter_context(forward.silent())
                yield forwards
        finally:
            for module, old in before:
                if old is None:
                    module.__dict__.pop("forward", None)
                else:
                    module.__dict__["forward"] = old

    def _forward(self, numbers: Sequence[int], chosen: Sequence[int]) -> Forward:
        module = self.units[numbers[0]].module
        if self.units[numbers[0]].trace is None:
            forward = AgainForward(module)
            forward.is_off = chosen[numbers[0]] == OPEN
            return forward
        return part_forward(module, [self._part_plan(u, chosen[u]) for u in numbers], "plain", check=False)

    def _by_module(self) -> list[list[int]]:
        """The numbers of the units of each module."""
        found: dict[str, list[int]] = {}
        for i, u in enumerate(self.units):
            found.setdefault(u.path, []).append(i)
        return list(found.values())

    def _part_plan(self, unit: int, way: int, quiet: bool = True) -> Plan:
        u = self.units[unit]
        assert u.trace is not None
        options = replace(self.options, progress=False) if quiet else self.options
        made = as_part_plan(u.trace.graph, self.ways[unit][way], options, stages.group)
        return replace(made, trace=u.trace)

    # -- the division ------------------------------------------------------------------------------------------------
    def _divide(self, before: Between) -> tuple[tuple[int, ...], Division, int]:
        """(the way of each unit, the division, the measured peak without resident bytes)."""
        step = self._step(self._moments(before), self._calls(before))
        if self.theirs is not None:
            self.plain_peak = max(self.theirs.peak, step.peak([0] * len(self.units)) if 0 in before.calls else 0)
        limit = aim = self._limit()
        best: tuple[tuple[int, ...], Division, int] | None = None
        measured, tried = [before.peak_bytes], set()
        for _ in range(SETTINGS.divisions_most):
            announce(self.options.progress, f"dividing the goal among {len(self.units)} parts")
            division = self._divided(step, aim)
            if division is None or division.chosen in tried:
                break
            tried.add(division.chosen)
            if not self.request.check:
                return division.chosen, division, division.peak_bytes
            announce(self.options.progress, "checking the plans by a measured step")
            peak = self._measure(division.chosen, compared=True).peak_bytes
            measured.append(peak)
            fits = limit is None or peak <= limit
            if fits and (best is None or division.extra < best[1].extra):
                best = division.chosen, division, peak
            if limit is None or aim is None or fits and (peak >= (1 - SETTINGS.close) * limit or division.extra <= EPS):
                break
            aim = limit - (
                peak - division.peak_bytes
            )  # the measured step took so much more, or less, than was predicted
        least = self._least()
        if best is None and limit is not None and before.peak_bytes <= limit and step.peak(least) <= limit:
            best = least, Division(least, before.peak_bytes, step.extra(least), 0.0), before.peak_bytes
        if best is None:
            assert limit is not None
            raise self._infeasible(limit, step, min(measured))
        return best

    def _step(self, moments: Sequence[Moment], calls: Sequence[int]) -> Step:
        return Step([[w.figures for w in found] for found in self.ways], calls, moments, self.within)

    def _divided(self, step: Step, limit: int | None) -> Division | None:
        if limit is not None:
            return divide(step, budget=limit)
        goal = self.options.goal
        most = None if goal.max_overhead is None else goal.max_overhead * self._plain_cost(step.calls)
        return divide(step, most_extra=most)

    def _plain_cost(self, calls: Sequence[int]) -> float:
        """Cost of the plain steps of all parts; one inside of another one counts once."""
        own = [n * w[0].figures.plain for w, n in zip(self.ways, calls, strict=True)]
        inner = [sum(own[v] for v, around in enumerate(self.within) if around == u) for u in range(len(own))]
        tops = [max(own[u], inner[u]) for u, around in enumerate(self.within) if around is None]
        return sum(tops) or 1.0

    def _limit(self) -> int | None:
        """Bytes beside those held during the whole step that the goal allows; None: the goal is no budget."""
        goal = self.options.goal
        if goal.budget is not None:
            return goal.budget - self.resident
        if goal.fraction is None:
            return None
        if self.plain_peak is None:
            raise UsageError(
                f"budget={goal.fraction}: the plain step does not fit the device, so its peak is not known; give bytes"
            )
        return int(goal.fraction * self.plain_peak)

    def _calls(self, now: Between) -> list[int]:
        return [max(n, u.calls, 1) for n, u in zip(now.calls, self.units, strict=True)]

    def _moments(self, now: Between) -> tuple[Moment, ...]:
        """The moments of a step in which every unit is called: one that this step left out beside the unit before it."""
        like: list[int | None] = []
        called: int | None = next((i for i, n in enumerate(now.calls) if n), None)
        order = {u.path: i for i, u in enumerate(self.units)}
        paths = [name for name, _ in self.model.named_modules() if name in order]
        neighbour: dict[int, int | None] = {}
        for path in paths:
            i = order[path]
            if now.calls[i]:
                called = i
            neighbour[i] = called
        like = [None if n else neighbour.get(i) for i, n in enumerate(now.calls)]
        inputs = [u.input_bytes for u in self.units]
        return with_uncalled(now, like, inputs) if any(x is not None for x in like) else now.moments

    def _infeasible(self, limit: int, step: Step, measured: int) -> InfeasibleBudget:
        least = divide(step)
        peak = (measured if least is None else min(measured, least.peak_bytes)) + self.resident
        outside = max(m.outside_bytes for m in step.moments) + self.resident
        budget = limit + self.resident
        return InfeasibleBudget(
            f"budget {format_bytes(budget)} ({budget} bytes) cannot be kept by planning the parts of "
            f"{type(self.model).__name__}: the smallest peak that is known to be reachable is {format_bytes(peak)} "
            f"({peak} bytes), of which "
            f"{format_bytes(outside)} are held outside of the parts at some time. The model is as it was. Give budget={peak}, "
            "a smaller batch, or write the code outside of the parts so that the whole model can be captured",
            budget=budget, smallest_peak=peak, bound_bytes=self.resident, op="",
        )  # fmt: skip

    # -- the answer --------------------------------------------------------------------------------------------------
    def _as_plan(
        self, found: Found, before: Between, chosen: tuple[int, ...], division: Division, measured: int
    ) -> PartsPlan:
        calls = self._calls(before)
        plain, step = self._plain_cost(calls), self._step((), calls)
        seen: set[str] = set()
        parts, used = [], []
        for numbers in self._by_module():
            first = self.units[numbers[0]]
            if not step.runs(numbers[0], chosen):
                continue
            if first.trace is None:
                if chosen[numbers[0]] != OPEN:
                    parts.append(Part(first.path, again=True))
                    used += numbers
                continue
            loud = first.trace.graph.hash not in seen
            seen.add(first.trace.graph.hash)
            parts.append(Part(first.path, tuple(self._part_plan(u, chosen[u], quiet=not loud) for u in numbers)))
            used += numbers
        budget = self.options.goal.budget is not None or self.options.goal.fraction is not None
        options = self.request.captured.optimizer
        predicted = division.peak_bytes if any(n == 0 for n in before.calls) else 0
        return PartsPlan(
            module_name=type(self.model).__name__,
            parts=tuple(parts),
            peak_bytes=max(measured, predicted) + self.resident,
            measured_bytes=measured + self.resident if self.request.check else None,
            resident_bytes=self.resident,
            baseline_peak_bytes=None if self.plain_peak is None else self.plain_peak + self.resident,
            overhead=division.extra / plain,
            least_overhead=min(division.bound / plain, division.extra / plain) if budget else 0.0,
            goal=self.options.goal,
            cost=self.options.cost,
            covered=covered(self.model, self._covers(before, used), found.plain, self.searches),
            solve_seconds=time.monotonic() - self.begin,
            not_counted=not_counted(self.model) if options is None else "",
            asked=self.options,
            captured=self.request.captured,
        )

    def _covers(self, before: Between, used: Sequence[int]) -> Covered:
        """Which parts are planned, and the share of the plain bytes between forward and backward that they hold."""
        plain = [n * w[0].figures.held_bytes for w, n in zip(self.ways, before.calls, strict=True)]
        every = sum(plain) + before.at_end_bytes
        mine = 0
        for u in range(len(self.units)):
            if any(v == u or self.units[u].is_inside(self.units[v].path) for v in used):
                mine += plain[u] + before.at_end_inside[u]
        return Covered([self.units[u] for u in used], min(1.0, mine / max(1, every)))


def _saved(found: Sequence[Way]) -> int:
    """Bytes held that the ways of a part can save, or, where that is more, bytes of its peak."""
    held = [w.figures.held_bytes for w in found]
    peaks = [w.figures.backward_bytes for w in found]
    return max(held[0] - min(held), peaks[0] - min(peaks))


def _smallest(found: Sequence[Way]) -> int:
    """The way that holds least from forward to backward, and of those the one of the lowest peak."""
    return min(range(len(found)), key=lambda i: (found[i].figures.held_bytes, found[i].figures.backward_bytes))
