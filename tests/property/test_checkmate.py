"""Checkmate's program against all staged schedules of tiny graphs."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from graphs_by_hand import chain
from rekindle.model.graph import Graph
from rekindle.model.judge import simulate
from rekindle.model.schedule import Schedule
from rekindle.problem import Problem
from rekindle.solvers import checkmate
from strategies import chains, dags, examples, graphs, joint_graphs


def solve(problem: Problem) -> list[Schedule]:
    return list(checkmate.checkmate(problem))


def subsets(items: list[int]) -> list[tuple[int, ...]]:
    return [c for k in range(len(items) + 1) for c in combinations(items, k)]


def brute_force(graph: Graph) -> dict[int, float]:
    """Least seconds at each peak: stage t runs op t and any ops before it, in baseline order; between stages any of
    what is live may be dropped, and within one each value goes after its last use."""
    ops = [i for i in range(len(graph.ops)) if graph.needed[i]]
    produced = {v for i in ops for v in graph.ops[i].outputs}
    best: dict[tuple[frozenset[int], frozenset[int], int], float] = {(frozenset(), frozenset(), 0): 0.0}
    for t in range(len(ops)):
        after: dict[tuple[frozenset[int], frozenset[int], int], float] = {}
        for (held, ran, peak), seconds in best.items():
            for again in subsets(ops[:t]):
                runs = [*again, ops[t]]
                if any(i in ran and not graph.ops[i].recompute for i in runs):
                    continue
                live = set(held) | {v for i in runs for v in graph.ops[i].outputs}
                for hold in subsets(sorted(live)):
                    found = stage(graph, runs, set(held), set(hold), produced)
                    if found is not None:
                        key = frozenset(hold), ran | set(runs), max(peak, found)
                        cost = seconds + sum(graph.ops[i].seconds for i in runs)
                        after[key] = min(after.get(key, math.inf), cost)
        best = after
    keep = {v for v in graph.keep if v in produced}
    out: dict[int, float] = {}
    for (held, _, peak), seconds in best.items():
        if keep <= held:
            out[peak + graph.resident_bytes] = min(out.get(peak + graph.resident_bytes, math.inf), seconds)
    return out


def stage(graph: Graph, runs: list[int], live: set[int], hold: set[int], produced: set[int]) -> int | None:
    """The peak of one stage, or None where an input or a value to hold on is missing."""
    peak = 0
    for k, i in enumerate(runs):
        op = graph.ops[i]
        live -= set(op.outputs)  # made again: the copy goes first
        if not set(op.inputs) & produced <= live:
            return None
        live |= set(op.outputs)
        peak = max(peak, sum(graph.values[v].bytes for v in live) + op.workspace)
        later = {v for j in runs[k + 1 :] for v in graph.ops[j].inputs} | hold
        live &= later
    return peak if hold <= live else None


@examples(40)
@given(st.one_of(dags(3), chains(2), joint_graphs(2)), st.data())
def test_least_cost_of_all_staged_schedules(graph: Graph, data: st.DataObject) -> None:
    assume(not any(op.inplace for op in graph.ops))
    possible = brute_force(graph)
    limit = data.draw(st.sampled_from(sorted(possible)))
    expected = min(s for p, s in possible.items() if p <= limit)
    found = [simulate(graph, s) for s in solve(Problem(graph, graph.weights(), limit=limit))]
    assert min(j.seconds for j in found if j.peak_bytes <= limit) == expected


@examples(30)
@given(graphs(), st.sampled_from([None, 0.0, 0.3]))
def test_any_graph_and_any_goal(graph: Graph, overhead: float | None) -> None:
    baseline = simulate(graph, Schedule.baseline(graph)).peak_bytes
    found = solve(Problem(graph, graph.weights(), max_overhead=overhead))
    assert found
    judged = [simulate(graph, s) for s in found]
    assert min(j.peak_bytes for j in judged if overhead is None or j.overhead <= overhead + 1e-6) <= baseline


def test_a_chain_at_half_its_memory() -> None:
    graph = chain(8)
    baseline = simulate(graph, Schedule.baseline(graph))
    limit = baseline.peak_bytes - 3
    found = [simulate(graph, s) for s in solve(Problem(graph, graph.weights(), limit=limit))]
    assert min(j.seconds for j in found if j.peak_bytes <= limit) == baseline.seconds + 3


@pytest.mark.parametrize("n", [45, 200])
def test_larger_graphs_are_rounded_or_declined(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkmate, "WHOLE_MOST_COLUMNS", 0)
    graph = chain(n) if n > 100 else chain(12)
    limit = simulate(graph, Schedule.baseline(graph)).peak_bytes * 2 // 3
    found = [simulate(graph, s) for s in solve(Problem(graph, graph.weights(), limit=limit))]
    if n > 100:
        assert len(found) == 1
    else:
        assert min(j.peak_bytes for j in found) <= limit
