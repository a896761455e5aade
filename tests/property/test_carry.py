"""A schedule carries over to another shape of the same graph, and to no other graph."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from plain_judge import simulate_plain
from rekindle.ask import Fraction, Goal, LeastMemory, MaxOverhead, PlanOptions
from rekindle.errors import InfeasibleBudget
from rekindle.model.graph import Graph, Op, Value
from rekindle.model.judge import Simulation, simulate
from rekindle.model.plan import Plan
from rekindle.planning.carrying import ANOTHER_GRAPH, CARRIED, SEARCHED, alike, carried, carried_plan, replan_graph
from rekindle.planning.planner import plan_graph
from strategies import dags, examples, joint_graphs, schedules, sizes

GOALS = [
    Fraction(0.7),
    Fraction(1.0),
    MaxOverhead(0.3),
    MaxOverhead(0.0),
    LeastMemory(),
]


@st.composite
def resized(draw: st.DrawFn, graph: Graph) -> Graph:
    """The graph with other sizes, as another batch has them."""
    return replace(graph, values=tuple(Value(draw(sizes)) for _ in graph.values))


def planned(graph: Graph, goal: Goal, solver: str = "dtr") -> Plan:
    return plan_graph(graph, PlanOptions(goal, solver=solver))


@given(st.data())
@examples(400)
def test_the_judge_accepts_what_is_carried_over(data: st.DataObject) -> None:
    graph = data.draw(st.one_of(dags(), joint_graphs()))
    schedule, target = data.draw(schedules(graph)), data.draw(resized(graph))
    found = carried(schedule, graph, target)
    assert found is not None
    assert found.runs == schedule.runs
    judged = simulate(target, found)
    assert (judged.peak_bytes, judged.seconds) == simulate_plain(target, found)
    assert carried(found, target, graph) == carried(schedule, graph, graph)  # there and back


@given(st.data())
@examples(400)
def test_nothing_carries_over_to_a_graph_that_differs_in_more_than_sizes(data: st.DataObject) -> None:
    graph = data.draw(dags())
    i = data.draw(st.integers(0, len(graph.ops) - 1))
    op = graph.ops[i]
    changed = [
        replace(op, name=f"{op.name}'"), replace(op, backward=not op.backward), replace(op, recompute=not op.recompute),
        replace(op, inputs=op.inputs[:-1], inplace=()), replace(op, inplace=()), replace(op, target="aten.mul.Tensor"),
        replace(op, module="head"),
    ]  # fmt: skip
    other = data.draw(st.sampled_from(changed))
    assume(other != op)
    target = replace(graph, ops=(*graph.ops[:i], other, *graph.ops[i + 1 :]))
    assert not alike(graph, target)
    assert not alike(target, graph)
    goal = Fraction(1.0)
    assert carried_plan(target, PlanOptions(goal), [planned(graph, goal, "none")]) is None


def test_names_may_differ_where_the_fields_say_more() -> None:
    def graph(length: int) -> Graph:
        shape = f"f32[{length}]"
        op = Op(
            f"a|aten.sin.default|{shape}", (0,), (1,), kind="aten", target="aten.sin.default", module="a", shape=shape
        )
        return Graph((Value(4 * length), Value(4 * length)), (op,), (1,))

    assert alike(graph(8), graph(16))
    assert graph(8).hash != graph(16).hash


@given(st.data())
@examples(200)
def test_a_carried_plan_keeps_the_goal_on_the_new_graph_at_least_cost(data: st.DataObject) -> None:
    graph = data.draw(joint_graphs())
    target, goal = data.draw(resized(graph)), data.draw(st.sampled_from(GOALS))
    known = [planned(graph, LeastMemory()), planned(graph, Fraction(1.0), "none")]
    found = carried_plan(target, PlanOptions(goal, solver="dtr"), known)
    baseline = simulate(target, carried(known[1].schedule, graph, target)).peak_bytes  # type: ignore[arg-type]
    limit = goal.limit(target, baseline - target.resident_bytes)

    def keeps(judged: Simulation) -> bool:
        if limit is not None:
            return judged.peak_bytes <= limit
        return goal.max_overhead is None or judged.overhead <= goal.max_overhead + 1e-9

    judged = [simulate(target, s) for p in known if (s := carried(p.schedule, graph, target)) is not None]
    able = [j for j in judged if keeps(j)]
    if found is None:
        assert goal.least_memory or not able
        return
    assert found.graph is target
    assert found.bound_bytes <= found.peak_bytes <= baseline
    if limit is None:
        assert found.peak_bytes == min(j.peak_bytes for j in able)
    else:
        assert found.peak_bytes <= limit
        assert found.overhead == min(j.overhead for j in able)


@given(st.data())
@examples(100)
def test_where_nothing_carries_over_a_search_serves_the_goal(data: st.DataObject) -> None:
    graph = data.draw(joint_graphs())
    target = data.draw(resized(graph))
    options = PlanOptions(Fraction(0.8), solver="dtr", effort="thorough", time_limit=60.0)
    known = [planned(graph, Fraction(1.0), "none")]
    try:
        made = replan_graph(target, options, known)
    except InfeasibleBudget:
        assert carried_plan(target, options, known) is None
        return
    assert made.how == (SEARCHED if carried_plan(target, options, known) is None else CARRIED)
    assert replan_graph(target, options, []).how == ANOTHER_GRAPH
    assert made.plan.options == options  # the next shape is planned with the user's own options
    assert made.plan.activation_peak_bytes <= 0.8 * made.plan.baseline_activation_bytes
