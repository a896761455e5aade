"""Divides one goal of a step among its parts, by measured steps."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from ...ask import LeastMemory, PlanOptions, TraceOptions
from ...compiling import CompileOptions
from ...errors import InfeasibleBudget, ParityError, RekindleError, TraceError, UsageError
from ...model.graph import Link
from ...model.resident import HoldsResident
from ...parts.division import OPEN, Division, Step, divide, offer
from ...parts.plan import PartsPlan
from ...saying import notices
from ...saying.progress import announce
from ...saying.shares import EPS
from ..compiled.compiled_forward import CompiledForward
from ..costs.link import link_of
from ..costs.resident import counted, resident_bytes
from ..measure.caches import without_caches
from ..measure.comparison import compare
from ..measure.first_difference import explained
from ..measure.measured_step import Calls, Outcome, Subject, run
from ..measure.memory import Levels
from ..measure.recording import bytes_of
from ..offload.away import pool_of
from ..rewrite.closeness import NOTHING
from ..tensors.ranks import Turns
from ..tensors.sharded import class_name
from ..trace import plain_forward
from ..ways.finding import Found
from . import words
from .between import Between, Watched, between
from .choices import Choices, Chosen, with_copied_ways
from .searching import reference, rounded

# All are guesses.
DIVISIONS_MOST = 4  # that are tried by a measured step
UNUSED_SHARE = 0.03  # of a budget, that may stay unused without another division
# Parts that hold less than this share of a step's bytes between forward and backward, and of its peak, are not planned.
COUNTS_SHARE = 0.005
# Steps of a sharded model by one division; the largest peak counts. On the CPU, threads of gloo make and free the buffers in
# which parameters and gradients travel, later in one step than in another.
SHARDED_STEPS = 3


@dataclass(frozen=True)
class PartsRequest:
    """One request for plans of parts.

    named : paths of the submodules that the user names; None: those that can be captured are found.
    error : why the whole model cannot be captured; None: nobody tried.
    turns : tells the other processes of a sharded model to take a step too; None: the model is not sharded.
    """

    model: nn.Module
    sample: object
    options: PlanOptions
    captured: TraceOptions
    check: bool
    named: tuple[str, ...] | None = None
    error: TraceError | None = None
    turns: Turns | None = None


def held_throughout(request: PartsRequest, s: Subject) -> int:
    """Bytes that are held during the whole step: parameters, gradients, inputs, and the optimizer's state if it is counted."""
    how = request.captured
    state, _ = counted(request.model, how.optimizer, how.state_bytes)
    return resident_bytes(request.model, s.sample.tensors, how.gradients) + state


@dataclass(frozen=True)
class _Answer:
    """A division; the peaks of a step that calls every unit and of the measured step, without resident bytes."""

    division: Division
    peak: int
    measured: int


