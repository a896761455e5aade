"""A budget below the bound at any cost is refused at once, with the choices; what an error calls reachable is reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from extra_solver import extra_solver
from graphs_by_hand import chain
from rekindle import Graph, InfeasibleBudget, Op, Schedule, Value, bounds, simulate
from rekindle.ask import Budget, Fraction, Goal, LeastMemory, PlanOptions
from rekindle.model.graph import BOUNDARY
from rekindle.model.held import held_peak
from rekindle.model.plan import Plan
from rekindle.model.schedule import Run
from rekindle.planning.candidates import Scorer
from rekindle.planning.infeasible import nearest
from rekindle.planning.planner import plan_graph
from rekindle.portfolio import proposals
from rekindle.problem import REGISTERED, Problem


def planned(graph: Graph, goal: Goal, solver: str) -> Plan:
    return plan_graph(graph, PlanOptions(goal, solver=solver))


def refused(graph: Graph, goal: Goal, solver: str) -> InfeasibleBudget:
    with pytest.raises(InfeasibleBudget) as e:
        planned(graph, goal, solver)
    return e.value


@pytest.fixture
def slow() -> Iterator[str]:
    """A solver that must not search; its quick search is that of `auto`."""

    def search(problem: Problem) -> list[Schedule]:
        pytest.fail("searched for a plan where none exists")

    with extra_solver("slow", search, quick=proposals.small_plans) as name:
        yield name


def model() -> Graph:
    """A chain whose ops tell where they stand in a model."""
    graph = replace(chain(80), resident_bytes=7)
    ops = (
        replace(o, module=f"layers.{o.name}", kind="aten", target="aten.mm.default", shape="f32[8]")
        if o.name != "boundary"
        else o
        for o in graph.ops
    )
    return replace(graph, ops=tuple(ops))


@pytest.mark.parametrize("goal", [Budget(9), Budget(3), Budget(0), Fraction(0.01)])
def test_no_search_is_made_below_the_bound(slow: str, goal: Goal) -> None:
    graph = model()
    error = refused(graph, goal, slow)
    assert error.bound_bytes == bounds.look_ahead(graph).bytes == 10
    assert 10 <= error.smallest_peak < 20
    assert error.budget == goal.limit(graph, 81)
    assert error.op.startswith("layers.b")
    assert error.op.endswith(" (mm, f32[8])")
    said = str(error)
    assert (f'budget {error.budget} bytes (or "{error.budget}GiB"?) ' in said) == (goal in (Budget(9), Budget(3)))
    for words in (
        "cannot be met: no schedule exists below 10 B (10 bytes), 7 B of it held during the whole step, set by layers.b",
        f"the smallest peak known to be reachable is {error.smallest_peak} B ({error.smallest_peak} bytes). Choose a smaller",
        "budget=", 'minimize="memory"', f"which planning for these budgets makes cheaper: {error.smallest_peak} B at +",
    ):  # fmt: skip
        assert words in said


@pytest.mark.parametrize("bytes_given", [True, False])
def test_the_peak_that_an_error_names_is_reached_whatever_the_search_finds(slow: str, bytes_given: bool) -> None:
    """The error gives the budget as it was asked for: bytes for bytes, a share for a share."""
    graph = model()
    goal = Budget(3) if bytes_given else Fraction(0.01)
    error = refused(graph, goal, slow)
    named = str(error).partition("budget=")[2].split(" ")[0]
    REGISTERED[slow] = replace(REGISTERED[slow], solve=lambda problem: [Schedule.baseline(problem.graph)])
    found = planned(graph, Budget(int(named)) if bytes_given else Fraction(float(named)), slow)
    assert found.peak_bytes == error.smallest_peak


def test_a_peak_named_for_a_loop_that_holds_its_results_outlives_other_errors_and_plans() -> None:
    """A smaller peak without the results took its place, whose schedule needs more with them."""
    #  z -> 0 -> a -> 1 (result, 100 B) -> boundary -> 2 -> m -> 3 -> b, which reads 1 too
    values = tuple(Value(b) for b in (30, 100, 10, 10, 10))
    ops = (
        Op("z", (), (0,), seconds=1.0), Op("a", (0,), (1,), seconds=1.0), Op(BOUNDARY, (1,), (2,), recompute=False),
        Op("m", (2,), (3,), workspace=50, backward=True), Op("b", (1, 3), (4,), backward=True),
    )  # fmt: skip
    graph = Graph(values, ops, (4,))
    saving, recomputing = (Schedule.from_runs(graph, runs, "") for runs in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 0, 1, 4]))
    wasteful = Schedule([s for s in saving.steps if isinstance(s, Run)], graph.hash)
    assert [simulate(graph, s).peak_bytes for s in (saving, recomputing, wasteful)] == [170, 140, 200]
    assert [held_peak(graph, s) for s in (saving, recomputing)] == [170, 240]
    proposed = [saving, recomputing]
    with extra_solver("forgetful", lambda problem: list(proposed)) as name:
        held = PlanOptions(Budget(0), solver=name)
        with pytest.raises(InfeasibleBudget) as e:
            plan_graph(graph, held, bookkeeping=0)
        assert e.value.smallest_peak == 170
        assert planned(graph, LeastMemory(), name).peak_bytes == 140
        assert refused(graph, Fraction(0.01), name).smallest_peak == 140
        proposed[:] = [wasteful]
        assert plan_graph(graph, replace(held, goal=Budget(170)), bookkeeping=0).peak_bytes == 170


def test_an_error_names_the_smallest_peak_that_any_search_has_found() -> None:
    graph = chain(90)
    least = planned(graph, LeastMemory(), "dtr").peak_bytes
    REGISTERED["dtr"] = replace(known := REGISTERED["dtr"], quick=lambda problem: [Schedule.baseline(problem.graph)])
    try:
        assert refused(graph, Budget(1), "dtr").smallest_peak == least
    finally:
        REGISTERED["dtr"] = known


def test_a_budget_between_the_bound_and_all_that_is_found_says_so_in_the_same_words() -> None:
    graph = model()
    error = refused(graph, Budget(11), "chen-sqrt")
    said = str(error)
    assert "cannot be met: the certified bound is 10 B (10 bytes), 7 B of it held" in said
    assert "but solver 'chen-sqrt' found nothing that small; the smallest peak known" in said
    assert f"budget={error.smallest_peak} or more" in said
    assert "solver='auto'" in said
    assert "splitting" not in said


def test_points_nearby_cost_less_and_take_clearly_more() -> None:
    graph = chain(60)
    found = Scorer(graph, "seconds").all(proposals.small_plans(Problem(graph, graph.weights())))
    points = nearest(found)
    assert 2 < len(points) <= 4
    assert points[0].needs == min(s.needs for s in found)
    for a, b in pairwise(points):
        assert b.needs >= 1.05 * a.needs
        assert b.judged.overhead < a.judged.overhead
