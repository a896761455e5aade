"""Searches that begin anew near the floor, for `auto`.

There moves from plans that hold more lead nowhere, and what one search misses another one finds: without what the sweep of
the curve knows, each of these was cheaper or smaller than `auto` on some model. Two of them, told that ops cost their FLOPs,
also found what takes fewer seconds than what they find by seconds: on DeepLabV3 at its least memory +46 % instead of +52 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from ..exact import search as exact
from ..problem import Problem
from ..solvers import beam
from ..structure.archive import Entry, entry
from .anneal import LONGER
from .proposals import Source, proposed

FEW, WALKED = 1500, 400  # ops of graphs on which slower ones are asked; and on which beams are asked for several peaks
WIDTH, STATES = 100, 5_000_000  # states that wide beams keep, and what that times ops squared (their time) stays below
WIDE = tuple(beam.Way(WIDTH, p, s, w) for s in (0.9, 0.8) for p in (1.0, 3.0) for w in (1, 6))
BY_FLOPS = ("hierarchical", "storages")  # asked by FLOPs too, where the cost is another one
NEAR = (0.0, 0.03, 0.08, 0.15, 0.3)  # those peaks, from the lower end (0) of the stretch to its upper one (1)


def groups(problem: Problem, low: float, high: float) -> list[tuple[list[Source], int]]:
    """Who is asked between two peaks (without resident bytes), in groups whose findings are polished apart; and times how
    many changes of a sweep."""
    g = problem.graph
    rooms = [int(low * (high / low) ** x) for x in NEAR]
    smallest = replace(problem, limit=None, max_overhead=None)
    within = [replace(smallest, limit=g.resident_bytes + room) for room in rooms]
    solvers: list[Source] = [partial(proposed, replace(smallest, whole=True), "storages")]
    solvers += [partial(proposed, smallest, name) for name in ("rotor", "dtr")]
    if len(g.ops) <= FEW:
        solvers += [partial(proposed, smallest, "beam"), *(partial(proposed, one, "dtr") for one in within)]
    found = [(solvers, 1)]
    flops = g.weights("flops")
    if flops.any() and not np.array_equal(flops, problem.weights):
        found.append(([partial(proposed, replace(smallest, whole=True), name, flops) for name in BY_FLOPS], 1))
    if len(g.ops) <= WALKED and not exact.fits(g):
        found.append(([partial(_walked, problem, room) for room in rooms], LONGER))
    return found


def _walked(problem: Problem, room: int) -> Iterator[Entry]:
    """What beams find within a peak, without resident bytes."""
    search = beam.Search(problem)
    width = min(WIDTH, STATES // len(problem.graph.ops) ** 2)
    for way in (*beam.SETTINGS.probe, *(way._replace(width=width) for way in WIDE)):
        if problem.time_left <= 0:
            return
        found = search.walk(room, way)
        if found is not None:
            search.price = found.price or search.price
            yield entry(problem.graph, problem.weights, found.runs)