class Dividing(HoldsResident):
    """Divides the goal of one request among parts that are known, by measured steps."""

    def __init__(self, request: PartsRequest, s: Subject, found: Found, choices: Choices):
        self.request, self.s, self.found, self.choices = request, s, found, choices
        self.model, self.options, self.goal = request.model, request.options, request.options.goal
        self._uses_up = request.captured.gradients == "consumed"
        self.theirs: Outcome | None = None  # the plain step; of compiled parts, with every part compiled as it is
        self.eager: Outcome | None = None  # the plain step, which another division of the same request may have run
        self.apart: float | None = None  # distance of `theirs` from eager, by `reference`
        self.plain_peak: int | None = None  # of a plain step that calls every unit, without resident bytes
        self.seconds = math.inf  # of all parts in a step by the plan, once it is made
        self.resident_bytes = held_throughout(request, s)

    def plan(self, begin: float) -> PartsPlan:
        """The plans. begin : when work on the request began, in seconds of `time.monotonic`."""
        self._run_plain()
        if self.choices.compile is None:
            return self._planned(begin)
        self._run_min_cut()
        try:
            return self._planned(begin)
        except ParityError:  # batch norms may turn the rounding of one part into large differences in others
            if (exact := self.choices.with_exact_ways()) is None:
                raise
            self.choices = exact
            return self._planned(begin)

    def _planned(self, begin: float) -> PartsPlan:
        announce(self.options.progress, "measuring a step, to see what it holds outside of its parts")
        before = self._measure(self.choices.least())
        if vain := self._in_vain(before):
            self.choices = self.choices.without(vain)
            if not self.choices.units:
                raise words.nothing(self.found.plain, self.request.error)
            before = self._measure(self.choices.least())
        if (link := self._link()) is not None:
            with without_caches(self.model, self.choices.keeps_caches):
                pool = pool_of(self.model, self.s.device)
                self.choices = with_copied_ways(self.choices, before, link, pool, self.s.device)
        step = self.choices.measured_step(self.model, before)
        if self.eager is not None:
            left_out = 0 in before.calls and self.choices.compile is None
            self.plain_peak = max(self.eager.peak, step.peak([0] * len(self.choices.units)) if left_out else 0)
        try:
            answer = self._divide(before, step)
        except InfeasibleBudget:
            if not self.options.or_least:
                raise
            self.goal = LeastMemory()
            answer = self._divide(before, step)
        return self._as_plan(before, step, answer, begin)

    def _link(self) -> Link | None:
        """The link to the host, where values may be copied to it; None: they may not."""
        asked, here = self.options.offload, self.s.device.type == "cpu"
        if asked is True and self.s.fake is not None:
            notices.warn(
                f"{class_name(self.model)} is made of fake tensors: its parts copy nothing to the host, since what they save "
                "is measured. Plan it on its device"
            )
        none = not asked or asked == "auto" and here or self.s.fake is not None
        return None if none else link_of(self.s.device, None, False)

    # -- measured steps ----------------------------------------------------------------------------------------------
    def _run_plain(self) -> None:
        """Run a plain step, to compare others with its numbers and peak, unless it does not fit the device."""
        if self.eager is not None or not self.request.check and self.goal.fraction is None:
            self.theirs = self.eager
            return
        announce(self.options.progress, "running a plain step")
        with contextlib.suppress(torch.OutOfMemoryError):
            self.theirs = self._run("plain", self.s.levels())
            if self._uses_up:  # the step that was measured has no gradients to compare with
                self.theirs = replace(self._run("plain"), peak=self.theirs.peak)
        self.eager = self.theirs

    def _run_min_cut(self) -> None:
        """Run the step with every part compiled as it is, to compare other ways with its numbers."""
        how, as_it_is = self.choices.compile or CompileOptions(), [0] * len(self.choices.units)
        with without_caches(self.model, self.choices.keeps_caches), self.choices.applied(as_it_is):
            self.theirs, self.apart = reference(self.eager, partial(self._run, "planned"), how)

    def _run(self, which: str, levels: Levels | None = None) -> Outcome:
        """One step of the model as it is now, which all processes take if the model is sharded."""
        if self.request.turns is not None:
            self.request.turns.take()
        s = self.s.consumed() if self._uses_up and levels is not None else self.s
        forward = self.found.staged if which == "planned" else None
        return run(s, forward or plain_forward(self.model), which, Calls.HELD, levels)

    def _measure(self, chosen: Chosen) -> Between:
        """A step with these ways: what it holds outside of the parts.

        Raises
        ------
        ParityError : it does not give the plain step's numbers.
        TraceError : it fails, as where forward itself takes gradients of gradients.
        """
        levels = self.s.levels()
        watched = Watched(levels)
        with without_caches(self.model, self.choices.keeps_caches), self.choices.applied(chosen) as forwards:
            try:
                if any(isinstance(f, CompiledForward) and not f.is_ready for f, _, _ in forwards):
                    self._run("planned")  # compiling takes memory
                with watched.watching(forwards):
                    ours = self._run("planned", levels)
                if self._uses_up:
                    ours = self._run("planned")
            except RekindleError as e:
                raise words.fails(class_name(self.model), e, self.request.error) from None
        if self.request.check and self.theirs is not None:
            may = NOTHING if self.choices.compile is None else rounded(ours, self.apart)
            found = compare(ours, self.theirs, self.s.fake is not None, may)
            if found.differences:
                raise self._differs(found.differences, chosen)
        units, ways = self.choices.units, self.choices.ways
        used = [ways[u][c].figures for u, c in enumerate(chosen)]
        may_open = self.choices.compile is None
        is_open = [may_open and u.trace is None and c == OPEN for u, c in zip(units, chosen, strict=True)]
        return between(levels.found, watched.calls, used, is_open)

    def _in_vain(self, before: Between) -> set[int]:
        """The numbers of the units whose plans gain nothing: no call of the step ran by the plan, or all equal parts together
        hold next to nothing. `found.plain` names the units."""
        units, ways, least = self.choices.units, self.choices.ways, self.choices.least()
        held = [n * w[0].figures.held_bytes for w, n in zip(ways, before.calls, strict=True)]
        every, runs, vain = sum(held) + before.at_end_bytes, self.choices.step().runs, dict[int, str]()
        for i, u in enumerate(units):
            if u.trace is None or not u.calls or not runs(i, least):
                continue
            like = [k for k, v in enumerate(units) if v.trace is not None and v.trace.graph.hash == u.trace.graph.hash]
            if not before.calls[i]:
                vain[i] = "its calls find it in another state than it has by itself"
            elif (
                sum(held[k] for k in like) < COUNTS_SHARE * every
                and ways[i][0].figures.backward_bytes < COUNTS_SHARE * before.peak_bytes
            ):
                vain[i] = "it holds next to nothing of what the step holds"
        lines = [f"{class_name(units[i].module)} ({why})" for i, why in vain.items()]
        self.found.plain += [x for x in dict.fromkeys(lines) if x not in self.found.plain]
        return {*vain}

    def _differs(self, differences: Sequence[str], chosen: Chosen) -> ParityError:
        def planned() -> Outcome:
            with without_caches(self.model, self.choices.keeps_caches), self.choices.applied(chosen):
                return self._run("planned")

        cause = "Two ways of torch.compile differ by more than rounding; please report it"
        if self.choices.compile is None:
            cause = explained(class_name(self.model), lambda: self._run("plain"), planned)
        return words.differs(differences, cause, self.request.error)

    # -- the division ------------------------------------------------------------------------------------------------
    def _divide(self, before: Between, step: Step) -> _Answer:
        """The division that keeps a budget at the least cost; for other goals, the one of least peak."""
        limit = aim = self._limit()
        as_measured = self.choices.step(before.moments)
        best: _Answer | None = None
        tried: set[Chosen] = set()
        for _ in range(DIVISIONS_MOST):
            announce(self.options.progress, f"dividing the goal among {len(step.parts)} parts")
            if (division := self._divided(step, aim)) is None or division.chosen in tried:
                break
            tried.add(division.chosen)
            if not self.request.check:
                return _Answer(division, division.peak_bytes, division.peak_bytes)
            announce(self.options.progress, "checking the plans by a measured step")
            steps = 1 if self.request.turns is None else SHARDED_STEPS
            taken = max(self._measure(division.chosen).peak_bytes for _ in range(steps))
            over = taken - as_measured.peak(division.chosen)
            peak = division.peak_bytes + over  # of a step that calls every unit; else the measured one
            fits = limit is None or peak <= limit
            if fits and (best is None or division.extra < best.division.extra):
                best = _Answer(division, peak, max(0, as_measured.peak(division.chosen) + over))
            if limit is None or fits and (peak >= (1 - UNUSED_SHARE) * limit or division.extra <= EPS):
                break
            aim = limit - over  # the step took so much more, or less, than was predicted
        least = self.choices.least()
        if best is None and limit is not None and max(before.peak_bytes, step.peak(least)) <= limit:
            peak = max(before.peak_bytes, step.peak(least))
            best = _Answer(Division(least, peak, step.extra(least), 0.0), peak, before.peak_bytes)
        if best is None:
            assert limit is not None
            raise self._infeasible(limit, before, step)
        return best

    def _divided(self, step: Step, limit: int | None) -> Division | None:
        if limit is not None:
            return divide(step, budget=limit)
        most = self.goal.max_overhead
        return divide(step, most_extra=None if most is None else most * self.choices.plain_cost(step.calls))

    def _limit(self) -> int | None:
        """Bytes that the goal allows beside those held during the whole step; None: the goal is no budget."""
        if self.goal.fraction is not None and self.plain_peak is None:
            raise UsageError(
                f"budget={self.goal.fraction}: the plain step does not fit the device, so its peak is not known; give bytes"
            )
        limit = self.goal.limit(self, self.plain_peak or 0)
        return None if limit is None else self.beside_resident(limit)

    def _infeasible(self, limit: int, before: Between, step: Step) -> InfeasibleBudget:
        least, peak = divide(step), max(before.peak_bytes, step.peak(self.choices.least()))
        if least is not None and least.peak_bytes < peak:
            peak = min(peak, max(least.peak_bytes, self._measure(least.chosen).peak_bytes))
        outside = max(m.outside_bytes for m in step.moments)
        budget, peak, outside = map(self.with_resident, (limit, peak, outside))
        return words.infeasible(class_name(self.model), budget, peak, outside, self.resident_bytes, self.request.error)

    # -- the answer --------------------------------------------------------------------------------------------------
    def _as_plan(self, before: Between, step: Step, answer: _Answer, begin: float) -> PartsPlan:
        goal, division, captured = self.goal, answer.division, self.request.captured
        plain = self.choices.plain_cost(step.calls)
        self.seconds = plain + division.extra
        parts, used = self.choices.parts(division.chosen)
        steep = offer(step, division, plain, self._limit())
        return PartsPlan(
            module_name=class_name(self.model),
            parts=tuple(parts),
            peak_bytes=self.with_resident(answer.peak),
            measured_bytes=self.with_resident(answer.measured) if self.request.check else None,
            resident_bytes=self.resident_bytes,
            baseline_peak_bytes=None if self.plain_peak is None else self.with_resident(self.plain_peak),
            overhead=division.extra / plain,
            least_overhead=min(division.bound, division.extra) / plain if goal.is_budget else 0.0,
            goal=goal,
            cost=self.options.cost,
            covered=self._covered(before, used, step, division),
            solve_seconds=time.monotonic() - begin,
            not_counted=counted(self.model, captured.optimizer, captured.state_bytes)[1],
            input_bytes=bytes_of(self.s.sample.tensors),
            offer=None if steep is None else (self.with_resident(steep[0]), steep[1]),
            keeps_caches=self.choices.keeps_caches,
            stages=self.found.stages,
            asked=self.options,
            captured=captured,
        )

    def _covered(self, before: Between, used: list[int], step: Step, division: Division) -> str:
        """The line about the planned parts, and their share of the bytes held from forward to backward in the plain step."""
        units, ways = self.choices.units, self.choices.ways
        plain = [n * w[0].figures.held_bytes for w, n in zip(ways, before.calls, strict=True)]
        inside = [u for u in range(len(units)) if any(u == v or units[u].is_inside(units[v].path) for v in used)]
        mine = sum(plain[u] + before.at_end_inside[u] for u in inside)
        every = sum(plain) + before.at_end_bytes
        share = min(1.0, mine / max(1, every))
        of_eager = None
        if self.choices.compile is not None:
            eager = sum(n * x for n, x in zip(step.calls, self.choices.eager_seconds, strict=True))
            of_eager = (self.choices.plain_cost(step.calls) + division.extra) / eager if eager else 0.0
        return words.covered(self.model, [units[u] for u in used], share, self.found.plain, of_eager)
