"""Multi-level plans of chains: each optimum against a search over everything that its class of schedules may do."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from graphs_by_hand import chain as uniform
from rekindle.kernels import rotor as kernel
from rekindle.kernels.revolve import fewest_steps
from rekindle.model.graph import Graph
from rekindle.model.judge import simulate
from rekindle.model.schedule import Schedule
from rekindle.problem import Problem
from rekindle.solvers.revolve import operations
from rekindle.solvers.rotor import Curve, rotor
from rekindle.structure.chain import BACKWARD, KEEP_ALL, chain_of
from strategies import chains, examples, graphs


@dataclass(frozen=True)
class Sizes:
    """A chain in the terms of the paper. Stage i reads a[i] and makes a[i + 1]; option k of it saves all[i][k]."""

    a: list[int]
    all: list[list[int]]
    gradient: list[int]
    forget_extra: list[int]
    all_extra: list[list[int]]
    backward_extra: list[list[int]]
    forget_time: list[int]
    all_time: list[list[int]]
    backward_time: list[list[int]]

    def __len__(self) -> int:
        return len(self.all)

    def stages(self) -> kernel.Stages:
        """On one level."""
        n = len(self)
        passing = [[(self.a[j] if j > i else 0) + self.a[j + 1] + self.forget_extra[j] for j in range(n)]
                   for i in range(n)]  # fmt: skip
        saved, extra, back = (np.array(x, np.int64) for x in (self.all, self.all_extra, self.backward_extra))
        gradient = np.array(self.gradient, np.int64)
        forward_peak, backward_peak = saved + extra, saved + back + gradient[:, None]
        alone = np.maximum(forward_peak + gradient[:, None], backward_peak)
        time, back_time = np.array(self.all_time, float), np.array(self.backward_time, float)
        hold = np.tile(np.array(self.a[:-1], np.int64), (n, 1))
        stages = kernel.Stages(
            hold, np.array(passing, np.int64), gradient, np.array(self.forget_time, float), saved, forward_peak, time,
            alone, time, backward_peak, back_time,
        )  # fmt: skip
        return kernel.Stages(*(x[None] for x in stages))

    def table(self, memory: int) -> np.ndarray:
        return kernel.solve(self.stages(), self.enter(), 1, memory)[0]  # type: ignore[no-any-return]

    def enter(self) -> np.ndarray:
        return np.zeros((1, 1, len(self) + 1))


@st.composite
def sizes(draw: st.DrawFn, most: int = 4, large_gradients: bool = True) -> Sizes:
    """large_gradients: that behind stage i may take more than a[i + 1] and the least gradient behind a later stage."""
    n, options = draw(st.integers(1, most)), draw(st.integers(1, 2))
    small, time = st.integers(0, 4), st.integers(0, 3)
    a = [0, *draw(st.lists(small, min_size=n, max_size=n))]

    def rows(one: st.SearchStrategy[int]) -> list[list[int]]:
        return [[draw(one) for _ in range(options)] for _ in range(n)]

    gradient: list[int] = []
    for i in reversed(range(n)):
        most_bytes = 4 if large_gradients or not gradient else min(4, a[i + 1] + min(gradient))
        gradient.insert(0, draw(st.integers(0, most_bytes)))
    return Sizes(
        a, [[a[i + 1] + extra for extra in row] for i, row in enumerate(rows(small))], gradient,
        [draw(small) for _ in range(n)], rows(small), rows(small), [draw(time) for _ in range(n)], rows(time),
        rows(time),
    )  # fmt: skip


State = tuple[int, int, frozenset[int], tuple[tuple[int, int], ...]]


def moves(c: Sizes, memory: int, state: State, back: bool = False) -> Iterator[tuple[int, State]]:
    """(time, state) that one operation leads to. A state: the stage whose backward is next, the stage whose input
    forward has last made (-1: gone), the stages whose inputs are kept, and (stage, option) of those saved whole.

    What is kept goes with its backward only; what forward has made last, and is not kept, goes at any time.

    back: forward may run stages before the last one of which something is kept. The solver's schedules never do.
    """
    t, head, kept, saved = state
    stages_saved = {i for i, _ in saved}
    first = 0 if back else max((0, *kept, *stages_saved))
    held = sum(c.a[i] for i in kept) + sum(c.all[i][k] for i, k in saved) + c.gradient[t]
    at_hand = {0, *kept, *(i + 1 for i in stages_saved)}
    for i in sorted(at_hand | {head} - {-1}):
        if not first <= i <= t:
            continue
        loose = 0 if i in at_hand else c.a[i]
        if i < t and held + loose + c.a[i + 1] + c.forget_extra[i] <= memory:
            yield c.forget_time[i], (t, i + 1, kept, saved)
        if i not in at_hand:
            yield 0, (t, -1, kept | {i}, saved)
        elif i not in stages_saved:
            for k, size in enumerate(c.all[i]):
                if held + size + c.all_extra[i][k] <= memory:
                    yield c.all_time[i][k], (t, -1, kept, tuple(sorted((*saved, (i, k)))))
    for i, k in saved:
        if i == t and i in at_hand and held + c.backward_extra[i][k] <= memory:
            left = tuple(s for s in saved if s[0] != t)
            yield c.backward_time[i][k], (t - 1, -1, kept - {t}, left)


def search(n: int, follow: Callable[[State], Iterable[tuple[int, State]]]) -> float:
    """The least time of any persistent schedule for n stages, by Dijkstra's algorithm."""
    start: State = (n - 1, -1, frozenset(), ())
    best: dict[State, float] = {start: 0}
    queue: list[tuple[float, int, State]] = [(0, 0, start)]
    count = 0
    while queue:
        time, _, state = heapq.heappop(queue)
        if state[0] < 0:
            return time
        if time > best[state]:
            continue
        for more, after in follow(state):
            if time + more < best.get(after, math.inf):
                best[after] = time + more
                count += 1
                heapq.heappush(queue, (time + more, count, after))
    return math.inf


