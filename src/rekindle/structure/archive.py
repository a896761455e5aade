"""Sequences of runs: without useless runs, and the best found so far, one per range of peaks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..kernels import liveness
from ..kernels.arrays import Arrays
from ..kernels.modes import peak
from ..kernels.moves import SequenceBins
from ..kernels.objective import Objective, score
from ..model.graph import Graph


class Entry(NamedTuple):
    """A sequence of runs, its peak in bytes without the resident ones, and its cost beyond running each op once."""

    peak: float
    extra: float
    runs: np.ndarray


def entry(graph: Graph, weights: np.ndarray, runs: Sequence[int] | np.ndarray) -> Entry:
    """A sequence of runs of a graph with its peak and extra cost, as the judge has them."""
    ids = np.asarray(runs, np.int64)
    once = float(weights[graph.needed].sum())
    return Entry(peak_of(graph.arrays, graph.shared, ids), max(0.0, float(weights[ids].sum()) - once), ids)


def peak_of(arrays: Arrays, shared: np.ndarray, runs: np.ndarray) -> int:
    """Peak bytes, without the resident ones, of runs lowered by `Schedule.from_runs`. shared : as `Graph.shared`."""
    top, _ = peak(runs, len(runs), np.inf, np.empty(len(arrays.bytes), np.bool_), arrays, shared)
    return int(top)


def within_peak(limit: float, peak_scale: float, cost_scale: float) -> Objective:
    """The objective of least cost within a peak of `limit` bytes; of equal costs, the smaller peak."""
    return Objective(limit, math.inf, peak_scale, cost_scale, 1e-4, 1.0)


def within_cost(most_extra: float, peak_scale: float, cost_scale: float) -> Objective:
    """The objective of least peak within an extra cost (infinite: at any cost); of equal peaks, the cheaper one."""
    return Objective(math.inf, most_extra, peak_scale, cost_scale, 1.0, 1e-3)


def peak_edges(least: float, most: float, bins: int) -> np.ndarray:
    """float64 [bins]: rising upper ends of ranges of peaks, spread evenly over their logarithm; the last is infinite."""
    return np.append(np.geomspace(least, most, bins - 1), math.inf)


class Archive:
    """The cheapest sequence entered for each range of peaks.

    bins : `SequenceBins`, which the kernels fill; see `kernels.moves`.
    """

    def __init__(self, least: float, most: float, most_runs: int, bins: int):
        """least, most : the peaks to tell apart, roughly, in bytes; bins : how many ranges of peaks."""
        most = max(2.0, most)
        edges = peak_edges(min(max(1.0, least), 0.99 * most), most, bins)
        self.bins = _empty(edges, most_runs)

    def like(self) -> Archive:
        """An empty archive for the same peaks."""
        out = Archive.__new__(Archive)
        out.bins = _empty(self.bins.edges, self.bins.runs.shape[1])
        return out

    def add(self, e: Entry) -> None:
        """Enter a sequence, if it is the cheapest in its range and short enough."""
        bins = self.bins
        b = int(np.searchsorted(bins.edges, e.peak))
        better = e.extra < bins.extra[b] or (e.extra == bins.extra[b] and e.peak < bins.peak[b])
        if b < len(bins.edges) and better and len(e.runs) <= bins.runs.shape[1]:
            bins.extra[b], bins.peak[b], bins.lengths[b] = e.extra, e.peak, len(e.runs)
            bins.runs[b, : len(e.runs)] = e.runs

    def merge(self, other: Archive) -> None:
        """Enter all sequences of another archive."""
        for e in other:
            self.add(e)

    def __iter__(self) -> Iterator[Entry]:
        bins = self.bins
        for b in np.flatnonzero(np.isfinite(bins.extra)):
            yield Entry(float(bins.peak[b]), float(bins.extra[b]), bins.runs[b, : bins.lengths[b]].astype(np.int64))

    def best(self, objective: Objective) -> Entry:
        """The entry with the best score for an objective."""
        return min(self, key=lambda e: float(score(e.peak, e.extra, objective)))

    @property
    def least(self) -> float:
        """The least peak."""
        return float(self.bins.peak[np.isfinite(self.bins.extra)].min())


def _empty(edges: np.ndarray, most_runs: int) -> SequenceBins:
    n = len(edges)
    return SequenceBins(
        edges, np.full(n, math.inf), np.full(n, math.inf), np.empty((n, most_runs), np.int32), np.zeros(n, np.int64)
    )


def pareto(entries: list[Entry]) -> list[Entry]:
    """The entries that no other matches in both peak and cost, in order of falling peak."""
    kept: list[Entry] = []
    for e in sorted(entries, key=lambda e: (e.peak, e.extra, len(e.runs))):
        if not kept or e.extra < kept[-1].extra - 1e-12 * abs(kept[-1].extra):
            kept.append(e)
    return kept[::-1]


def prune(graph: Graph, runs: Iterable[int]) -> list[int]:
    """`runs` (op ids) without the useless ones: a run none of whose outputs is read before it is produced again, nor
    kept at the end; and a repeat of an op that must not run twice, whose first run stays.

    Where every run finds its inputs made before it, it still does in the result. O(runs + edges).
    """
    return liveness.prune(np.fromiter(runs, np.int64), graph.arrays).tolist()


def making(graph: Graph, ops: np.ndarray, wanted: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The part of `ops` (int64, in order) that makes the values `wanted` where the values `kept` are there already; both
    bool [values]."""
    a = graph.arrays
    asked = a._replace(
        producer=np.where(kept, -1, a.producer), recompute=np.ones(len(a.recompute), np.bool_), keep=wanted & ~kept
    )
    return liveness.prune(ops, asked)
