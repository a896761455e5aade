"""Plans that may copy values to the host, against all schedules with copies of small graphs."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import assume, given
from hypothesis import strategies as st

from copies_by_force import MOST_RUNS, least_seconds
from rekindle import Graph, InfeasibleBudget, Link, Op, Plan, Value, bounds, simulate
from rekindle.ask import Budget, LeastMemory, MaxOverhead, PlanOptions
from rekindle.kernels.arrays import OFFLOAD
from rekindle.model.schedule import Schedule
from rekindle.planning import certify
from rekindle.planning.planner import plan_graph
from strategies import chains, copied_schedules, dags, examples, graphs, joint_graphs, linked, seconds

EPS = 1e-9
brief = st.sampled_from([0.0, 0.0, 0.25])
host_budgets = st.sampled_from([None, None, 100, 40])


@st.composite
def waiting_steps(draw: st.DrawFn) -> Graph:
    """Values that are made once wait beside an op that takes much memory; between, there may be time to copy them."""
    count = draw(st.integers(1, 2))
    ops = [Op(f"make {i}", (i - 1,) if i else (), (i,), draw(brief), recompute=False) for i in range(count)]
    for i, name in enumerate(("out", "large", "back")):
        at = count + i
        ops.append(Op(name, (at - 1,), (at,), draw(seconds), workspace=16 * (name == "large")))
    for i in reversed(range(count)):
        ops.append(Op(f"use {i}", (i, len(ops) - 1), (len(ops),), draw(brief)))
    values = [Value(draw(st.integers(4, 16))) for _ in range(count)] + [Value(0)] * (len(ops) - count)
    return Graph(tuple(values), tuple(ops), (len(ops) - 1,), name="waiting")


def once(graph: Graph) -> float:
    return float(graph.weights()[graph.needed].sum())


def few() -> st.SearchStrategy[Graph]:
    """Graphs of so few ops that all their schedules can be looked at."""
    return linked(
        st.one_of(waiting_steps(), waiting_steps(), dags(max_ops=5), chains(max_ops=2), joint_graphs(max_ops=2))
    )


def room(data: st.DataObject, graph: Graph) -> int:
    """A limit between the working set of the largest op and the peak of the plain step."""
    least = bounds.single_op(graph).bytes
    return data.draw(st.integers(least, max(least, simulate(graph, Schedule.baseline(graph)).peak_bytes)))


@given(st.data())
def test_bounds_hold_for_every_schedule_with_copies(data: st.DataObject) -> None:
    graph = data.draw(linked(graphs()))
    judged = simulate(graph, data.draw(copied_schedules(graph)))
    host = data.draw(st.sampled_from([inf, float(judged.host_bytes)]))
    assert bounds.with_copies(graph, judged.overhead, host).bytes <= judged.peak_bytes
    assert bounds.least_overhead_with_copies(graph, judged.peak_bytes, host) <= judged.overhead + EPS


@examples(200)
@given(st.data())
def test_bounds_are_not_above_the_best_schedule_with_copies(data: st.DataObject) -> None:
    graph = data.draw(few())
    limit, host = room(data, graph), data.draw(host_budgets) or inf
    best = least_seconds(graph, limit, host_bytes=host)
    assume(best < inf)
    overhead = best / once(graph) - 1 if once(graph) else 0.0
    assert bounds.with_copies(graph, overhead, host).bytes <= limit
    assert bounds.least_overhead_with_copies(graph, limit, host) <= overhead + EPS


def test_a_bound_is_met_where_the_link_has_just_the_time() -> None:
    """800 bytes leave during one second and come back during another, beside an op of 1600 bytes that takes no time."""
    ops = (
        Op("make", (), (0,), recompute=False), Op("out", (0,), (1,), 1.0), Op("large", (1,), (2,), workspace=1600),
        Op("back", (2,), (3,), 1.0), Op("use", (0, 3), (4,)),
    )  # fmt: skip
    values = (Value(800), *[Value(0)] * 4)
    for rate, least, overhead in ((800.0, 1600, 0.0), (400.0, 2000, 1.0), (1600.0, 1600, 0.0)):
        graph = Graph(values, ops, (4,), name="just", link=Link(rate, rate))
        assert least_seconds(graph, 1600) == 2 * (1 + overhead)
        bound = bounds.with_copies(graph, 0.0, inf).bytes
        assert least - 2 <= bound <= least
        assert overhead / 1.1 <= bounds.least_overhead_with_copies(graph, 1600, inf) <= overhead
    # 2400 bytes less what the host may hold, rounded down
    assert bounds.with_copies(graph, 0.0, 200.0).bytes == 2199


@examples(100)
@given(st.data())
def test_plans_within_a_budget_beside_all_schedules(data: st.DataObject) -> None:
    graph, host = data.draw(few()), data.draw(host_budgets)
    options = PlanOptions(Budget(room(data, graph)), solver="exact", offload=True, host_budget=host)
    best = least_seconds(graph, options.goal.budget or 0, host_bytes=host or inf)
    without = made(graph, replace(options, offload=False, host_budget=None))
    plan = made(graph, options)
    if plan is None:
        assert without is None
        return
    assert plan.peak_bytes <= plan.limit
    assert plan.host_bytes <= (host or inf)
    assert without is None or plan.seconds <= without.seconds + EPS
    assert plan.seconds >= best - EPS or not by_force(plan)
    assert plan.least_overhead * once(graph) <= best - once(graph) + EPS
    assert plan.status != "optimal" or plan.seconds <= best + EPS
    assert_certified(plan)


@examples(100)
@given(st.data())
def test_plans_within_an_overhead_beside_all_schedules(data: st.DataObject) -> None:
    graph, host = data.draw(few()), data.draw(host_budgets)
    goal = data.draw(st.sampled_from([MaxOverhead(0.0), MaxOverhead(0.3), MaxOverhead(1.5), LeastMemory()]))
    options = PlanOptions(goal, solver="exact", offload=True, host_budget=host)
    plan = plan_graph(graph, options)
    without = plan_graph(graph, replace(options, offload=False, host_budget=None))
    most_s = inf if goal.max_overhead is None else (1 + goal.max_overhead) * once(graph)
    assert plan.seconds <= most_s + EPS
    assert plan.host_bytes <= (host or inf)
    assert (plan.peak_bytes, plan.seconds) <= (without.peak_bytes, without.seconds + EPS)
    if plan.status == "optimal":
        assert least_seconds(graph, plan.peak_bytes - 1, most_s, host or inf) == inf
    assert_certified(plan)


def made(graph: Graph, options: PlanOptions) -> Plan | None:
    try:
        return plan_graph(graph, options)
    except InfeasibleBudget:
        return None


def by_force(plan: Plan) -> bool:
    """Whether the plan's schedule is one of those that `least_seconds` looks at."""
    rows = plan.schedule.array
    copies = rows[rows[:, 0] == OFFLOAD, 1].tolist()
    most_runs = max(map(plan.schedule.runs.count, plan.schedule.runs), default=0)
    return most_runs <= MOST_RUNS and len({*copies}) == len(copies)


def assert_certified(plan: Plan) -> None:
    """No schedule at the plan's cost goes below its bound, and its certificate is proven again."""
    host = plan.options.host_budget or inf
    assert plan.bound_bytes <= plan.peak_bytes
    assert least_seconds(plan.graph, plan.bound_bytes - 1, plan.seconds, host) == inf
    assert plan.verified
    assert certify.holds(plan)