def least_times(c: Sizes, memory: int, back: bool) -> tuple[float, float]:
    """(the table's, the search's)"""
    table = c.table(memory)
    return table[kernel.row(0, len(c) - 1), memory], search(len(c), lambda state: moves(c, memory, state, back))


@examples(400)
@given(sizes(), st.integers(0, 30))
def test_no_persistent_schedule_is_faster(c: Sizes, memory: int) -> None:
    found, least = least_times(c, memory, back=False)
    assert found == least


@examples(400)
@given(sizes(large_gradients=False), st.integers(0, 30))
def test_going_back_before_what_is_kept_is_no_faster(c: Sizes, memory: int) -> None:
    """The lemma behind the recurrence: what forward does before stage i, while the input of i is kept, can as well wait
    for the backward of i. The gradient is then the one behind i - 1, and the input of i is gone, so it takes no more
    memory where that gradient takes at most as much as that input and the gradient there was before: in the paper a
    gradient is as large as its value."""
    found, least = least_times(c, memory, back=True)
    assert found == least


def test_a_gradient_larger_than_its_value_can_make_going_back_faster() -> None:
    """Stage 0 can be saved only while the small gradient behind stage 1 is held: between backward of stage 2 and of stage 1.
    Stage 1 is saved by then, so stage 0 runs after it."""
    nothing = [[0], [0], [0]]
    c = Sizes([0] * 4, nothing, [3, 0, 3], [0] * 3, [[4], [0], [0]], [[2], [0], [0]], [0, 3, 0], nothing, nothing)
    assert least_times(c, 5, back=False) == (3, 3)
    assert least_times(c, 5, back=True) == (3, 0)


