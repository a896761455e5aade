"""Scoring of `storages`: a change is given up early only where its whole score would refuse it as well."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rekindle.kernels import search as kernel
from rekindle.model.graph import Graph
from rekindle.portfolio.storages import Search
from rekindle.problem import Problem
from strategies import graphs

shares = st.floats(0.1, 2.0)


@given(graphs(), st.randoms(use_true_random=False), shares, shares, st.floats(0.0, 2.0))
def test_what_is_given_up_early_scores_worse(
    graph: Graph, random, limit: float, most_extra: float, share: float
) -> None:
    search = Search(Problem(graph, graph.weights("seconds")))
    modes = search._all(2)
    for v in search.reduced.candidates:
        modes[v] = random.randrange(3)
    scale = max(1.0, search.plain_peak)
    arguments = search._arguments, search.reduced.arrays
    whole = kernel.evaluate(modes, search.order, *arguments, search.scratch)
    for goal in (
        (limit * scale, np.inf, scale, search.base_cost, 1e-4, 1.0),
        (np.inf, most_extra * search.base_cost, scale, search.base_cost, 1.0, 1e-3),
        (limit * scale, most_extra * search.base_cost, scale, search.base_cost, 1.0, 1.0),
    ):
        score = kernel.soft(whole[0], whole[2], goal)
        for most in (share * score, score, 0.999 * score - 1e-6):
            found = kernel._evaluate(modes, search.order, *arguments, goal, most, search.scratch)
            assert found == whole if score <= most else found == whole or found[0] == kernel.INFEASIBLE
        assert found[0] == kernel.INFEASIBLE or score <= 0  # nothing weighs anything
