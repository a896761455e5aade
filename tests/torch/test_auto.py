"""The operator-level search: valid, never worse than what it starts from, repeatable; its books are the judge's."""

from __future__ import annotations

import itertools
import math
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from graphs_by_hand import chain, unrolled
from marks import few, sweep
from rekindle import Graph, InfeasibleBudget, Op, Schedule, Value, bounds, frontier, plan, simulate
from rekindle.ask import Budget, LeastMemory, PlanOptions
from rekindle.exact import search as exact
from rekindle.kernels import hong
from rekindle.kernels import modes as kernel
from rekindle.planning import frontiers, planner, registry
from rekindle.planning.planner import plan_graph
from rekindle.portfolio import recent
from rekindle.portfolio.point_seeds import seeds
from rekindle.portfolio.storages import Search
from rekindle.problem import Problem
from rekindle.structure.saved import Dropping, runs_from_saved
from strategies import chains, dags, examples, graphs, joint_graphs, u_nets

EFFORTS = [
    pytest.param(("quick", 1.0), id="quick"),
    pytest.param(("normal", 1.0), id="normal", marks=sweep),  # the default, with which all other tests of `auto` search
    pytest.param(("thorough", 0.05), id="thorough, with little work"),
    pytest.param(("thorough", 1.0), id="thorough", marks=sweep),
]


@pytest.fixture(params=EFFORTS)
def effort(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """For what holds however long the search works."""
    of_problem = planner.make_problem
    name, work = request.param
    for module in (planner, frontiers):
        monkeypatch.setattr(module, "make_problem", lambda *a: replace(of_problem(*a), effort=name, work=work))
    return str(name)


any_modes = st.lists(st.integers(0, 2), min_size=64, max_size=64)


def with_modes(graph: Graph, drawn: list[int]) -> tuple[Dropping, np.ndarray]:
    d = Dropping(graph)
    modes = d.all(kernel.KEEP)
    for v, m in zip(d.candidates, itertools.cycle(drawn)):
        modes[v] = m
    return d, modes


def test_the_modes_of_a_sequence_know_which_outputs_of_an_op_were_kept() -> None:
    graph = unrolled(64)
    points = Search(Problem(graph, graph.weights())).points
    plain = simulate(graph, Schedule.baseline(graph)).peak_bytes
    proposed = list(registry.get("chen-sqrt").solve(Problem(graph, graph.weights())))
    assert proposed
    for schedule in proposed:
        peak = simulate(graph, schedule).peak_bytes
        assert peak < 0.4 * plain
        assert points.evaluate(points.nearest(points.reduced.reduced_runs(schedule.runs)))[0] == peak


@sweep
def test_long_chains_are_not_worse_than_what_is_published_for_them() -> None:
    graph = unrolled(256)
    weights = graph.weights()
    for name in ("chen-sqrt", "chen-recursive", "revolve"):
        theirs = [simulate(graph, s) for s in registry.get(name).solve(Problem(graph, weights, whole=True))]
        least = min(theirs, key=lambda j: (j.peak_bytes, j.overhead))
        found = plan_graph(graph, PlanOptions(Budget(least.peak_bytes)))
        assert found.overhead <= least.overhead + 1e-9


@given(graph=graphs(), drawn=any_modes)
def test_modes_expand_to_valid_runs_whose_peak_is_the_judges(graph: Graph, drawn: list[int]) -> None:
    d, modes = with_modes(graph, drawn)
    runs = d.runs(modes)
    assert runs is not None
    judged = simulate(graph, Schedule.from_runs(graph, runs))
    n_values = len(graph.values)
    top, at = kernel.peak(
        np.array(runs, np.int64), len(runs), np.inf, np.zeros(n_values, np.bool_), graph.arrays, graph.shared
    )
    assume(judged.peak_bytes > graph.resident_bytes + sum(graph.arrays.bytes[list(graph.keep)]))
    assert graph.resident_bytes + top == judged.peak_bytes
    steps_that_run = [i for i, s in enumerate(Schedule.from_runs(graph, runs).array) if s[0] == 0]
    assert judged.memory[steps_that_run[at]] == judged.peak_bytes


@given(graph=st.one_of(chains(), joint_graphs(), u_nets()), data=st.data())
def test_saving_a_set_runs_each_op_at_most_twice(graph: Graph, data: st.DataObject) -> None:
    d = Dropping(graph)
    saved = data.draw(st.lists(st.sampled_from(d.candidates.tolist() or [0])))
    runs = runs_from_saved(graph, saved)
    assert max(runs.count(i) for i in set(runs)) <= 2
    simulate(graph, Schedule.from_runs(graph, runs))


@given(cross=st.lists(st.integers(0, 9), min_size=1, max_size=7), data=st.data())
def test_cuts_reach_the_least_of_the_revised_objective(cross: list[int], data: st.DataObject) -> None:
    n = len(cross) + 1
    crossing = np.array([0.0, *cross, 0.0])
    inside = np.cumsum([0, *data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))]).astype(float)

    def worth(at: tuple[int, ...]) -> float:
        ends = [0, *at, n]
        m = 0.0
        for i, j in reversed(list(itertools.pairwise(ends))):
            m = crossing[i] + max(m, inside[j] - inside[i])
        return float(m)

    least = min(worth(at) for r in range(n) for at in itertools.combinations(range(1, n), r))
    assert worth(tuple(hong.revised_cuts(crossing, inside).tolist())) == least


