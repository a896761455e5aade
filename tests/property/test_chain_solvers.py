"""Stages of any graph, and the single-level solvers on them, against brute force."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from graphs_by_hand import chain as uniform
from rekindle.kernels import hong as kernel
from rekindle.kernels.range_max import largest, range_max
from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.model.judge import Simulation, simulate
from rekindle.model.schedule import Schedule
from rekindle.planning import registry
from rekindle.problem import Problem
from rekindle.solvers.chen_greedy import greedy
from rekindle.solvers.chen_recursive import recursive
from rekindle.solvers.feng import cheapest
from rekindle.solvers.feng_linear import linear_dag
from rekindle.solvers.hong import followed
from rekindle.solvers.hong_cubic import static_optimum, static_sizes
from rekindle.solvers.hong_exact import Plans, hong_exact, least
from rekindle.structure.archive import prune
from rekindle.structure.chain import Chain, chain_of, segmented
from strategies import Builder, chains, graphs, run_sequences

SINGLE_LEVEL = ["chen-greedy", "feng-linear", "hong", "hong-cubic", "hong-exact"]
MULTI_LEVEL = ["bptt", "chen-recursive", "revolve"]


def judged(solver: str, graph: Graph) -> list[Simulation]:
    schedules = list(registry.get(solver).solve(Problem(graph, graph.weights("unit"))))
    assert schedules
    assert all(s.solver == solver for s in schedules)
    return [simulate(graph, s) for s in schedules]


def chain_from(graph: Graph) -> Chain:
    chain = chain_of(graph)
    assert chain is not None
    return chain


def subsets(chain: Chain, end: int) -> Iterator[tuple[int, ...]]:
    """The stages before `end` whose inputs can be kept."""
    return (cuts for count in range(end) for cuts in combinations(range(1, end), count))


# -- runs ------------------------------------------------------------------------------------------------------------
@given(st.data(), graphs())
def test_pruned_runs_are_valid_and_each_is_needed(data: st.DataObject, graph: Graph) -> None:
    runs = data.draw(run_sequences(graph, max_extra=12))
    extra = data.draw(st.lists(st.sampled_from(runs), max_size=4)) if runs else []  # repeats, forbidden ones too
    kept = prune(graph, runs + extra)
    before = simulate(graph, Schedule.from_runs(graph, runs))
    after = simulate(graph, Schedule.from_runs(graph, kept))
    assert after.peak_bytes <= before.peak_bytes or extra
    assert (after.runs <= before.runs + np.bincount(extra, minlength=len(graph.ops))).all()
    assert prune(graph, kept) == kept
    for i, op in enumerate(kept):
        outputs = set(graph.ops[op].outputs)
        read_later = any(not outputs.isdisjoint(graph.ops[o].inputs) for o in kept[i + 1 :])
        assert read_later or not outputs.isdisjoint(graph.keep)


# -- stages ----------------------------------------------------------------------------------------------------------
@st.composite
def cut_chains(draw: st.DrawFn, shapes: st.SearchStrategy[Graph]) -> tuple[Chain, list[int]]:
    chain = chain_of(draw(shapes.filter(lambda g: chain_of(g) is not None)), draw(st.sampled_from([None, 2, 3])))
    assert chain is not None
    cuts = draw(st.lists(st.integers(1, chain.turn), unique=True)) if chain.turn else []
    return chain, sorted(cuts)


@given(cut_chains(graphs()), st.booleans())
def test_any_segments_of_any_graph_are_a_valid_schedule(drawn: tuple[Chain, list[int]], last_again: bool) -> None:
    chain, cuts = drawn
    judged = simulate(
        chain.graph, Schedule.from_runs(chain.graph, chain.runs(segmented(chain.turn, cuts, last_again)), "test")
    )
    assert judged.runs.max(initial=0) <= 2
    assert (judged.runs[~chain.graph.needed] == 0).all()
    if not cuts and not last_again:
        assert judged.overhead == 0


def test_features_that_a_later_input_has_are_not_made_again() -> None:
    """Each layer reads all features before it. What is kept for the last ones is there for the first ones."""
    n = 6
    features, joins = range(1, n + 1), range(n + 1, 2 * n)
    ops = [Op("layer0", (0,), (1,), seconds=8.0)]
    for i in range(1, n):
        ops.append(Op(f"join{i}", tuple(features[:i]), (joins[i - 1],), seconds=1.0))
        ops.append(Op(f"layer{i}", (joins[i - 1],), (features[i],), seconds=8.0))
    ops.append(Op(BOUNDARY, (n,), (2 * n,), recompute=False))
    for k, i in enumerate(range(n - 1, 0, -1)):
        ops.append(Op(f"b{i}", (2 * n + k, joins[i - 1]), (2 * n + k + 1,), seconds=8.0, backward=True))
    sizes = [1, *[10] * n, *(10 * i for i in range(1, n)), *[10] * n]
    graph = Graph(tuple(map(Value, sizes)), tuple(ops), (3 * n - 1,))
    chain = chain_from(graph)
    again, reused = (simulate(graph, s) for s in chain.schedules(segmented(chain.turn, [chain.turn - 2]), "test"))
    assert again.overhead > reused.overhead
    assert (reused.runs[: 2 * n : 2] == 1).all(), "no layer runs again"


@given(cut_chains(graphs()))
def test_reuse_runs_no_op_more_often(drawn: tuple[Chain, list[int]]) -> None:
    chain, cuts = drawn
    judged = [simulate(chain.graph, s) for s in chain.schedules(segmented(chain.turn, cuts), "test")]
    assert (judged[-1].runs <= judged[0].runs).all()


@given(graphs())
def test_every_needed_op_is_in_one_stage(graph: Graph) -> None:
    chain = chain_of(graph)
    assume(chain is not None)
    ops = sorted(o for side in (chain.forward, chain.backward) for stage in side for o in stage)
    assert ops == np.flatnonzero(graph.needed).tolist()


# -- one level -------------------------------------------------------------------------------------------------------
@st.composite
def plain_chains(draw: st.DrawFn, most: int = 7) -> Graph:
    """Every op reads what the one before it makes, and its backward reads that and the gradient."""
    b = Builder(draw)
    values = [b.value()]
    for i in range(draw(st.integers(1, most))):
        values.append(b.value())
        b.op(f"f{i}", [values[i]], [values[i + 1]])
    gradient = b.like(values[-1])
    b.op(BOUNDARY, [values[-1]], [gradient], recompute=False)
    for i in range(len(values) - 2, -1, -1):
        before = b.like(values[i])
        b.op(f"b{i}", [gradient, values[i]], [before], backward=True)
        gradient = before
    return Graph(tuple(b.values), tuple(b.ops), (gradient,), name="plain chain")


def undominated(points: set[tuple[int, float]]) -> list[tuple[int, float]]:
    return sorted(p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points))


@given(plain_chains())
def test_hong_exact_finds_what_the_judge_finds_best_of_all_single_level_plans(graph: Graph) -> None:
    chain = chain_from(graph)
    assert len(chain) == sum(not op.backward for op in graph.ops)
    plans = [
        Schedule.from_runs(chain.graph, chain.runs(segmented(chain.turn, cuts)), "test")
        for cuts in subsets(chain, len(chain))
    ]
    points = undominated({(j.peak_bytes, j.seconds) for j in (simulate(graph, s) for s in plans)})
    found = Plans(chain, graph.weights())
    assert list(zip(found.peaks.tolist(), found.times.tolist(), strict=True)) == points
    for i, point in enumerate(points):
        judged = simulate(
            graph, Schedule.from_runs(chain.graph, chain.runs(segmented(chain.turn, found.cuts(i))), "test")
        )
        assert (judged.peak_bytes, judged.seconds) == point


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.lists(st.tuples(*[st.integers(0, 9)] * 4, *[st.integers(0, 40)] * 4), min_size=n, max_size=n)
    )
)
def test_the_least_peak_is_found_without_looking_at_every_pair(rows: list[tuple[int, ...]]) -> None:
    read, unread, saved, gradient, *peaks = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    n = len(rows)
    later = np.triu(np.ones((n, n), np.int64), 1)
    hold = later * (read + unread[:, None])
    passing = unread[:, None] + later * (read + unread) + peaks[0]
    zeros = np.zeros(n)
    begin, table, *_ = kernel.frontier(1, kernel.Stages(hold, passing, saved, gradient, *peaks[1:], *[zeros] * 4))
    peak, follow = kernel.least(kernel.StageBytes(read, unread, saved, gradient, *peaks))
    assert peak == table[begin[n]]
    # What it follows has that peak
    at, end, best = [0], n, 0
    while follow[at[-1]] < n:
        at.append(int(follow[at[-1]]))
    for i in reversed(at):
        segment = range(i, end)
        held = np.cumsum([0, *saved[i:end]])
        takes = [held[-2] + peaks[2][end - 1], *(held[:-2] + peaks[3][i : end - 1])]
        takes += list(held[:-2] + peaks[1][i : end - 1] + gradient[end - 1])
        best = max(*takes, *([best + hold[i, end], *(passing[i, k] for k in segment)] if end < n else [0]))
        end = i
    assert best == peak


@given(st.integers(1, 2000), st.integers(0, 2**32 - 1))
def test_the_largest_of_any_range(n: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 10_000, n)
    known = range_max(numbers)
    for low, high in random.integers(0, n + 1, (50, 2)).tolist():
        assert largest(known, low, high) == max(numbers[low:high], default=0)


@given(chains())
def test_the_least_peak_is_that_of_the_undominated_plans(graph: Graph) -> None:
    chain = chain_from(graph)
    peak, cuts = least(chain)
    assert peak == Plans(chain, graph.weights()).peaks[0]
    judged = simulate(graph, Schedule.from_runs(chain.graph, chain.runs(segmented(chain.turn, cuts)), "test"))
    assert judged.peak_bytes - graph.resident_bytes <= peak


@pytest.mark.parametrize("n", [1000, 4000])
def test_long_chains_take_the_root_of_twice_their_length(n: int) -> None:
    assert min(j.peak_bytes for j in judged("hong-exact", uniform(n))) <= math.sqrt(2 * n) + 2


@given(chains())
def test_hong_exact_promises_no_less_than_the_judge_finds(graph: Graph) -> None:
    chain = chain_from(graph)
    found = Plans(chain, graph.weights())
    for i, (peak, time) in enumerate(zip(found.peaks, found.times, strict=True)):
        judged = simulate(
            graph, Schedule.from_runs(chain.graph, chain.runs(segmented(chain.turn, found.cuts(i))), "test")
        )
        assert judged.peak_bytes - graph.resident_bytes <= peak
        assert judged.seconds <= time


@given(plain_chains(), st.floats(0, 1))
def test_hong_exact_takes_a_budget_or_an_overhead(graph: Graph, part: float) -> None:
    chain = chain_from(graph)
    found = Plans(chain, graph.weights())
    least, most = int(found.peaks[0]), int(found.peaks[-1])
    limit = least + int(part * (most - least))
    by_limit = [simulate(graph, s) for s in hong_exact(Problem(graph, graph.weights(), limit))]
    fast = min(j.seconds for j in by_limit if j.peak_bytes <= limit)
    assert fast == min(found.times[found.peaks <= limit])
    by_time = [simulate(graph, s) for s in hong_exact(Problem(graph, graph.weights(), None, part))]
    base = simulate(graph, Schedule.baseline(graph)).seconds
    small = min(j.peak_bytes for j in by_time if j.seconds <= base * (1 + part) * (1 + 1e-9))
    assert small == min(found.peaks[found.times <= base * (1 + part) * (1 + 1e-9)])


def static_value(chain: Chain, cuts: Sequence[int]) -> int:
    """Bytes kept + most bytes that backward reads between two kept inputs."""
    _, begin, end = static_sizes(chain)
    bounds = [0, *cuts, chain.turn]
    longest = max(int(end[j] - begin[i]) for i, j in zip(bounds, bounds[1:]))  # noqa: B905
    return int(sum(chain.input[c] for c in cuts)) + longest


@given(st.one_of(plain_chains(), chains(), graphs()))
def test_the_static_solvers_find_the_least_of_their_objective(graph: Graph) -> None:
    chain = chain_of(graph)
    assume(chain is not None)
    least = min((static_value(chain, cuts) for cuts in subsets(chain, chain.turn)), default=static_value(chain, ()))
    assert static_value(chain, static_optimum(chain)) == least
    found = cheapest(linear_dag(chain))
    assert static_value(chain, found.vertices) == found.value == least


def test_the_static_objective_of_a_plain_chain_is_that_of_the_papers() -> None:
    """What is kept, and the tensors strictly between two kept ones."""
    sizes = [3, 9, 4, 7, 1, 8]
    ops = [Op(f"f{i}", (i - 1,) if i else (), (i,)) for i in range(6)]
    graph = uniform(6)
    values = [graph.values[v].__class__(sizes[v] if v < 6 else 0) for v in range(len(graph.values))]
    chain = chain_from(Graph(tuple(values), (*ops, *graph.ops[6:]), graph.keep))
    assert static_value(chain, ()) == 3 + 9 + 4 + 7 + 1
    assert static_value(chain, (2,)) == 9 + max(3, 4 + 7 + 1)


def revised_by_recurrence(size: list[int], inner: list[int]) -> int:
    n = len(inner)
    m = [0] * n + [size[n]]
    for i in range(n - 1, -1, -1):
        m[i] = size[i] + min(
            max(m[j], sum(size[i + 1 : j]) + sum(inner[i:j]) + size[j] + max(size[i:j])) for j in range(i + 1, n + 1)
        )
    return m[0]


@given(
    st.integers(1, 14).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, 9), min_size=n + 1, max_size=n + 1),
            st.lists(st.integers(0, 9), min_size=n, max_size=n),
        )
    )
)
def test_hong_in_linear_time_is_its_recurrence(drawn: tuple[list[int], list[int]]) -> None:
    size, inner = drawn
    value, follow = kernel.revised(np.array(size, np.int64), np.array(inner, np.int64))
    assert value == revised_by_recurrence(size, inner)
    # The positions it gives have that value
    bounds = [0, *followed(follow), len(inner)]
    best = size[-1]
    for i, j in zip(bounds[-2::-1], bounds[:0:-1], strict=True):
        best = size[i] + max(best, sum(size[i + 1 : j]) + sum(inner[i:j]) + size[j] + max(size[i:j]))
    assert best == value


def test_peaks_on_a_uniform_chain() -> None:
    graph = uniform(200)
    least = {s: min(j.peak_bytes for j in judged(s, graph)) for s in ("chen-sqrt", "chen-greedy", "hong-cubic", "hong",
                                                                      "hong-exact", "feng-linear")}  # fmt: skip
    assert least["hong-exact"] <= least["hong"] <= 22, "about the square root of 2 n"
    assert all(27 <= least[s] <= 30 for s in ("chen-sqrt", "chen-greedy", "hong-cubic", "feng-linear"))


@pytest.mark.parametrize("solver", SINGLE_LEVEL)
def test_one_level_is_at_most_one_extra_forward(solver: str) -> None:
    graph = uniform(50)
    for found in judged(solver, graph):
        assert found.runs.max() <= 2
        assert found.overhead <= 0.5


# -- Chen et al. -----------------------------------------------------------------------------------------------------
@given(graphs(), st.integers(0, 100))
def test_greedy_segments_exceed_the_budget_by_their_last_tensor_only(graph: Graph, budget: int) -> None:
    chain = chain_of(graph)
    assume(chain is not None)
    found = greedy(chain, budget)
    made = chain.saved - chain.passed_on + np.append(chain.lives.begun[1:], 0)
    for begin, end in zip((0, *found.cuts), (*found.cuts, chain.turn), strict=True):
        assert made[begin : end - 1].sum() <= budget or end - begin == 1
    assert found.kept == sum(chain.input[c] for c in found.cuts)


@pytest.mark.parametrize("n", [16, 100, 256])
def test_recursion_takes_logarithmic_memory(n: int) -> None:
    graph = uniform(n)
    chain = chain_from(graph)
    found = simulate(graph, Schedule.from_runs(chain.graph, chain.runs(recursive(0, n, 1, n)), "test"))
    assert found.peak_bytes <= math.log2(n) + 3
    assert found.runs[:n].sum() <= n * (math.log2(n) / 2 + 2)


@pytest.mark.parametrize("solver", SINGLE_LEVEL + MULTI_LEVEL)
@given(graph=graphs())
def test_any_graph(solver: str, graph: Graph) -> None:
    for found in judged(solver, graph):
        assert (found.runs[~graph.needed] == 0).all()
