"""Searches that begin anew near the smallest reachable peak, for effort "thorough" of `auto`.

There, small changes of known plans that hold more lead nowhere, and one search finds plans that another one misses: each
of the searches below, without the results of the sweep, was cheaper or smaller than `auto` on some model. Two of them, when
shown FLOPs as the costs of ops, also found plans that take fewer seconds than the plans they find by seconds: on DeepLabV3
at its least memory +46 % instead of +52 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from ..exact.search import fits
from ..problem import Problem
from ..solvers import beam
from ..structure.archive import Entry, entry
from .proposals import FEW_OPS, Source, proposed

# Which searches begin anew. `BY_FLOPS` was measured (see above); the other numbers are guesses.
BEAMS_MOST_OPS = 400  # on larger graphs no beams are asked for several peaks
BEAM_MOST_STATES = 100  # states that a beam keeps
BEAM_MOST_STATES_OPS2 = 5_000_000  # the most that states times ops squared (the time of a beam) may be
BEAM_WAYS = tuple(  # (soft share, price, window) of each beam that is asked for several peaks; see `beam.BeamWay`
    (soft, price, window) for soft in (0.9, 0.8) for price in (1.0, 3.0) for window in (1, 6)
)
BY_FLOPS = ("hierarchical", "storages")  # asked by FLOPs too, where the problem's cost is another one
PEAK_SHARES = (0.0, 0.03, 0.08, 0.15, 0.3)  # where the peaks lie, from the lower end of the stretch (0) to its upper


def groups(problem: Problem, low: float, high: float) -> list[list[Source]]:
    """The searches to ask between two peaks (bytes without the resident ones), in groups whose results are polished apart."""
    g = problem.graph
    peaks = [int(low * (high / low) ** share) for share in PEAK_SHARES]
    smallest = replace(problem, limit=None, max_overhead=None)
    solvers: list[Source] = [partial(proposed, replace(smallest, whole=True), "storages")]
    solvers += [partial(proposed, smallest, name) for name in ("rotor", "dtr")]
    if len(g.ops) <= FEW_OPS:
        solvers += [
            partial(proposed, smallest, "beam"),
            *(partial(proposed, smallest.within(peak), "dtr") for peak in peaks),
        ]
    found = [solvers]
    flops = g.weights("flops")
    if flops.any() and not np.array_equal(flops, problem.weights):
        whole = replace(smallest, whole=True)
        found.append([partial(proposed, whole, name, flops) for name in BY_FLOPS])
    if len(g.ops) <= BEAMS_MOST_OPS and not fits(g):
        found.append([partial(_walked, problem, peak) for peak in peaks])
    return found


def _walked(problem: Problem, peak: int) -> Iterator[Entry]:
    """The entries that beams find within a peak, in bytes without the resident ones."""
    search = beam.BeamSearch(problem)
    width = min(BEAM_MOST_STATES, BEAM_MOST_STATES_OPS2 // len(problem.graph.ops) ** 2)
    wide = (beam.BeamWay(width, price, soft, window) for soft, price, window in BEAM_WAYS)
    for way in (*beam.PROBE, *wide):
        if problem.time_left <= 0:
            return
        found = search.walk(peak, way)
        if found is not None:
            search.price = found.price or search.price
            yield entry(problem.graph, problem.weights, found.runs)