@pytest.mark.usefixtures("effort")
@pytest.mark.parametrize("budget", few([40, 24, 16, 12], [24]))
def test_a_chain_fits_tighter_and_tighter_budgets(budget: int) -> None:
    found = plan(chain(60), budget=budget)
    assert found.peak_bytes <= budget
    assert simulate(found.graph, found.schedule).peak_bytes == found.peak_bytes
    assert found.bound_bytes <= found.peak_bytes


@examples(25)
@given(graph=st.one_of(dags(), chains(), joint_graphs(), u_nets()))
def test_small_graphs_get_the_best_modes(graph: Graph) -> None:
    d = Dropping(graph)
    assume(len(d.candidates) <= 5)
    best = math.inf
    for drawn in itertools.product(range(3), repeat=len(d.candidates)):
        modes = d.all(kernel.KEEP)
        modes[d.candidates] = drawn
        runs = d.runs(modes)
        assert runs is not None
        best = min(best, simulate(graph, Schedule.from_runs(graph, runs)).peak_bytes)
    assert plan_graph(graph, PlanOptions(LeastMemory())).peak_bytes <= best


@pytest.mark.usefixtures("effort")
def test_the_same_seed_gives_the_same_plan() -> None:
    found = []
    for _ in range(2):
        recent.forget()  # else the second is answered from memory
        found.append(plan(chain(50), budget=15, seed=3).schedule)
    assert found[0] == found[1]


def test_a_time_limit_still_gives_a_plan() -> None:
    assert plan(chain(200), budget=60, time_limit=0.05).peak_bytes <= 200


@pytest.mark.usefixtures("effort")
def test_an_impossible_budget_names_bound_and_op() -> None:
    with pytest.raises(InfeasibleBudget, match="no schedule exists below 3 B") as e:
        plan(chain(12), budget=1)
    assert e.value.bound_bytes == 3
    assert e.value.smallest_peak >= 3
    assert e.value.op.startswith("b")


def test_zero_extra_cost_is_optimal() -> None:
    found = plan(chain(10), budget=10**6)
    assert (found.overhead, found.status) == (0.0, "optimal")


@pytest.mark.usefixtures("effort")
@sweep
def test_tiny_values_left_out_of_the_search_do_not_break_a_budget() -> None:
    """Each op also makes a value too small for the search; together they weigh."""
    base = chain(60)
    n = len(base.values)
    values = tuple(Value(v.bytes * 10**6) for v in base.values) + tuple(Value(50) for _ in base.ops)
    ops = []
    for i, o in enumerate(base.ops):
        ops.append(Op(o.name, o.inputs, (*o.outputs, n + i), o.seconds, backward=o.backward, recompute=o.recompute))
    graph = Graph(values, tuple(ops), base.keep)
    assert plan(graph, budget=20 * 10**6).peak_bytes <= 20 * 10**6


