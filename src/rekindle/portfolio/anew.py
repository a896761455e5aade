"""Searches that begin anew near the smallest reachable peak, for `auto`.

There, small changes of known plans that hold more lead nowhere, and one search finds plans that another one misses: each
of the searches below, without the results of the sweep, was cheaper or smaller than `auto` on some model. Two of them, when
shown FLOPs as the costs of ops, also found plans that take fewer seconds than the plans they find by seconds: on DeepLabV3
at its least memory +46 % instead of +52 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..exact.search import fits
from ..problem import Problem
from ..solvers import beam
from ..structure.archive import Entry, entry
from .anneal import SETTINGS as ANNEAL
from .proposals import Source, proposed


@dataclass(frozen=True)
class AnewSettings:
    """Which searches begin anew, on which graphs. `by_flops` was measured (see above); the others are guesses.

    few_ops : on graphs of up to so many ops slower solvers are asked too,
    beams_ops_most : and on graphs of up to so many ops beams are asked for several peaks.
    beam_width : states that these wide beams keep,
    beam_states_ops2 : and the most that states times ops squared (their time) may be.
    beam_ways : (soft share, price, window) of the wide beams; see `beam.Way`.
    by_flops : solvers that are asked by FLOPs too, where the problem's cost is another one.
    peaks_share : the peaks to ask for, from the lower end (0) of the stretch to its upper end (1).
    """

    few_ops: int = 1500
    beams_ops_most: int = 400
    beam_width: int = 100
    beam_states_ops2: int = 5_000_000
    beam_ways: tuple[tuple[float, float, int], ...] = tuple(
        (soft, price, window) for soft in (0.9, 0.8) for price in (1.0, 3.0) for window in (1, 6)
    )
    by_flops: tuple[str, ...] = ("hierarchical", "storages")
    peaks_share: tuple[float, ...] = (0.0, 0.03, 0.08, 0.15, 0.3)


SETTINGS = AnewSettings()


def groups(problem: Problem, low: float, high: float) -> list[tuple[list[Source], int]]:
    """The searches to ask between two peaks (bytes without the resident ones), in groups whose results are polished apart;
    with each group, in how many times the changes of a sweep."""
    g = problem.graph
    peaks = [int(low * (high / low) ** share) for share in SETTINGS.peaks_share]
    smallest = replace(problem, limit=None, max_overhead=None)
    within = [replace(smallest, limit=g.resident_bytes + peak) for peak in peaks]
    solvers: list[Source] = [partial(proposed, replace(smallest, whole=True), "storages")]
    solvers += [partial(proposed, smallest, name) for name in ("rotor", "dtr")]
    if len(g.ops) <= SETTINGS.few_ops:
        solvers += [partial(proposed, smallest, "beam"), *(partial(proposed, one, "dtr") for one in within)]
    found = [(solvers, 1)]
    flops = g.weights("flops")
    if flops.any() and not np.array_equal(flops, problem.weights):
        whole = replace(smallest, whole=True)
        found.append(([partial(proposed, whole, name, flops) for name in SETTINGS.by_flops], 1))
    if len(g.ops) <= SETTINGS.beams_ops_most and not fits(g):
        found.append(([partial(_walked, problem, peak) for peak in peaks], ANNEAL.closer_times))
    return found


def _walked(problem: Problem, peak: int) -> Iterator[Entry]:
    """The entries that beams find within a peak, in bytes without the resident ones."""
    search = beam.Search(problem)
    width = min(SETTINGS.beam_width, SETTINGS.beam_states_ops2 // len(problem.graph.ops) ** 2)
    wide = (beam.Way(width, price, soft, window) for soft, price, window in SETTINGS.beam_ways)
    for way in (*beam.SETTINGS.probe, *wide):
        if problem.time_left <= 0:
            return
        found = search.walk(peak, way)
        if found is not None:
            search.price = found.price or search.price
            yield entry(problem.graph, problem.weights, found.runs)
