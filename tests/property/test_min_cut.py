"""The minimum cut: its kept sets against brute force of the objective, and what it proposes is valid."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from graphs_by_hand import unrolled
from rekindle.model.graph import Graph
from rekindle.model.judge import simulate
from rekindle.planning import registry
from rekindle.problem import Problem
from rekindle.solvers.min_cut import Network, between, corners
from rekindle.structure.saved import Dropping
from strategies import graphs


def objective(graph: Graph, weights: np.ndarray, kept: set[int], price: float) -> float:
    """Bytes of `kept` and the price of all that runs again for what backward reads."""
    d = Dropping(graph)
    candidates = set(d.candidates.tolist())
    end = d.end_of_forward if d.end_of_forward is not None else len(d.order)
    todo = [v for o in d.order[end:] for v in graph.ops[o].inputs]
    again: set[int] = set()
    while todo:
        v = todo.pop()
        o = int(graph.arrays.producer[v])
        if v in candidates and v not in kept and o not in again:
            again.add(o)
            todo += graph.ops[o].inputs
    return float(graph.arrays.bytes[sorted(kept)].sum() + price * weights[sorted(again)].sum())


@given(graph=graphs(), cost=st.sampled_from(["seconds", "unit"]), price=st.floats(0, 50))
def test_no_kept_set_is_better(graph: Graph, cost: str, price: float) -> None:
    candidates = Dropping(graph).candidates.tolist()
    assume(len(candidates) <= 10)
    weights = graph.weights(cost)
    kept = set(np.flatnonzero(Network(graph, weights).cut(price).kept).tolist())
    assert kept <= set(candidates)
    sets = (
        {v for v, inside in zip(candidates, mask, strict=True) if inside}
        for mask in product((0, 1), repeat=len(candidates))
    )
    best = min(objective(graph, weights, s, price) for s in sets)
    unit = max(1.0, float(graph.arrays.bytes[candidates].sum())) * 1e-7
    assert objective(graph, weights, kept, price) <= best + unit * (1 + len(graph.ops) + len(candidates))


@given(graph=graphs())
def test_what_it_proposes_is_valid(graph: Graph) -> None:
    proposed = [simulate(graph, s) for s in registry.get("min-cut").solve(Problem(graph, graph.weights()))]
    assert min(j.overhead for j in proposed) == 0.0


def test_between_two_sets_a_network_of_equal_steps_is_cut_in_parts() -> None:
    graph = unrolled(32)
    sets = [np.zeros(len(graph.values), np.bool_), np.zeros(len(graph.values), np.bool_)]
    sets[1][Dropping(graph).candidates] = True
    size = graph.arrays.bytes
    shares = sorted(size[k].sum() / size[sets[1]].sum() for k in between(sets, graph.arrays.producer, size))
    assert np.allclose(shares, np.repeat(np.arange(1, 8) / 8, 2), atol=0.1)  # each way round
    peaks = sorted(
        {simulate(graph, s).peak_bytes for s in registry.get("min-cut").solve(Problem(graph, graph.weights()))}
    )
    assert len(peaks) >= 4  # plain, the fewest bytes, and some in between


@given(graph=graphs(), cost=st.sampled_from(["seconds", "unit"]), price=st.floats(0, 50))
def test_the_corners_answer_every_price(graph: Graph, cost: str, price: float) -> None:
    network = Network(graph, graph.weights(cost))
    found = corners(network, lambda: False)
    assert [c.bytes for c in found] == sorted(c.bytes for c in found)
    asked = network.cut(price)
    best = min(c.bytes + price * c.cost for c in found)
    unit = max(1.0, float(network.bytes.sum())) * 1e-6
    assert best <= asked.bytes + price * asked.cost + unit * (1 + len(graph.ops) + len(network.values))
