"""Exact search on small graphs: least cost within a peak, or least peak within a cost. See `exact.search`.

Read backwards, a schedule is a path over the sets of values that the future needs. Least peak is a bottleneck shortest
path (Dijkstra), least cost within a peak a shortest path found by A* (Hart, Nilsson, Raphael, 1968).

Problem: the goal itself, on the whole step: any order of the ops, any number of runs, workspace, ops of several
outputs, ops that may run only once, writing in place.

Optimality: least cost among all schedules that the judge accepts and that stay within `limit`; least peak among those
within `max_overhead`; least peak of all with neither, and then least cost at that peak. The claim holds where the search
ends by itself and no op may write over what the boundary reads or makes (traced graphs never allow it). A search that is
cut short gives a certified bound.

Complexity: exponential; about 10^5 sets a second. Graphs of more than 128 needed ops, or values that something reads,
are declined: there the solver gives the baseline alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..exact.needed import MOST
from ..exact.search import MOST_SETS, fits, solve
from ..model.graph import Graph
from ..model.schedule import Schedule
from ..problem import Problem, register


def _declines(graph: Graph) -> str:
    return "" if fits(graph) else f"the graph has more than {MOST} needed ops or values"


@register(
    "exact",
    graphs="any",
    objective="the goal itself, for graphs of up to 128 ops and values",
    optimal="least cost within a peak, least peak within a cost, or least peak, of all schedules",
    complexity="exponential; at most 10^6 sets of values are looked at",
    citation="bottleneck Dijkstra and A* (Hart, Nilsson, Raphael, 1968) over the sets of values still needed",
    declines=_declines,
    thorough=True,
)
def exact(problem: Problem) -> Iterator[Schedule]:
    """A* over the sets of values that the rest of the step still needs; proves what it finds, on small graphs."""
    graph, weights = problem.graph, problem.weights
    yield Schedule.baseline(graph, "exact")
    why = _declines(graph)
    if why:
        problem.progress(f"exact: {why}; use solver='auto'")
        return
    once = float(weights[graph.needed].sum())
    max_cost = None if problem.max_overhead is None else once * (1 + problem.max_overhead)
    nodes = max(1, int(MOST_SETS * problem.work))
    for safe in (True, False):
        limit = problem.limit
        if limit is None and max_cost is None:
            least = solve(graph, weights, nodes=nodes, deadline=problem.deadline, safe=safe)
            if least.schedule is not None:
                yield Schedule.from_runs(graph, least.schedule.runs, "exact")
                limit = least.peak_bound
        found = solve(graph, weights, limit, max_cost, nodes=nodes, deadline=problem.deadline, safe=safe)
        if found.schedule is not None:
            yield Schedule.from_runs(graph, found.schedule.runs, "exact")