def test_search_scores_as_the_judge_does() -> None:
    graph = chain(40)
    problem = Problem(graph, graph.weights())
    search = Search(problem)
    for point in seeds(search.points):
        search.record(point)
    found = search.entries()
    assert found
    for e in found:
        schedule = Schedule.from_runs(graph, search.points.reduced.whole_runs(e.runs))
        assert simulate(graph, schedule).peak_bytes == e.peak


@examples(25)
@given(graph=st.one_of(chains(), joint_graphs(), u_nets()))
def test_small_graphs_are_solved_exactly(graph: Graph) -> None:
    limit = (simulate(graph, Schedule.baseline(graph)).peak_bytes + bounds.single_op(graph).bytes) // 2
    best = exact.solve(graph, graph.weights(), limit, safe=True)
    assert best.proven, "graphs of two dozen ops"
    assume(best.schedule is not None)
    found = plan_graph(graph, PlanOptions(Budget(limit)))
    assert found.peak_bytes <= limit
    assert found.seconds <= simulate(graph, best.schedule).seconds


@pytest.mark.usefixtures("effort")
@pytest.mark.parametrize(
    "graph",
    [chain(9), chain(21), pytest.param(chain(70), marks=sweep)],
    ids=["proven", "proven in part", "searched"],
)
def test_a_larger_budget_is_never_slower_and_more_overhead_never_larger(graph: Graph) -> None:
    top = simulate(graph, Schedule.baseline(graph)).peak_bytes
    budgets = list(range(6, top + 1, max(3, top // 7)))
    random.Random(0).shuffle(budgets)
    seconds = {b: plan(graph, budget=b).seconds for b in budgets}
    assert all(seconds[b] >= seconds[c] for b, c in itertools.pairwise(sorted(budgets)))
    peaks = {o: plan(graph, max_overhead=o).peak_bytes for o in (0.4, 0.0, 0.15)}
    assert all(peaks[o] >= peaks[p] for o, p in itertools.pairwise(sorted(peaks)))


@pytest.mark.usefixtures("effort")
def test_an_interruption_gives_the_best_so_far() -> None:
    said: list[str] = []

    def progress(line: str) -> None:
        said.append(line)
        if len(said) == 1:
            raise KeyboardInterrupt

    found = plan(chain(150), budget=100, progress=progress)
    assert found.peak_bytes <= 100
    assert any("interrupted" in line for line in said)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt; a shell starts what runs in the background with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@sweep
def test_a_signal_while_threads_search_gives_the_best_so_far() -> None:
    said: list[str] = []

    def progress(line: str) -> None:
        said.append(line)
        if len(said) == 1:  # the search is under way
            threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()

    found = plan(chain(160), budget=100, progress=progress, time_limit=600)
    assert found.peak_bytes <= 100
    assert any("interrupted" in line for line in said)


@pytest.mark.usefixtures("effort")
def test_frontiers_fall() -> None:
    plans = frontier(chain(40))
    assert len(plans) > 5
    for a, b in itertools.pairwise(plans):
        assert a.peak_bytes > b.peak_bytes
        assert a.overhead < b.overhead
    assert all(p.bound_bytes <= p.peak_bytes for p in plans)


@pytest.mark.usefixtures("effort")
def test_progress_tells_incumbent_and_bound() -> None:
    said: list[str] = []
    found = plan(chain(25), budget=16, progress=said.append)
    told = [line for line in said if "certified" in line]
    assert told
    assert f"+{found.overhead:.2%}" in told[-1]


@pytest.mark.parametrize("solver", ["auto", "anneal", "storages", "hierarchical", "beam", "dtr"])
def test_a_graph_whose_values_hold_nothing_is_planned(solver: str) -> None:
    ops = (Op("f", (), (0,)), Op("boundary", (0,), (1,), recompute=False), Op("b", (1,), (2,), backward=True))
    graph = Graph((Value(0),) * 3, ops, (2,))
    assert plan(graph, minimize="memory", solver=solver).peak_bytes == 0
