"""Scoring of `storages`: a change is given up early only where its whole score would refuse it as well."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rekindle.kernels import scoring as kernel
from rekindle.kernels.modes import KEEP
from rekindle.kernels.objective import Objective, soft
from rekindle.model.graph import Graph
from rekindle.portfolio.points import Points
from rekindle.problem import Problem
from rekindle.structure.reduced import Reduced
from strategies import graphs

shares = st.floats(0.1, 2.0)


@given(graphs(), st.randoms(use_true_random=False), shares, shares, st.floats(0.0, 2.0))
def test_what_is_given_up_early_scores_worse(
    graph: Graph, random, limit: float, most_extra: float, share: float
) -> None:
    points = Points(Problem(graph, graph.weights("seconds")), Reduced(graph))
    point = points.all_in(KEEP)
    for v in points.reduced.candidates:
        point.modes[v] = random.randrange(3)
    scale, once = max(1.0, points.plain_peak), points.base_cost
    whole = kernel.evaluate(point, points.instance, points.scratch)
    for objective in (
        Objective(limit * scale, np.inf, scale, once, 1e-4, 1.0),
        Objective(np.inf, most_extra * once, scale, once, 1.0, 1e-3),
        Objective(limit * scale, most_extra * once, scale, once, 1.0, 1.0),
    ):
        score = soft(whole[0], whole[2], objective)
        for most in (share * score, score, 0.999 * score - 1e-6):
            found = kernel.evaluate_within(point, points.instance, objective, most, points.scratch)
            assert found == whole if score <= most else found == whole or found[0] == kernel.INFEASIBLE
        assert found[0] == kernel.INFEASIBLE or score <= 0  # nothing weighs anything
