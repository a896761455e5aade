"""Where a forward is cut into blocks: no choice of cuts passes fewer bytes, by trying all of them."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from rekindle.model.graph import Graph
from rekindle.structure.cuts import LARGEST_BLOCK, _passing, cuts
from rekindle.structure.forward import Forward, forward_dag
from strategies import chains, examples, graphs


def price(levels: list[float], costs: list[float], chosen: tuple[int, ...], smallest: int) -> float:
    """Bytes that pass at the chosen cuts, on an average over the ops of weight; infinite where a block is too large.

    levels : ops of weight before each place. chosen : indices of places, the first and the last among them.
    """
    total = 0.0
    for a, b in itertools.pairwise(chosen):
        length = levels[b] - levels[a]
        if length > LARGEST_BLOCK * smallest and b - a > 1:
            return float("inf")
        total += costs[b] * max(length, smallest) * (1 + 0.01 * length / smallest)
    return total


def places_of(graph: Graph, forward: Forward) -> tuple[list[int], list[float], list[float]]:
    """(places, ops of weight before each, bytes that pass there): of places between the same ops of weight the best one."""
    passing, weight = _passing(graph, forward)
    target = len(forward.ops) - 1
    best: dict[float, int] = {}
    for v in range(1, target):
        at = float(weight[v])
        if 0 < at < weight[-1] and (at not in best or passing[v] <= passing[best[at]]):
            best[at] = v
    levels = sorted(best)
    places = [0, *(best[at] for at in levels), target]
    return places, [0.0, *levels, float(weight[-1])], [0.0, *(float(passing[best[at]]) for at in levels), 0.0]


@given(st.one_of(chains(9), graphs()), st.integers(1, 3))
@examples(150)
def test_no_other_cuts_pass_fewer_bytes(graph: Graph, smallest: int) -> None:
    forward = forward_dag(graph)
    assume(forward is not None)
    assert forward is not None
    places, levels, costs = places_of(graph, forward)
    assume(3 <= len(places) <= 12)
    found = cuts(graph, forward, smallest)
    assert (found[0], found[-1]) == (0, len(forward.ops) - 1)
    assert set(found) <= set(places)
    inner = range(1, len(places) - 1)
    every = (
        (0, *chosen, len(places) - 1) for n in range(len(inner) + 1) for chosen in itertools.combinations(inner, n)
    )
    least = min(price(levels, costs, chosen, smallest) for chosen in every)
    ours = price(levels, costs, tuple(places.index(v) for v in found), smallest)
    assert np.isclose(ours, least)
