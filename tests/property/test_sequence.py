"""Sequences of runs: after any change the peak and the cost are the judge's, and what is undone is undone."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from packed import packed
from rekindle import Graph, Op, Schedule, Value, simulate
from rekindle.kernels import moves, slots
from rekindle.kernels import sequence as kernel
from rekindle.portfolio.anneal import Polish
from rekindle.problem import Problem
from rekindle.structure.archive import entry, within_peak
from rekindle.structure.reduced import Reduced
from strategies import graphs, run_sequences


def told(graph: Graph, s: slots.Sequence) -> tuple[int, float]:
    """(peak with the resident bytes, cost), as the state has it."""
    return int(s.tree[1, slots.MOST]) + graph.resident_bytes, float(s.cost[0])


def judged(graph: Graph, s: slots.Sequence) -> tuple[int, float]:
    out = np.empty(10_000, np.int64)
    found = simulate(graph, Schedule.from_runs(graph, out[: kernel.runs_of(s, out)]))
    kept = sum(graph.arrays.bytes[list(set(graph.keep))])
    return max(found.peak_bytes, graph.resident_bytes + int(kept)), found.seconds


def change(s: slots.Sequence, ops: slots.Ops, runs: list[int], choose: random.Random) -> None:
    what = choose.randrange(3)
    if what == 0:
        o = choose.choice(runs)
        t = choose.randint(0, len(s.slot) - 2)
        if t > s.run[s.changing[o, slots.FIRST], slots.AT] and ops.op[o, slots.RECOMPUTE] and s.slot[t] == slots.NONE:
            kernel.insert(s, o, t, ops)
    elif what == 1 and s.counts[slots.N_AGAIN]:
        kernel.remove(s, s.repeats[choose.randrange(s.counts[slots.N_AGAIN])], ops)
    else:
        r = choose.choice([r for r in s.slot.tolist() if r != slots.NONE])
        first, last = kernel.leeway(s, r, ops)
        t = choose.randint(first, last)
        if s.slot[t] == slots.NONE:
            kernel.move(s, r, t, ops)


@given(graph=graphs(), data=st.data())
def test_peak_and_cost_are_the_judges_after_every_change(graph: Graph, data: st.DataObject) -> None:
    runs = data.draw(run_sequences(graph))
    assume(runs)
    ops = packed(graph)
    s = kernel.build(np.array(runs, np.int64), ops)
    assert told(graph, s) == judged(graph, s)
    choose = random.Random(data.draw(st.integers(0, 10**6)))
    for _ in range(12):
        change(s, ops, runs, choose)
        assert told(graph, s) == judged(graph, s)


def test_first_runs_keep_an_order_that_no_value_carries() -> None:
    """Random ops draw in the model's order: a token of no bytes says so, which a reduced problem leaves out."""
    values = tuple(Value(b) for b in (8, 0, 8, 0, 8))
    ops = (Op("a", (), (0, 1)), Op("b", (1,), (2, 3)), Op("add", (0, 2), (4,)))
    graph = Graph(values, ops, (4,))
    r = Reduced(graph)
    s = kernel.build(np.arange(3), slots.pack(r.arrays, np.ones(3), r.shared, r.before))
    packed_ops = slots.pack(r.arrays, np.ones(3), r.shared, r.before)
    at = s.run[:3, slots.AT].tolist()
    assert kernel.leeway(s, 0, packed_ops)[1] < at[1]
    assert kernel.leeway(s, 1, packed_ops)[0] > at[0]


@given(graph=graphs(), seed=st.integers(0, 10**6))
def test_what_annealing_records_is_valid_and_as_good_as_it_says(graph: Graph, seed: int) -> None:
    reduced = Reduced(graph)
    problem = Problem(graph, graph.weights(), seed=seed)
    assume(len(reduced.ops) >= 2 and len(reduced.values))
    polish = Polish(problem, reduced)
    polish.enter([np.arange(len(reduced.ops))])
    state = kernel.build(np.arange(len(reduced.ops)), polish.ops)
    aim = within_peak(0.7 * polish.plain_peak, polish.plain_peak, polish.base_cost)
    moves.anneal(state, polish.ops, aim, polish.archive.bins, polish.base_cost, 200, 0.02, seed)
    entries = polish.entries()
    assert entries
    for e in entries:
        found = simulate(graph, Schedule.from_runs(graph, e.runs))
        kept = int(sum(graph.arrays.bytes[list(set(graph.keep))]))
        assert max(found.peak_bytes - graph.resident_bytes, kept) == max(e.peak, kept)
        assert found.seconds == problem.base_cost + e.extra


def with_a_small_statistic() -> Graph:
    """A norm leaves a byte behind that backward reads; at the peak it waits, and nothing is lost by making it again."""
    ops = (
        Op("norm", (0,), (1, 2)),
        Op("up", (1,), (3,), seconds=1.0),
        Op("wide", (3,), (4,), seconds=1.0, workspace=4000),
        Op("down", (4, 0), (5,), seconds=1.0),
        Op("back", (5, 2, 0), (6,), seconds=1.0),
    )
    start = Op("start", (), (0,), seconds=1.0, recompute=False)
    return Graph(tuple(Value(b) for b in (4000, 4000, 1, 4000, 4000, 4000, 4000)), (start, *ops), (6,))


def test_pressing_sees_the_least_values_and_never_costs_more() -> None:
    graph = with_a_small_statistic()
    problem = Problem(graph, graph.weights())
    plain = entry(graph, graph.weights(), np.arange(6))
    assert plain.peak == 16001
    assert len(Reduced(graph).values) == 6  # the byte is left out there
    fine = Polish(problem, Reduced(graph, negligible_share=0.0))
    best = min(fine.press([plain]), key=lambda e: e.peak)
    assert (best.peak, best.extra) == (16000, 0.0)


@given(graph=graphs(), runs=st.data(), seed=st.integers(0, 100))
def test_what_pressing_finds_is_as_good_as_it_says(graph: Graph, runs: st.DataObject, seed: int) -> None:
    drawn = runs.draw(run_sequences(graph))
    assume(len(drawn))  # a step without runs has nothing to press
    start = entry(graph, graph.weights(), drawn)
    problem = Problem(graph, graph.weights(), seed=seed)
    found = Polish(problem, Reduced(graph, negligible_share=0.0)).press([start])
    assume(found)  # where no value holds anything there is nothing to press
    for e in found:
        judged = simulate(graph, Schedule.from_runs(graph, e.runs))
        kept = int(sum(graph.arrays.bytes[list(set(graph.keep))]))
        assert max(judged.peak_bytes - graph.resident_bytes, kept) == max(e.peak, kept)
        assert judged.seconds - problem.base_cost == e.extra
