"""Chooses the graph of a plan: the captured step's own, one with smaller saves, or one in which regions run in slices.

The captured step's own graph is always a candidate, so that a plan is never worse than without rewrites. Other graphs are
searched only where they promise more: where the captured step's largest op stands in the way of a smaller plan, or of one that
keeps a budget.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from .. import bounds
from ..ask import Goal, PlanOptions
from ..errors import InfeasibleBudget, PlanMismatch, RekindleError, UsageError
from ..model.floor import single_op
from ..model.plan import Plan
from ..model.rewriting import Plain, Rewrite, Rewriting, steps_from_json
from ..model.rewriting_words import short
from ..own_terms import beside_captured, once, overhead_beside, own_goal, plain_figures
from ..progress import announce
from .plan_for_all import question_of
from .rewrite.candidates import Rewrites
from .rewrite.closeness import marked, sums
from .rewrite.finding import Allowed
from .rewrite.probe import Bits
from .rewrite.regions import adds_up
from .rewritten import with_captured, with_rewrites
from .tensors import ranks
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

    waits : no rewrite is looked for where so large a share of the floor must wait beside some op however that op is computed.
    binds : the captured step is searched first where a bound shows that its peak is more than so many times the floor,
    deep : or where the plain step takes at least so many times the floor.
    worth : smaller plans are searched for where a rewrite lowers the floor to this share or less.
    close : after the captured step, rewritten ones are searched where its plan takes at most so many times the bound on it,
    near : or at most so many times the floor, if smaller saves lower the floor,
    lower : or, with effort "thorough", if a region in slices lowers it to this share or less. Before a refusal larger regions
        are tried within budgets of at least this share of the smallest peak found.
    little : where slices that may round bring the peak to no less than this share of the floor, those of the same bits are
        tried too.
    roomy : rewritten steps are searched within budgets of at most so many times the floor.
    far_overhead : extra cost from which larger regions are taken.
    cheap : extra cost of a plan within a budget from which others are searched for.
    """

    waits: float = 0.85
    binds: float = 1.1
    deep: float = 5.0
    worth: float = 0.97
    close: float = 1.1
    near: float = 1.7
    lower: float = 0.6
    little: float = 0.9
    roomy: float = 1.7
    far_overhead: float = 0.2
    cheap: float = 0.01


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
    question = question_of(traced.graph, options, {"target": traced.options.target, "fake": traced.fake})
    # One process chooses for all: what a probe or a bound finds within its limits may differ from process to process.
    found = ranks.once("the graph of the plan", question, choice.best, _steps_of, options.report)
    if not isinstance(found, ranks.Received):
        return found
    steps = steps_from_json(found.answer, "the rewrites of another process")
    if not steps:
        return make(traced, options)
    made = choice.plan(steps)
    if made is None:
        raise RekindleError(
            "the rewrites that another process chose do not fit here; use one version of Rekindle in all processes"
        )
    return made


def _steps_of(plan: Plan) -> list[Any]:
    """The rewrites of a plan as JSON."""
    return [] if plan.rewriting is None else plan.rewriting.to_json()["steps"]


def rewritten_alike(traced: Trace, options: PlanOptions, known: Sequence[Plan], make: Make) -> Plan:
    """The plan of the step, rewritten as the step of a known plan was where that serves; else of the captured step.

    No other rewrites are looked for: a training loop waits.
    """
    plain = None
    bits = Bits(table=traced.fake)
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
        goal = _goal_of(made, plain, options)
        if goal is not None:
            rewriting = Rewriting(traced.graph.hash, plain, steps, sums(made.lowered.captured))
            with contextlib.suppress(InfeasibleBudget, UsageError):
                return beside_captured(make(made, replace(options, goal=goal)), rewriting, options)
    return make(traced, options)


