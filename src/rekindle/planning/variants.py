"""Chooses the graph of a plan: the captured step's own, one with smaller saves, or one in which regions run in slices.

The captured step's own graph is always a candidate, so that a plan is never worse than without rewrites. Other graphs are
searched only where they promise more: where the captured step's largest op stands in the way of a smaller plan, or of one that
keeps a budget.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Protocol, TypeVar

from .. import bounds
from ..ask import Aim, Goal, PlanOptions
from ..errors import InfeasibleBudget, PlanMismatch, UsageError
from ..model.floor import single_op
from ..model.graph import Graph
from ..model.plan import Plan
from ..model.rewriting import Plain, Rewrite, Rewriting
from ..saying.progress import announce
from ..saying.sizes import format_bytes
from .own_terms import beside_captured, once, overhead_beside, own_goal, plain_figures

log = logging.getLogger("rekindle")
T = TypeVar("T")
Steps = tuple[Rewrite, ...]  # the rewrites of a variant; () is the captured step
CLOSE = "close"
# Effort by which rewritten steps are compared; the best one is then searched with the effort that was asked for.
_BRIEF = {"normal": "quick"}

# When rewritten graphs are searched. All are guesses. The floor is the working set of the captured step's largest op.
# No rewrite is looked for where tensors that must wait beside some op take this share of the floor.
WAITING_SHARE = 0.85
# The captured step is searched first where a bound shows that its peak is more than so many times the floor.
BINDS_TIMES = 1.1
# After the captured step, rewritten ones are searched where its plan takes at most so many times the bound on it.
NEAR_BOUND_TIMES = 1.1
DEEP_TIMES = 5.0  # times the floor: where the plain step takes as much, the captured step is searched first too
# Rewritten steps are searched within budgets of at most so many times the floor.
ROOMY_TIMES = 1.7
# For least memory, smaller saves that lower the floor are searched where the captured step's plan takes at most so many times
# the floor.
NEAR_FLOOR_TIMES = 1.7
WORTH_SHARE = 0.97  # rewritten steps are searched where rewrites lower the floor to this share of it
# With effort "thorough", rewritten steps are searched where a region in slices lowers the floor to this share of it.
LOW_SHARE = 0.6
# Before a budget is refused, larger regions are tried if it is at least this share of the smallest peak found.
REFUSAL_SHARE = 0.6
# Where slices that may round leave the peak above this share of the floor, exact ones are tried too.
LITTLE_SHARE = 0.9
FAR_OVERHEAD = 0.2  # if allowed, regions are larger
CHEAP_OVERHEAD = 0.01  # of a plan within a budget, up to which no other is searched for


class Family(Protocol):
    """The graphs of one step, as it was captured and with rewrites: they are found, made and costed when they are asked for.

    Call `costed`, `sums` and `plan` only after the variant's `graph`.
    """

    def smaller_saves(self, packed: bool = True) -> Steps:
        """The rewrites without slices; () where there are none. packed : whether saves are packed, which takes time."""

    def in_slices(self, far: bool, rounding: bool, packed: bool = True) -> Steps:
        """The rewrites with regions in slices; () where none lowers the floor.

        far : whether much recomputation is allowed. rounding : whether the results may differ by rounding.
        """

    def graph(self, steps: Steps) -> Graph:
        """The graph of a variant; the captured one has costs.

        Raises
        ------
        PlanMismatch : the step cannot be rewritten so.
        """

    def costed(self, steps: Steps) -> Graph:
        """The graph of a variant with costs."""

    def sums(self, steps: Steps) -> tuple[str, ...]:
        """Names of the parameters whose gradients may differ from the captured step's by rounding."""

    def plan(self, steps: Steps, options: PlanOptions) -> Plan:
        """The plan of a variant that has costs, for options in its own terms.

        Raises
        ------
        InfeasibleBudget, UsageError : no plan keeps the goal.
        """

    def leave_out_guesses(self) -> None:
        """Count no workspace of the captured step that was guessed."""