@given(sizes(most=7), st.integers(0, 60))
def test_the_sequence_takes_the_time_and_the_memory_of_the_table(c: Sizes, memory: int) -> None:
    tables = kernel.solve(c.stages(), c.enter(), 1, memory)
    time = tables[0, kernel.row(0, len(c) - 1), memory]
    assume(np.isfinite(time))
    state: State = (len(c) - 1, -1, frozenset(), ())
    for what, stage, option, _ in kernel.sequence(c.stages(), c.enter(), 1, tables, memory, 0, len(c) - 1).tolist():
        t, head, kept, saved = state
        if what != kernel.FORGET and what != kernel.BACKWARD and head == stage:
            head, kept = -1, kept | {stage}  # the input stays
        if what == KEEP_ALL:
            after = (t, -1, kept, tuple(sorted((*saved, (stage, option)))))
        elif what == BACKWARD:
            assert (stage, option) in saved
            after = (t - 1, -1, kept - {t}, tuple(s for s in saved if s[0] != t))
        else:
            after = (t, stage + 1, kept, saved)
        took = [more for more, to in moves(c, memory, (t, head, kept, saved)) if to == after]
        assert took
        time -= min(took)
        state = after
    assert state[0] == -1
    assert time == pytest.approx(0)


def uniform_sizes(n: int) -> Sizes:
    ones = [[1]] * n
    return Sizes([0, *[1] * n], ones, [1] * n, [0] * n, [[0]] * n, ones, [1] * n, ones, ones)


def test_the_time_falls_with_memory_to_that_of_nothing_twice() -> None:
    table = uniform_sizes(60).table(80)
    times = table[kernel.row(0, 59)]
    assert (np.diff(times[np.isfinite(times)]) <= 0).all()
    assert times[-1] == 120


# -- the solver ------------------------------------------------------------------------------------------------------
def peak(graph: Graph, schedules: list[Schedule], overhead: float = math.inf) -> float:
    judged = (simulate(graph, s) for s in schedules)
    return min((j.peak_bytes for j in judged if j.overhead <= overhead + 1e-9), default=math.inf)


@given(graphs(), st.sampled_from(["limit", "overhead", "least"]), st.floats(0, 1))
def test_rotor_on_any_graph(graph: Graph, goal: str, part: float) -> None:
    baseline = simulate(graph, Schedule.baseline(graph)).peak_bytes
    limit = int(part * baseline) if goal == "limit" else None
    problem = Problem(graph, graph.weights(), limit, part if goal == "overhead" else None)
    found = list(rotor(problem))
    assert found
    assert all(s.solver == "rotor" for s in found)
    if goal == "overhead":
        assert peak(graph, found, part) <= baseline
    else:
        assert peak(graph, found) <= baseline or goal == "limit"


@given(chains(), st.floats(0, 1))
def test_on_chains_the_judge_finds_what_the_table_says(graph: Graph, part: float) -> None:
    chain = chain_of(graph)
    assert chain is not None
    curve = Curve(chain, graph.weights())
    curve.unit, curve.slots = 1, 600
    curve.solve()
    times = curve.tables[0, kernel.row(0, len(chain) - 1)]
    enough = np.flatnonzero(np.isfinite(times))
    memory = int(enough[int(part * (len(enough) - 1))])
    time = curve.once + times[memory]
    judged = simulate(graph, Schedule.from_runs(graph, curve.runs(memory)[0]))
    assert judged.peak_bytes - graph.resident_bytes <= memory + chain.held
    assert judged.seconds <= time


def test_a_uniform_chain_by_its_overhead() -> None:
    graph = uniform(200)

    def least(allowed: float) -> float:
        return peak(graph, list(rotor(Problem(graph, graph.weights(), None, allowed))), allowed)

    assert [least(x) for x in (0, 0.1, 0.5, 6)] == [201, 161, 20, 4]


# -- uniform chains --------------------------------------------------------------------------------------------------
def steps(state: State, memory: int, size: int, internal: int) -> Iterator[tuple[int, State]]:
    """As `moves`, where only what is stored takes memory: a state `size`, the internals of a step `internal`."""
    t, head, kept, saved = state
    inside = {i for i, _ in saved}
    room = memory - max(1, size) - size * len(kept) - internal * len(saved)
    at_hand = {0, *kept, *(i + 1 for i in inside)}
    for i in at_hand | {head} - {-1}:
        if i < t:
            yield 1, (t, i + 1, kept, saved)
        if i <= t and i not in inside and 0 < internal <= room:
            yield 1, (t, i + 1, kept, tuple(sorted((*saved, (i, 0)))))
        if i == t:
            yield 0 if t in inside else 1, (t - 1, -1, kept - {t}, tuple(x for x in saved if x[0] != t))
    if 0 < size <= room and head not in at_hand | {-1}:
        yield 0, (t, head, kept | {head}, saved)
    if t in inside:
        yield 0, (t - 1, -1, kept - {t}, tuple(x for x in saved if x[0] != t))