def _goal_of(made: Trace, plain: Plain, options: PlanOptions) -> Goal | None:
    """The goal as one of the rewritten step, which may cost more than the captured one; None: it costs more than is allowed. A
    budget stays as it is: a fraction is one of the captured step's activations."""
    goal = options.goal
    return goal if goal.max_overhead is None else own_goal(goal, made.graph, plain, options.cost)


class _Choice:
    """One choice of a graph.

    plain : figures of the captured step. floor : the working set of its largest op. close : whether slices may round.
    unpacked : the rewrites without smaller saves, where they were looked for.
    refusals : of graphs that cannot keep the budget.
    _dear : rewrites that cost more than the goal allows, without any recomputation.
    """

    def __init__(self, traced: Trace, options: PlanOptions, make: Make):
        self.traced, self.options, self.make = traced, options, make
        self.plain = plain_figures(traced.graph)
        self.rewrites = Rewrites(traced.lowered, self.plain.peak_bytes - traced.graph.resident_bytes)
        self.floor = self.rewrites.floor_bytes
        self.close = options.parity == CLOSE
        self.bits = Bits(table=traced.fake)
        self.refusals: list[InfeasibleBudget] = []
        self._dear: set[tuple[Rewrite, ...]] = set()
        self.unpacked: Rewrites | None = None
        self._uncosted: dict[tuple[Rewrite, ...], Trace | None] = {}

    # -- goals ---------------------------------------------------------------------------------------------------------
    def best(self) -> Plan:
        """The plan for the goal."""
        goal = self.options.goal
        limit = goal.limit(self.traced.graph.resident_bytes, self.rewrites.plain_bytes)
        return self._of_least_memory() if limit is None else self._within(limit)

    def plan(self, steps: tuple[Rewrite, ...]) -> Plan | None:
        """The plan of the step with rewrites that another process chose; None: they do not fit."""
        bits = self.bits if self.close else None
        self._uncosted[steps] = _found(lambda: with_rewrites(self.traced, steps, bits), None)
        return self._plan(steps)

    def _of_least_memory(self) -> Plan:
        captured = None
        if not self._floor_binds() or self.rewrites.plain_bytes >= SETTINGS.deep * self.floor:
            captured = self._captured()
            if not self._promises(captured):
                return captured
        announce(self.options.progress, "looking for ops that may run in slices")
        best, tried = captured, dict[tuple[Rewrite, ...], Plan | None]()
        for steps in self._candidates(tried):
            if steps not in tried and self._lowers_the_floor(steps):
                tried[steps] = self._plan(steps, best)
                best = _smaller(best, tried[steps])
        if captured is None and not self._beaten(best):
            best = _smaller(self._captured(), best)
        assert best is not None
        return best

    def _within(self, limit: int) -> Plan:
        """The cheapest plan within a budget in bytes."""
        graph, best = self.traced.graph, None
        if limit < single_op(graph).bytes:
            self.traced = self.traced.without_guesses()
            graph = self.traced.graph
        if limit >= single_op(graph).bytes:
            best = self._unless_refused(self._captured)
            roomy = limit > graph.resident_bytes + SETTINGS.roomy * self.floor
            if best is not None and (best.overhead <= SETTINGS.cheap or roomy):
                return best
        for find in (lambda: self.smaller_saves, lambda: self.slices):
            if (best is None or best.overhead > SETTINGS.cheap) and (steps := find()):
                best = _cheaper(best, self._unless_refused(partial(self._plan, steps, best, limit)))
        if best is None and self._comes_near(limit) and (steps := self._slices_of(far=True)) and steps != self.slices:
            best = self._unless_refused(partial(self._plan, steps))  # larger regions, which cost more, before a refusal
        if best is not None:
            return best
        if not self.refusals:
            return self._captured()
        raise min(self.refusals, key=lambda e: e.smallest_peak)

    def _comes_near(self, limit: int) -> bool:
        """Whether the smallest peak of the graphs that were refused is not far above the budget."""
        resident = self.traced.graph.resident_bytes
        smallest = min((e.smallest_peak for e in self.refusals), default=limit)
        return limit - resident >= SETTINGS.lower * (smallest - resident)

    # -- candidates ----------------------------------------------------------------------------------------------------
    def _candidates(self, tried: Mapping[tuple[Rewrite, ...], Plan | None]) -> Iterator[tuple[Rewrite, ...]]:
        """The lists of rewrites for least memory. tried : those before, with their plans."""
        yield self.slices
        plan = tried.get(self.slices)
        little = plan is None or plan.activation_peak_bytes > SETTINGS.little * self.floor
        if self.close and (little or self.options.effort == "thorough"):
            yield self._slices_of(far=True, rounding=False)  # shorter regions may cost less than those that may round
        if self.slices in self._dear:
            yield self._slices_of(far=False)
        yield self.smaller_saves
        if self.smaller_saves in self._dear:  # packing takes time
            self.unpacked = Rewrites(self.traced.lowered, self.rewrites.plain_bytes, with_saves=False)
            yield self._slices_of(far=False, of=self.unpacked)
            yield _found(self.unpacked.smaller_saves, ())

    @cached_property
    def slices(self) -> tuple[Rewrite, ...]:
        """The rewrites with regions in slices; () where none lowers the floor."""
        goal = self.options.goal
        far = goal.least_memory or (goal.max_overhead or 0.0) >= SETTINGS.far_overhead
        return self._slices_of(far)

    @cached_property
    def smaller_saves(self) -> tuple[Rewrite, ...]:
        """The rewrites without slices; () where there are none."""
        return _found(self.rewrites.smaller_saves, ())

    def _slices_of(self, far: bool, rounding: bool = True, of: Rewrites | None = None) -> tuple[Rewrite, ...]:
        """As `_find_slices`; () where that fails."""
        nothing: tuple[Rewrite, ...] = ()
        return _found(lambda: self._find_slices(of or self.rewrites, far, rounding), nothing)

    def _find_slices(self, rewrites: Rewrites, far: bool, rounding: bool = True) -> tuple[Rewrite, ...]:
        """Rewrites with regions in slices.

        far : whether much recomputation is allowed. rounding : False: of the same bits, even if the plan need only be close.
        """
        if self.close and rounding:
            return rewrites.in_slices(Allowed(lambda n, cut: True, None, far))
        found = rewrites.in_slices(Allowed(lambda n, cut: not adds_up(cut), self.bits, far))
        self.bits.save()
        return found

    def _floor_binds(self) -> bool:
        """Whether no bound lies above the floor: the largest op alone may prevent a smaller plan of the captured step."""
        graph, overhead = self.traced.graph, self.options.goal.max_overhead
        if overhead is None:
            return bounds.look_ahead(graph).bytes - graph.resident_bytes <= SETTINGS.binds * self.floor
        bound = bounds.at_overhead(graph, graph.weights(self.options.cost), overhead)
        return bound.bytes - graph.resident_bytes <= SETTINGS.binds * self.floor

    def _lowers_the_floor(self, steps: tuple[Rewrite, ...]) -> bool:
        """Whether the largest op of the rewritten step needs clearly less memory than the captured step's."""
        made = self._traced(steps) if steps else None
        return made is not None and _floor(made) <= SETTINGS.worth * self.floor

    def _waits(self) -> bool:
        """Whether the tensors waiting beside one op take about as much memory as the largest op: then rewrites gain little."""
        graph, overhead = self.traced.graph, self.options.goal.max_overhead
        if overhead is None:
            return False
        waits = bounds.waits_at_overhead(graph, graph.weights(self.options.cost), overhead)
        return waits >= SETTINGS.waits * self.floor

    def _promises(self, plan: Plan) -> bool:
        """Whether a rewrite may give a smaller plan than the captured step's."""
        if self._waits():
            return False
        if plan.activation_peak_bytes <= SETTINGS.close * (plan.bound_bytes - plan.graph.resident_bytes):
            return True
        if plan.activation_peak_bytes > SETTINGS.near * self.floor:
            return False
        if self._floor_binds() and self._lowers_the_floor(self.smaller_saves):
            return True
        if self.options.effort != "thorough":
            return False
        made = self._traced(self.slices) if self.slices else None
        return made is not None and _floor(made) <= SETTINGS.lower * self.floor

    def _beaten(self, plan: Plan | None) -> bool:
        """Whether every schedule of the captured step takes more memory than the plan, within the goal."""
        if plan is None:
            return False
        return self._bound(self.traced, self.options.goal) > plan.peak_bytes

    def _bound(self, traced: Trace, goal: Goal) -> int:
        """Bytes that every schedule of the step takes, within the goal, as far as quick bounds tell."""
        graph = traced.graph
        overhead = float("inf") if goal.max_overhead is None else goal.max_overhead
        found = bounds.at_overhead(graph, graph.weights(self.options.cost), overhead)
        return max(single_op(graph).bytes, bounds.look_ahead(graph).bytes, found.bytes)

    # -- plans ---------------------------------------------------------------------------------------------------------
    def _captured(self) -> Plan:
        return self.make(self.traced, self.options)

    def _traced(self, steps: tuple[Rewrite, ...]) -> Trace | None:
        """The trace of the step with rewrites that were found, without costs; None: it cannot be made."""
        if steps not in self._uncosted:
            self._uncosted[steps] = _found(partial(self._rewritten, steps), None)
        return self._uncosted[steps]

    def _rewritten(self, steps: tuple[Rewrite, ...]) -> Trace:
        if not self.close:
            of = self.unpacked if self.unpacked is not None and self.unpacked.has(steps) else self.rewrites
            return with_captured(self.traced, of.after(steps))
        # Slices that round are marked, so that the plan names the parameters whose gradients may differ.
        made = with_rewrites(self.traced, steps, self.bits)
        self.bits.save()
        return made

    def _plan(self, steps: tuple[Rewrite, ...], beside: Plan | None = None, limit: int | None = None) -> Plan | None:
        """The plan of a rewritten step; None: it cannot keep the goal, or be better than the plan `beside`.

        limit : in bytes, within which a better plan is a cheaper one; None: a better plan is a smaller one.
        """
        made = self._traced(steps)
        if made is None or beside is not None and limit is None and single_op(made.graph).bytes >= beside.peak_bytes:
            return None
        rewriting = Rewriting(self.traced.graph.hash, self.plain, steps, sums(made.lowered.captured))
        announce(self.options.progress, f"searching for a plan of the step as rewritten: {short(rewriting)}")
        made = made.costed(self.traced.options.target, self.options.report)
        goal = _goal_of(made, self.plain, self.options)
        if goal is None:
            self._dear.add(steps)
        if goal is None or beside is not None and not self._may_beat(made, goal, beside, limit):
            return None
        effort = _LESS.get(self.options.effort, self.options.effort)
        try:
            found = self.make(made, replace(self.options, goal=goal, effort=effort))
        except UsageError:  # no plan within the overhead
            return None
        return beside_captured(found, rewriting, self.options)

    def _may_beat(self, made: Trace, goal: Goal, plan: Plan, limit: int | None) -> bool:
        """Whether a schedule of the rewritten step may be better than the plan, as far as bounds tell."""
        if limit is None:
            return self._bound(made, goal) < plan.peak_bytes
        graph, cost = made.graph, self.options.cost
        extra = bounds.extras_at(graph, graph.weights(cost), [limit])[0] / (once(graph, cost) or 1.0)
        return overhead_beside(self.plain, graph, extra, cost) < plan.overhead

    def _unless_refused(self, plan: Callable[[], Plan | None]) -> Plan | None:
        try:
            return plan()
        except InfeasibleBudget as e:
            self.refusals.append(e)
            return None


def _floor(traced: Trace) -> int:
    """The working set of the largest op."""
    return single_op(traced.graph).bytes - traced.graph.resident_bytes


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
