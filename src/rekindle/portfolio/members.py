"""The solvers that `auto` asks about a graph, for citations."""

from __future__ import annotations

from ..exact.search import fits
from ..model.graph import Graph
from . import anew, proposals, small, way_down

JOINED = ("hierarchical", "storages", "anneal")  # what `auto` is made of; see its file


def members(graph: Graph, effort: str, optimal: bool) -> tuple[str, ...]:
    """Names of the solvers that `auto` asks about the graph with that effort, for some goal.

    optimal : whether the answer was proven to be the best: on the smallest graphs the exact search gave it alone.
    """
    exact = fits(graph)
    if optimal and exact and int(graph.needed.sum()) <= small.SETTINGS.answered_ops_most:
        return ("exact",)
    names = [*JOINED, *proposals.asked(graph, effort), *way_down.SETTINGS.solvers]
    if effort == "thorough":
        names += ["exact"] if exact else []
        names += ["beam"] if len(graph.ops) <= anew.SETTINGS.few_ops else []
    return tuple(dict.fromkeys(names))
