"""Blocks, their options, and the join over all levels of what forward keeps."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.graph import Graph
from rekindle.schedule import Schedule
from rekindle.simulate import simulate
from rekindle.solvers.base import Problem
from rekindle.solvers.hierarchical import hierarchical
from strategies import graphs


def peak(graph: Graph, schedules: list[Schedule], overhead: float = math.inf) -> float:
    judged = (simulate(graph, s) for s in schedules)
    return min((j.peak_bytes for j in judged if j.overhead <= overhead + 1e-9), default=math.inf)


@settings(max_examples=100)
@given(graphs(), st.sampled_from(["limit", "overhead", "least", "whole"]), st.floats(0, 1))
def test_on_any_graph(graph: Graph, goal: str, part: float) -> None:
    baseline = simulate(graph, Schedule.baseline(graph)).peak_bytes
    limit = int(part * baseline) if goal == "limit" else None
    problem = Problem(
        graph, graph.weights(), limit, part if goal == "overhead" else None, whole=goal == "whole", effort=0.01
    )
    found = list(hierarchical(problem))
    assert found
    assert all(s.solver == "hierarchical" for s in found)
    assert peak(graph, found) <= baseline
    if goal in ("overhead", "whole"):
        assert peak(graph, found, part if goal == "overhead" else 0) <= baseline