@examples(60)
@given(st.integers(1, 6), st.integers(1, 8), st.sampled_from([(1, 0), (0, 1), (1, 1), (1, 2), (1, 3), (2, 3)]))
def test_no_schedule_takes_fewer_steps(n: int, memory: int, sizes: tuple[int, int]) -> None:
    assume(memory >= max(1, sizes[0]))
    found, _ = fewest_steps(n, memory, *sizes)
    assert found[n, memory] == search(n, lambda state: steps(state, memory, *sizes))


@pytest.mark.parametrize(
    ("n", "memory", "sizes"),
    [(24, 24, (1, 0)), (24, 25, (0, 1)), (24, 60, (1, 3)), (24, 60, (2, 3)), (24, 60, (3, 2)), (40, 160, (1, 8))],
)
def test_looking_at_every_step_finds_no_other_choice(n: int, memory: int, sizes: tuple[int, int]) -> None:
    """Over a convex column it is found by bisection; where both kinds are stored in little memory some are not convex."""
    state, internal = sizes
    begin = max(1, state)
    found, choice = fewest_steps(n, memory, *sizes)
    for m in range(begin, memory + 1):
        assert found[0, m] == 0
        for t in range(1, n + 1):
            ways = [(t + found[t - 1, m], 0)]
            if state and m - state >= begin:
                ways += [(y + found[t - y, m - state] + found[y, m], y) for y in range(1, t)]
            if internal and m - internal >= begin:
                ways += [(y + found[t - y, m - internal] + found[y - 1, m], -y) for y in range(1, t + 1)]
            assert (found[t, m], choice[t, m]) == min(ways, key=lambda way: way[0])
    convex = (np.diff(found[:, begin:], 2, axis=0) >= 0).all()
    assert convex == (0 in sizes or state > internal)


@given(st.integers(1, 60), st.integers(1, 6))
def test_revolve_is_the_closed_form(n: int, slots: int) -> None:
    found, _ = fewest_steps(n, slots, 1, 0)
    r = next(r for r in range(n + 1) if math.comb(slots + r, slots) >= n)
    # Every step runs once more for its backward, which the closed form leaves out
    assert found[n, slots] - n == r * n - (math.comb(slots + r, r - 1) if r else 0)


@examples(60)
@given(st.integers(2, 30), st.integers(1, 12), st.sampled_from([(1, 0), (0, 1), (1, 1), (1, 3)]))
def test_the_operations_run_as_many_steps_as_the_table_says(n: int, memory: int, sizes: tuple[int, int]) -> None:
    graph = uniform(n)
    chain = chain_of(graph)
    assert chain is not None
    assert chain.turn == n
    found, choice = fewest_steps(n, memory, *sizes)
    done = list(operations(choice, memory, *sizes))
    assert sum(what != BACKWARD for what, _ in done) - 1 == found[n, memory]
    assert [stage for what, stage in done if what == BACKWARD] == list(range(n, -1, -1))
    judged = simulate(graph, Schedule.from_runs(chain.graph, chain.runs(done), "test"))
    assert judged.runs[:n].sum() <= found[n, memory]
    if sizes[1] == 0:
        assert judged.peak_bytes <= memory + 2, "a state less, which is the caller's; a stage and its gradients more"


def test_mixing_is_never_worse_than_states_or_internals_alone() -> None:
    mixed = fewest_steps(40, 100, 1, 3)[0]
    assert (mixed[:, 1:] <= fewest_steps(40, 100, 1, 0)[0][:, 1:]).all()
    assert (mixed[:, 1:] <= fewest_steps(40, 100, 0, 3)[0][:, 1:]).all()
    assert mixed[40, 20] < min(fewest_steps(40, 20, 1, 0)[0][40, 20], fewest_steps(40, 20, 0, 3)[0][40, 20])
