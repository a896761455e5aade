"""The best sequences found so far, one per peak."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..kernels.arrays import Arrays
from ..kernels.modes import peak
from ..kernels.search import score
from ..model.graph import Graph

BINS = 256  # peaks told apart
Goal = tuple[float, float, float, float, float, float]


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
    top, _ = peak(runs, len(runs), np.inf, np.empty(len(arrays.bytes), np.bool_), *arrays, shared)
    return int(top)


def limit_goal(limit: float, peak_scale: float, cost_scale: float) -> Goal:
    """Least cost within a peak."""
    return (limit, math.inf, peak_scale, cost_scale, 1e-4, 1.0)


class Archive:
    """Sequences by peak: in each of `BINS` ranges of peaks the cheapest one that has been entered.

    arrays : (edges, extra, peak, runs, lengths) as the kernels take it; see `kernels.moves`.
    """

    def __init__(self, least: float, most: float, cap: int, bins: int = BINS):
        """least, most : the peaks to tell apart, roughly; cap : most runs of a sequence."""
        most = max(2.0, most)
        edges = np.append(np.geomspace(min(max(1.0, least), 0.99 * most), most, bins - 1), math.inf)
        self.arrays = (
            edges, np.full(bins, math.inf), np.full(bins, math.inf), np.empty((bins, cap), np.int32),
            np.zeros(bins, np.int64),
        )  # fmt: skip

    def like(self) -> Archive:
        """An empty one for the same peaks."""
        out = Archive.__new__(Archive)
        edges, _, _, runs, lengths = self.arrays
        out.arrays = (
            edges, np.full(len(runs), math.inf), np.full(len(runs), math.inf), np.empty_like(runs), np.zeros_like(lengths),
        )  # fmt: skip
        return out

    def add(self, e: Entry) -> None:
        """Enter a sequence, if it is the cheapest in its range and short enough."""
        edges, extra, peaks, runs, lengths = self.arrays
        b = int(np.searchsorted(edges, e.peak))
        better = e.extra < extra[b] or (e.extra == extra[b] and e.peak < peaks[b])
        if b < len(edges) and better and len(e.runs) <= runs.shape[1]:
            extra[b], peaks[b], lengths[b] = e.extra, e.peak, len(e.runs)
            runs[b, : len(e.runs)] = e.runs

    def merge(self, other: Archive) -> None:
        """Enter all of another one's."""
        for e in other:
            self.add(e)

    def __iter__(self) -> Iterator[Entry]:
        _, extra, peaks, runs, lengths = self.arrays
        for b in np.flatnonzero(np.isfinite(extra)):
            yield Entry(float(peaks[b]), float(extra[b]), runs[b, : lengths[b]].astype(np.int64))

    def best(self, goal: Goal) -> Entry:
        """The entry that serves a goal best."""
        return min(self, key=lambda e: float(score(e.peak, e.extra, goal)))

    @property
    def least(self) -> float:
        """The least peak."""
        return float(self.arrays[2][np.isfinite(self.arrays[1])].min())


def pareto(entries: list[Entry]) -> list[Entry]:
    """Those that no other matches in both peak and cost, in order of falling peak."""
    kept: list[Entry] = []
    for e in sorted(entries, key=lambda e: (e.peak, e.extra, len(e.runs))):
        if not kept or e.extra < kept[-1].extra - 1e-12 * abs(kept[-1].extra):
            kept.append(e)
    return kept[::-1]
