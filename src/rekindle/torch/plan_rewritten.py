"""Chooses the graph of a plan: the captured step's own, one with smaller saves, or one in which regions run in slices.

The captured step's own graph is always a candidate, so that a plan is never worse than without rewrites. Other graphs are
searched only where they promise more: where the captured step's plan comes near the working set of its largest op, or where a
budget lies below it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from .. import bounds
from ..ask import Goal, PlanOptions
from ..errors import InfeasibleBudget, PlanMismatch, UsageError
from ..model.floor import single_op
from ..model.plan import Plan
from ..model.rewriting import Rewrite, Rewriting
from ..own_terms import beside_captured, own_goal, plain_figures
from ..progress import announce
from .rewrite.candidates import Rewrites
from .rewrite.closeness import marked, sums
from .rewrite.finding import Allowed
from .rewrite.probe import Bits
from .rewrite.regions import adds_up
from .rewritten import with_captured, with_rewrites
from .trace import Trace

log = logging.getLogger("rekindle")
T = TypeVar("T")
Make = Callable[[Trace, PlanOptions], Plan]
AUTO, CLOSE = "auto", "close"
_LESS = {
    "normal": "quick"
}  # effort for the larger graphs of rewritten steps: the same plans in half the time, in most cases


@dataclass(frozen=True)
class ChoosingSettings:
    """When rewritten graphs are searched. All are guesses.

    near : the plan of the captured step comes near its floor if it takes at most so many times as much.
    close : it is at its floor if it takes at most so many times as much; then a small gain is enough.
    lower : a region in slices promises much where it lowers the floor to this share or less.
    deep : where the plain step takes at least so many times the floor, the captured step is searched first.
    far_overhead : extra cost from which larger regions are taken.
    cheap : extra cost of a plan within a budget from which others are searched for.
    bound_s : seconds for a bound that tells whether the captured step can still win.
    """

    near: float = 1.7
    close: float = 1.1
    lower: float = 0.6
    deep: float = 5.0
    far_overhead: float = 0.2
    cheap: float = 0.01
    bound_s: float = 0.2


SETTINGS = ChoosingSettings()


def plan_rewritten(traced: Trace, options: PlanOptions, make: Make) -> Plan:
    """The best plan of the captured step or of a rewrite of it. make : plans a trace, for options in its own terms.

    Raises
    ------
    InfeasibleBudget, UsageError : as `make`; an infeasible budget is refused with the smallest peak of all candidates.
    """
    if options.solver != AUTO or options.goal == Goal(fraction=1.0):
        return make(traced, options)
    choice = _Choice(traced, options, make)
    return choice.for_memory() if options.goal.budget is None and options.goal.fraction is None else choice.for_budget()


def rewritten_alike(traced: Trace, options: PlanOptions, known: Sequence[Plan], make: Make) -> Plan:
    """The plan of the step, rewritten as the step of a known plan was where that serves; else of the captured step.

    No other rewrites are looked for: a training loop waits.
    """
    plain = None
    bits = Bits(run=not traced.fake)
    for steps in dict.fromkeys(p.rewriting.steps for p in known if p.rewriting is not None):
        try:
            made = with_rewrites(traced, steps, bits)
        except PlanMismatch:  # another graph, or sizes that cannot be cut so
            continue
        bits.save()
        if options.parity != CLOSE and marked(made.lowered.captured):  # slices of this size give other bits
            continue
        made = made.costed(traced.options.target, options.report, measure=False)
        plain = plain or plain_figures(traced.graph)
        goal = own_goal(options.goal, made.graph, plain, options.cost)
        if goal is not None:
            rewriting = Rewriting(traced.graph.hash, plain, steps, sums(made.lowered.captured))
            with contextlib.suppress(InfeasibleBudget, UsageError):
                return beside_captured(make(made, replace(options, goal=goal)), rewriting, options)
    return make(traced, options)


class _Choice:
    """One choice of a graph.

    floor, plain : bytes above the resident ones: the largest working set, and the peak where each op runs once.
    """

    def __init__(self, traced: Trace, options: PlanOptions, make: Make):
        self.traced, self.options, self.make = traced, options, make
        graph = traced.graph
        self.rewrites = Rewrites(traced.lowered)
        self.floor = self.rewrites.floor_bytes
        self.plain = plain_figures(graph)
        self.close = options.parity == CLOSE
        self.bits = Bits(run=not traced.fake)
        self.refusals: list[InfeasibleBudget] = []

    # -- goals ---------------------------------------------------------------------------------------------------------
    def for_memory(self) -> Plan:
        """The plan of least memory."""
        best: Plan | None = None
        deep = self.rewrites.plain_bytes >= SETTINGS.deep * self.floor
        if deep or not self.slices:
            best = self._captured()
            if not self._promises(best):
                return best
        for steps in self._candidates():
            best = _smaller(best, self._plan(steps, None if best is None else best.peak_bytes))
        if not deep and self.slices and not self._beaten(best):
            best = _smaller(self._captured(), best)
        assert best is not None
        return best

    def for_budget(self) -> Plan:
        """The cheapest plan within the budget."""
        goal, graph = self.options.goal, self.traced.graph
        limit = goal.limit(graph.resident_bytes, self.rewrites.plain_bytes)
        assert limit is not None
        best: Plan | None = None
        if limit >= single_op(graph).bytes:
            best = self._within(lambda: self._captured())
            if best is not None and (
                best.overhead <= SETTINGS.cheap or limit > graph.resident_bytes + SETTINGS.near * self.floor
            ):
                return best
        for steps in self._candidates():
            if best is None or best.overhead > SETTINGS.cheap:
                best = _cheaper(best, self._within(lambda steps=steps: self._plan(steps, None)))  # type: ignore[misc]
        if best is None and not self.refusals:
            return self._captured()
        if best is None:
            raise min(self.refusals, key=lambda e: e.smallest_peak)
        return best

    # -- candidates ----------------------------------------------------------------------------------------------------
    @cached_property
    def slices(self) -> tuple[Rewrite, ...]:
        """The rewrites with regions in slices; () where none lowers the floor."""
        return _found(self._find_slices, ())

    @cached_property
    def smaller_saves(self) -> tuple[Rewrite, ...]:
        """The rewrites without slices; () where there are none."""
        return _found(self.rewrites.smaller_saves, ())

    def _find_slices(self) -> tuple[Rewrite, ...]:
        far = self.options.goal.least_memory or (self.options.goal.max_overhead or 0.0) >= SETTINGS.far_overhead
        if self.close:
            return self.rewrites.in_slices(Allowed(lambda n, cut: True, None, far))
        found = self.rewrites.in_slices(Allowed(lambda n, cut: not adds_up(cut), self.bits, far))
        self.bits.save()
        return found

    def _candidates(self) -> Iterator[tuple[Rewrite, ...]]:
        yield from dict.fromkeys(steps for steps in (self.slices, self.smaller_saves) if steps)

    def _promises(self, plan: Plan) -> bool:
        """Whether a rewrite may give a smaller plan than the captured step's."""
        held = plan.activation_peak_bytes
        if held > SETTINGS.near * self.floor:
            return False
        if held <= SETTINGS.close * self.floor:
            return bool(self.smaller_saves or self.slices)
        return bool(self.slices) and self._floor_of(self.slices) <= SETTINGS.lower * self.floor

    def _floor_of(self, steps: tuple[Rewrite, ...]) -> int:
        made = _found(lambda: self._uncosted(steps), None)
        return self.floor if made is None else single_op(made.graph).bytes - made.graph.resident_bytes

    def _uncosted(self, steps: tuple[Rewrite, ...]) -> Trace:
        known = self.__dict__.setdefault("_traces", {})
        if steps not in known:
            if self.close:  # the slices that give other bits are looked for, so that the plan names what rounds
                known[steps] = with_rewrites(self.traced, steps, self.bits)
                self.bits.save()
            else:
                known[steps] = with_captured(self.traced, self.rewrites.after(steps))
        made: Trace = known[steps]
        return made

    def _beaten(self, plan: Plan | None) -> bool:
        """Whether no schedule of the captured step takes less memory than the plan, within the goal."""
        if plan is None:
            return False
        graph, goal = self.traced.graph, self.options.goal
        if single_op(graph).bytes >= plan.peak_bytes:
            return True
        overhead = float("inf") if goal.max_overhead is None else goal.max_overhead
        weights = graph.weights(self.options.cost)
        return bounds.best(graph, weights, overhead, SETTINGS.bound_s, plan.peak_bytes).bytes >= plan.peak_bytes

    # -- plans ---------------------------------------------------------------------------------------------------------
    def _captured(self) -> Plan:
        return self.make(self.traced, self.options)

    def _plan(self, steps: tuple[Rewrite, ...], below: int | None) -> Plan | None:
        """The plan of a rewritten step; None: it cannot be better than a plan of `below` bytes, or cannot keep the goal."""
        made = _found(lambda: self._uncosted(steps), None)
        if made is None or below is not None and single_op(made.graph).bytes >= below:
            return None
        announce(self.options.progress, f"searching with {_words(steps)}")
        made = made.costed(self.traced.options.target, self.options.report)
        goal = own_goal(self.options.goal, made.graph, self.plain, self.options.cost)
        if goal is None:
            return None
        rewriting = Rewriting(self.traced.graph.hash, self.plain, steps, sums(made.lowered.captured))
        try:
            found = self.make(
                made, replace(self.options, goal=goal, effort=_LESS.get(self.options.effort, self.options.effort))
            )
        except UsageError:  # no plan within the overhead
            return None
        return beside_captured(found, rewriting, self.options)

    def _within(self, plan: Callable[[], Plan | None]) -> Plan | None:
        try:
            return plan()
        except InfeasibleBudget as e:
            self.refusals.append(e)
            return None


def _found(look: Callable[[], T], nothing: T) -> T:
    """What `look` gives; `nothing` where it fails: a rewrite that cannot be made takes no plan away."""
    try:
        return look()
    except PlanMismatch as e:  # an op in slices would lay out its result in another way
        log.debug("a rewrite was left out: %s", e)
    except Exception as e:
        log.warning("the step is planned as it was captured, since looking for rewrites failed: %r", e, exc_info=True)
    return nothing


def _smaller(one: Plan | None, two: Plan | None) -> Plan | None:
    """The plan of less memory; the first where they take the same."""
    found = [p for p in (one, two) if p is not None]
    return min(found, key=lambda p: (p.peak_bytes, p.overhead), default=None)


def _cheaper(one: Plan | None, two: Plan | None) -> Plan | None:
    """The plan that costs less; the first where they cost the same."""
    found = [p for p in (one, two) if p is not None]
    return min(found, key=lambda p: (p.overhead, p.peak_bytes), default=None)


def _words(steps: tuple[Rewrite, ...]) -> str:
    sliced = sum(len(s.ops) for s in steps if s.slices)
    return f"{sliced:,} ops in slices" if sliced else "smaller saves"
