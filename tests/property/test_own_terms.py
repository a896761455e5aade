"""The figures of a plan beside the captured step, and beside its own graph, say the same."""

from __future__ import annotations

from dataclasses import replace
from math import isclose

from hypothesis import assume, given
from hypothesis import strategies as st

from rekindle.ask import Budget, Fraction, Goal, LeastMemory, MaxOverhead, PlanOptions
from rekindle.errors import InfeasibleBudget, UsageError
from rekindle.model.graph import COSTS, Graph
from rekindle.model.plan import Plan
from rekindle.model.rewriting import Plain, Rewriting
from rekindle.planning.own_terms import beside_captured, in_own_terms, own_goal, plain_figures
from rekindle.planning.planner import plan_graph
from strategies import dags, examples

goals = st.one_of(
    st.just(LeastMemory()),
    st.builds(lambda x: MaxOverhead(x), st.floats(0, 3)),
    st.builds(lambda x: Fraction(x), st.floats(0.05, 1.0)),
    st.builds(lambda x: Budget(x), st.integers(1, 600)),
)
PLAIN_FIELDS = {"goal", "asked", "rewriting", "overhead", "flops_overhead", "least_overhead"}  # the others are equal


@st.composite
def plains(draw: st.DrawFn, graph: Graph) -> Plain:
    """A captured step of which `graph` may be a rewrite: it takes about as much, or nothing at all."""
    own, factor = plain_figures(graph), st.sampled_from((0.0, 0.5, 0.9, 1.0, 1.25, 2.0))
    above = own.peak_bytes - graph.resident_bytes
    costs = (getattr(own, cost) * draw(factor) for cost in COSTS)
    return Plain(graph.resident_bytes + draw(st.integers(above // 2, 2 * above + 1)), *costs)


def assert_same(one: Plan, two: Plan) -> None:
    for name in set(vars(one)) - PLAIN_FIELDS - {"trace"}:
        assert getattr(one, name) == getattr(two, name), name
    for name in ("overhead", "flops_overhead"):
        assert isclose(getattr(one, name), getattr(two, name), rel_tol=1e-9, abs_tol=1e-9), name


@examples(400)
@given(st.data(), dags(), goals, st.sampled_from(COSTS))
def test_a_plan_comes_back_in_its_own_terms(data: st.DataObject, graph: Graph, goal: Goal, cost: str) -> None:
    plain = data.draw(plains(graph))
    own = own_goal(goal, graph, plain, cost)
    assume(own is not None)
    assert own is not None
    asked = PlanOptions(goal, "none" if data.draw(st.booleans()) else "exact", cost, cache=False)
    try:
        found = plan_graph(graph, replace(asked, goal=own))
    except (InfeasibleBudget, UsageError):
        assume(False)
    if goal.budget is not None:  # as if all of it were proven to be needed
        found = replace(found, least_overhead=found.overhead)
    assert in_own_terms(found) is found
    shown = beside_captured(found, Rewriting("0" * 64, plain, ()), asked)
    assert (shown.goal, shown.baseline_peak_bytes, shown.peak_bytes) == (goal, plain.peak_bytes, found.peak_bytes)
    back = in_own_terms(shown)
    assert back.rewriting is None
    # beside a captured step that costs more, nothing may be left of what is proven; then it is not claimed again
    least = found.least_overhead if shown.least_overhead else 0.0
    assert isclose(back.least_overhead, least, rel_tol=1e-9, abs_tol=1e-9)
    assert_same(back, found)
    assert (back.goal.budget, back.goal.least_memory) == (own.budget, own.least_memory)
    for one, two in ((back.goal.max_overhead, own.max_overhead), (back.goal.fraction, own.fraction)):
        assert one == two or isclose(one, two, rel_tol=1e-9, abs_tol=1e-9)  # type: ignore[arg-type]


@examples(200)
@given(st.data(), dags(), goals, st.sampled_from(COSTS))
def test_a_plan_that_keeps_its_own_goal_keeps_the_asked_one(
    data: st.DataObject, graph: Graph, goal: Goal, cost: str
) -> None:
    plain = data.draw(plains(graph))
    own = own_goal(goal, graph, plain, cost)
    if own is None:  # then each op once costs more than is asked for
        once = beside_captured(
            plan_graph(graph, PlanOptions(LeastMemory(), "none", cost, cache=False)),
            Rewriting("", plain, ()), PlanOptions(goal, cost=cost),
        )  # fmt: skip
        assert goal.max_overhead is not None
        assert once.overhead > goal.max_overhead
        return
    try:
        found = plan_graph(graph, PlanOptions(own, "exact", cost, cache=False))
    except (InfeasibleBudget, UsageError):
        assume(False)
    shown = beside_captured(found, Rewriting("", plain, ()), PlanOptions(goal, cost=cost))
    if goal.max_overhead is not None:
        assert shown.overhead <= goal.max_overhead + 2e-9
    limit = goal.limit(graph, plain.peak_bytes - graph.resident_bytes)
    if limit is not None:
        assert found.peak_bytes <= limit