def goal_of(graph: Graph, plain: Plain, options: PlanOptions) -> Goal | None:
    """The goal as one of the rewritten step, which may cost more than the captured one; None: it costs more than is allowed. A
    budget stays as it is: a fraction is one of the captured step's activations."""
    goal = options.goal
    return goal if goal.max_overhead is None else own_goal(goal, graph, plain, options.cost)


class Choice:
    """One choice of a graph.

    captured : the graph of the captured step; without guessed workspaces once a budget is below its floor.
    plain : its figures; measured : the peak of the plain step, where that is another than the graph says.
    floor : the working set of its largest op. close : whether slices may round.
    refusals : of graphs that cannot keep the budget.
    _dear : rewrites that cost more than the goal allows, without any recomputation.
    """

    def __init__(self, family: Family, options: PlanOptions, measured: int | None = None):
        self.family, self.options = family, options
        self.captured = family.graph(())
        self.plain = plain_figures(self.captured)
        if measured is not None:
            self.plain = replace(self.plain, peak_bytes=self.captured.with_resident(measured))
        self.floor, self.plain_bytes = _floor(self.captured), self.captured.beside_resident(self.plain.peak_bytes)
        self.aim = options.goal.aim(self.captured, self.plain_bytes)
        self.close = options.parity == CLOSE
        self.refusals: list[InfeasibleBudget] = []
        self._dear: set[Steps] = set()
        self._graphs: dict[Steps, Graph | None] = {}

    # -- goals ---------------------------------------------------------------------------------------------------------
    def best(self) -> Plan:
        """The plan for the goal.

        Raises
        ------
        InfeasibleBudget, UsageError : as `Family.plan`; an infeasible budget is refused with the smallest peak of all
            candidates.
        """
        return self._of_least_memory() if self.aim.limit is None else self._within(self.aim.limit)

    def _of_least_memory(self) -> Plan:
        first = None
        if not self._floor_binds() or self.plain_bytes >= DEEP_TIMES * self.floor:
            first = self._plan_as_captured()
            if not self._promises(first):
                return first
        announce(self.options.progress, "looking for ops that may run in slices")
        best, tried = first, dict[Steps, Plan | None]()
        for steps in self._candidates(tried):
            if steps not in tried and self._lowers_the_floor(steps):
                tried[steps] = self.plan(steps, best)
                best = _smaller(best, tried[steps])
        if first is None and not self._beaten(best):
            best = _smaller(self._plan_as_captured(), best)
        assert best is not None
        return self._searched_longer(best)

    def _within(self, limit: int) -> Plan:
        """The cheapest plan within a budget in bytes."""
        best = None
        if limit < single_op(self.captured).bytes:
            self.family.leave_out_guesses()
            self.captured = self.family.graph(())
        if limit >= single_op(self.captured).bytes:
            best = self._unless_refused(self._plan_as_captured)
            roomy = limit > self.captured.with_resident(ROOMY_TIMES * self.floor)
            if best is not None and (best.overhead <= CHEAP_OVERHEAD or roomy):
                return best
        for find in (lambda: self.smaller_saves, lambda: self.slices):
            if (best is None or best.overhead > CHEAP_OVERHEAD) and (steps := find()):
                best = cheaper(best, self._unless_refused(partial(self.plan, steps, best, limit)))
        if best is not None:
            return self._searched_longer(best, limit)
        if self._comes_near(limit) and (best := self._before_refusal()) is not None:
            return best
        if not self.refusals:
            return self._plan_as_captured()
        refused = min(self.refusals, key=lambda e: e.smallest_peak)
        least = min(self.refusals, key=lambda e: e.bound_bytes)
        if least.bound_bytes == refused.bound_bytes:
            raise refused
        raise InfeasibleBudget(
            f"{refused}. With other rewrites the bound is {format_bytes(least.bound_bytes)}, set by {least.op}",
            budget=refused.budget, smallest_peak=refused.smallest_peak, bound_bytes=least.bound_bytes, op=least.op,
        )  # fmt: skip

    def _comes_near(self, limit: int) -> bool:
        """Whether the smallest peak of the graphs that were refused is not far above the budget."""
        smallest = min((e.smallest_peak for e in self.refusals), default=limit)
        return self.captured.beside_resident(limit) >= REFUSAL_SHARE * self.captured.beside_resident(smallest)

    # -- candidates ----------------------------------------------------------------------------------------------------
    def _candidates(self, tried: Mapping[Steps, Plan | None]) -> Iterator[Steps]:
        """The lists of rewrites for least memory. tried : those before, with their plans."""
        yield self.slices
        plan = tried.get(self.slices)
        little = plan is None or plan.activation_peak_bytes > LITTLE_SHARE * self.floor
        if self.close and (little or self.options.effort == "thorough"):
            yield self._slices_of(far=True, rounding=False)  # shorter regions may cost less than those that may round
        if self.slices in self._dear:
            yield self._slices_of(far=False)
        yield self.smaller_saves
        if self.smaller_saves in self._dear:
            yield self._slices_of(far=False, packed=False)
            yield _found(partial(self.family.smaller_saves, packed=False), ())

    @cached_property
    def slices(self) -> Steps:
        """The rewrites with regions in slices; () where none lowers the floor."""
        least_memory = self.aim == Aim()
        return self._slices_of(far=least_memory or (self.aim.max_overhead or 0.0) >= FAR_OVERHEAD)

    @cached_property
    def smaller_saves(self) -> Steps:
        """The rewrites without slices; () where there are none."""
        return _found(self.family.smaller_saves, ())

    def _slices_of(self, far: bool, rounding: bool = True, packed: bool = True) -> Steps:
        """Rewrites with regions in slices; () where looking for them fails. rounding : False: exact ones, even if the plan
        need only be close."""
        return _found(partial(self.family.in_slices, far, self.close and rounding, packed), ())

    def _floor_binds(self) -> bool:
        """Whether no bound lies far above the floor: then the largest op alone may prevent a smaller plan."""
        graph, overhead = self.captured, self.aim.max_overhead
        if overhead is None:
            bound = bounds.look_ahead(graph)
        else:
            bound = bounds.at_overhead(graph, graph.weights(self.options.cost), overhead)
        return graph.beside_resident(bound.bytes) <= BINDS_TIMES * self.floor

    def _lowers_the_floor(self, steps: Steps, share: float = WORTH_SHARE) -> bool:
        """Whether the largest op of the rewritten step needs no more than this share of the captured step's."""
        made = self.graph(steps) if steps else None
        return made is not None and _floor(made) <= share * self.floor

    def _waits(self) -> bool:
        """Whether the tensors waiting beside one op take about as much memory as the largest op: then rewrites gain little."""
        graph, overhead = self.captured, self.aim.max_overhead
        if overhead is None:
            return False
        return bounds.waits_at_overhead(graph, graph.weights(self.options.cost), overhead) >= WAITING_SHARE * self.floor

    def _promises(self, plan: Plan) -> bool:
        """Whether a rewrite may give a smaller plan than the captured step's."""
        if self._waits():
            return False
        if plan.activation_peak_bytes <= NEAR_BOUND_TIMES * plan.graph.beside_resident(plan.bound_bytes):
            return True
        if plan.activation_peak_bytes > NEAR_FLOOR_TIMES * self.floor:
            return False
        if self._floor_binds() and self._lowers_the_floor(self.smaller_saves):
            return True
        return self.options.effort == "thorough" and self._lowers_the_floor(self.slices, LOW_SHARE)

    def _beaten(self, plan: Plan | None) -> bool:
        """Whether every schedule of the captured step takes more memory than the plan, within the goal."""
        return plan is not None and self._bound(self.captured, self.aim.max_overhead) > plan.peak_bytes

    def _bound(self, graph: Graph, overhead: float | None) -> int:
        """Bytes that every schedule of the step takes within the overhead, as far as quick bounds tell; None: at any."""
        found = bounds.at_overhead(
            graph, graph.weights(self.options.cost), float("inf") if overhead is None else overhead
        )
        return max(single_op(graph).bytes, bounds.look_ahead(graph).bytes, found.bytes)

    # -- plans ---------------------------------------------------------------------------------------------------------
    def _plan_as_captured(self) -> Plan:
        return self.family.plan((), self.options)

    def graph(self, steps: Steps) -> Graph | None:
        """The graph of the step with rewrites, without costs; None: it cannot be made."""
        if steps not in self._graphs:
            self._graphs[steps] = _found(partial(self.family.graph, steps), None)
        return self._graphs[steps]

    def _searched_longer(self, best: Plan, limit: int | None = None) -> Plan:
        """The best plan, or a better one of the same rewritten step by the effort that was asked for. limit : as in `plan`."""
        if best.rewriting is None or self.options.effort not in _BRIEF:
            return best
        longer = self._unless_refused(partial(self.plan, best.rewriting.steps, best, limit, brief=False))
        return (_smaller if limit is None else cheaper)(best, longer) or best

    def _before_refusal(self) -> Plan | None:
        """A plan with larger regions, which cost more, or by the effort that was asked for where a brief search found none."""
        tried = {()} if self.options.effort in _BRIEF else {(), self.slices, self.smaller_saves}
        for steps in dict.fromkeys((self._slices_of(far=True), self.slices, self.smaller_saves)):
            found = None if steps in tried else self._unless_refused(partial(self.plan, steps, brief=False))
            if found is not None:
                return found
        return None

    def plan(
        self, steps: Steps, beside: Plan | None = None, limit: int | None = None, brief: bool = True
    ) -> Plan | None:
        """The plan of a rewritten step; None: it cannot be made, or keep the goal, or be better than the plan `beside`.

        limit : in bytes, within which a better plan is a cheaper one; None: a better plan is a smaller one.
        brief : whether it is only compared with others, and the search may be a brief one.
        """
        made = self.graph(steps)
        if made is None or beside is not None and limit is None and single_op(made).bytes >= beside.peak_bytes:
            return None
        rewriting = Rewriting(self.captured.hash, self.plain, steps, self.family.sums(steps))
        announce(self.options.progress, f"searching for a plan of the step as rewritten: {rewriting.short()}")
        made = self.family.costed(steps)
        goal = goal_of(made, self.plain, self.options)
        if goal is None:
            self._dear.add(steps)
        if goal is None or beside is not None and not self.may_beat(made, goal, beside, limit):
            return None
        effort = _BRIEF.get(self.options.effort, self.options.effort) if brief else self.options.effort
        try:
            found = self.family.plan(steps, replace(self.options, goal=goal, effort=effort))
        except UsageError:  # no plan within the overhead
            return None
        return beside_captured(found, rewriting, self.options)

    def may_beat(self, graph: Graph, goal: Goal, plan: Plan, limit: int | None) -> bool:
        """Whether a schedule of the rewritten step may be better than the plan, as far as bounds tell."""
        if limit is None:
            return self._bound(graph, goal.max_overhead) < plan.peak_bytes
        cost = self.options.cost
        extra = bounds.extras_at(graph, graph.weights(cost), [limit])[0] / (once(graph, cost) or 1.0)
        return overhead_beside(self.plain, graph, extra, cost) < plan.overhead

    def _unless_refused(self, plan: Callable[[], Plan | None]) -> Plan | None:
        try:
            return plan()
        except InfeasibleBudget as e:
            self.refusals.append(e)
            return None


def _floor(graph: Graph) -> int:
    """The working set of the largest op."""
    return graph.beside_resident(single_op(graph).bytes)


def _found(look: Callable[[], T], nothing: T) -> T:
    """The result of `look`, or `nothing` where it fails: a failed rewrite must not prevent a plan."""
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


def cheaper(one: Plan | None, two: Plan | None) -> Plan | None:
    """The plan that costs less; the first where they cost the same."""
    found = [p for p in (one, two) if p is not None]
    return min(found, key=lambda p: (p.overhead, p.peak_bytes), default=None)
