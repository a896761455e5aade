"""The smallest plans of a graph, found from bytes and FLOPs alone: what is reachable never depends on timings.

Near the floor, changes of a good plan lead nowhere: memory falls only after several runs were added that gain nothing by
themselves. So the seeds of several solvers are annealed as sequences of runs (see `anneal`) at temperatures far above
those that serve elsewhere, towards a peak a little below the least one found so far, again and again.

The costs that the search sees are the seconds of a made-up device, from the FLOPs of each op and the bytes that it reads
and writes. They are the same on every machine, whatever was measured there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from .. import bounds
from ..kernels import moves, sequence
from ..model.graph import Graph
from ..model.schedule import Schedule
from ..problem import Problem
from ..solvers.rotor import entries
from ..structure.archive import Archive, Entry, entry, pareto, within_peak
from ..structure.reduced import Reduced
from . import proposals, recent
from .anneal import Polish
from .running import in_threads

FLOP_PER_S, BYTES_PER_S = 1e11, 2e10  # rates of the made-up device; guesses
SOLVERS = ("rotor", "dtr", "min-cut")  # asked for seeds, beside blocks
# As in `structure.reduced`: near the floor small values decide. Measured on a GPT: with 1e-3 its least peak was 10 % higher.
NEGLIGIBLE_SHARE = 1e-4
# (share of the least peak found so far, first temperature) of the chains of one pass. Measured on a U-Net, where temperatures
# of 0.02 and less ended 10 % higher; on a GPT the cool ones gained most.
AIMS = ((0.95, 0.1), (0.97, 0.005), (0.98, 0.02), (0.9, 0.1))
PASSES = {"quick": 2, "normal": 8, "thorough": 12}  # each from the smallest sequence found before; guesses
# Up to so many ops, errors name what the way down reaches. Measured: 0.9 s of processor time on a graph of 97 ops, where
# fast solvers end 23 % higher; for a GPT of 343 ops and its rewrites 22 s, to go 4 % lower.
SMALL_MOST_OPS = 128
EASY_PASSES = 3  # which reach the upper part of the lowest stretch (see `stretches`); a guess
STOPS = (EASY_PASSES, *PASSES.values())  # numbers of passes after which what they reached is asked for
# Passes that gain nothing end the search. Measured on a small ResNet: five such passes came before ones that led from 198.0 to
# 192.6 MB, each a third of a second of processor time.
IDLE_PASSES = 6
GAIN_SHARE = 1e-3  # of the least peak; a pass that gains less counts as one that gains nothing; a guess
MOST_CHANGES = 10_000  # of each chain; a guess
FULL_CHANGES_OPS = 1000  # on graphs of more ops each chain makes fewer changes, in proportion; a guess
MOST_CHANGES_PER_OP = 60  # of each chain; a guess
# Shares of the seeds' least peak: within each, `dtr` is asked again, with a cost of one for each op. Measured on a ViT:
# 26.0 MiB in place of 27.7.
EVICTED_BELOW = (0.98, 0.94)
EVICTED_PEAKS = 4  # for which `dtr` is asked, by the problem's own costs; a guess
CHEAPER_TIMES = 1.0  # the changes of a sweep of `anneal`, to lower costs near the least peak; a guess


def structural_weights(graph: Graph) -> np.ndarray:
    """float64 [ops]: seconds of each op on the made-up device."""
    size = [v.bytes for v in graph.values]
    moved = np.array([sum(size[v] for v in {*op.inputs, *op.outputs}) for op in graph.ops], np.float64)
    return graph.weights("flops") / FLOP_PER_S + moved / BYTES_PER_S


class Reached(NamedTuple):
    """The sequences that some passes of the way down reached. least : the least peak, small values left out."""

    sequences: list[np.ndarray]
    least: float

    def entries(self, problem: Problem) -> list[Entry]:
        """The entries of the sequences, with costs in the unit of the problem."""
        return pareto([entry(problem.graph, problem.weights, runs) for runs in self.sequences])


def reached(problem: Problem, most_passes: int | None = None) -> Reached:
    """The result of so many passes, or of all of the problem's effort; searches by other costs and efforts share them."""
    passes = min(PASSES[problem.effort], most_passes or max(STOPS))

    def go(before: WayDown | None) -> WayDown:
        down = before or WayDown(problem)
        down.descend(problem, passes)
        return down

    return recent.way_down(problem, go).reached(passes)


class WayDown:
    """The way down of one graph, as far as it was gone: the same sequences of runs however the graph's ops were timed."""

    def __init__(self, problem: Problem):
        weights = structural_weights(problem.graph)
        # Searches look at a graph's seconds too, whatever cost they are asked to lower.
        graph = problem.graph.with_costs(weights.tolist())
        self.problem = replace(problem, graph=graph, weights=weights, limit=None, max_overhead=None, whole=False)
        self.seeds = _seeds(self.problem)
        self.evicted = _evicted_below(self.problem, min(e.peak for e in self.seeds))
        reduced = Reduced(graph, NEGLIGIBLE_SHARE)
        self.polish = Polish(self.problem, reduced)
        self.polish.enter([np.arange(len(reduced.ops)), *(reduced.reduced_runs(e.runs) for e in self.seeds)])
        # The archive keeps the cheapest of almost equal peaks, so that a later pass may replace the smallest one.
        self._smallest = self._start()
        self.passes = self.idle_passes = 0
        self._stops: dict[int, Reached] = {}

    def descend(self, problem: Problem, most_passes: int | None = None) -> None:
        """Go on, up to so many passes in all; None: as many as the problem's effort asks for.

        A pass is a few chains, each from the smallest sequence found so far. problem : tells how much time is left.
        """
        archive, floor = self.polish.archive, _floor(self.problem)
        last = PASSES[problem.effort] if most_passes is None else most_passes
        if not len(self.polish.reduced.ops) or not len(self.polish.reduced.values):
            return
        with problem.interruptible():
            while self.passes < last:
                least = archive.least
                if least <= floor or self.idle_passes >= IDLE_PASSES or problem.time_left <= 0:
                    return
                if self.passes in STOPS:
                    self._stops[self.passes] = self.reached(self.passes)
                self._pass(problem)
                self.passes += 1
                self.idle_passes = 0 if archive.least < least * (1 - GAIN_SHARE) else self.idle_passes + 1

    def _pass(self, problem: Problem) -> None:
        polish = self.polish
        ops = len(polish.reduced.ops)
        changes = int(MOST_CHANGES * min(1.0, FULL_CHANGES_OPS / ops))
        changes = min(changes, MOST_CHANGES_PER_OP * ops)
        start = self._start()

        def chain(number: int, share: float, heat: float) -> Archive:
            found = polish.archive.like()
            if problem.time_left > 0:
                aim = within_peak(share * start.peak, polish.plain_peak, polish.base_cost)
                state = sequence.build(start.runs, polish.ops)
                moves.anneal(
                    state, polish.ops, aim, found.bins, polish.base_cost, changes, heat, 7919 * problem.seed + number
                )
            return found

        first = self.passes * len(AIMS)
        rows = [(first + i, share, heat) for i, (share, heat) in enumerate(AIMS)]
        for found in in_threads(problem, chain, rows):
            polish.archive.merge(found)
            self._smallest = min([self._smallest, *found], key=_by_peak)

    def _start(self) -> Entry:
        """The smallest sequence in the archive."""
        return min(self.polish.archive, key=_by_peak)

    @property
    def sequences(self) -> list[np.ndarray]:
        """The sequences found so far, and the seeds."""
        smallest = self.polish.reduced.whole_entries(self.problem.weights, [self._smallest])
        return [e.runs for e in [*self.seeds, *self.evicted, *self.polish.entries(), *smallest]]

    def reached(self, passes: int) -> Reached:
        """The result of so many passes, one of `STOPS`."""
        return self._stops.get(passes) or Reached(self.sequences, float(self.polish.archive.least))


def _by_peak(e: Entry) -> tuple[float, float]:
    return e.peak, e.extra


def small_plans(problem: Problem) -> Iterator[Schedule]:
    """Small peaks that are soon reached, and a few cheaper schedules, for errors that name what is reachable: those of fast
    solvers, and on few ops of the way down, which takes seconds on more ops. No clock decides: the same graph gives the same
    schedules."""
    yield from proposals.small_plans(problem)
    if len(problem.graph.ops) <= SMALL_MOST_OPS:
        brief = replace(problem, limit=None, max_overhead=None, effort="normal")
        yield from (Schedule.from_runs(problem.graph, runs, "auto") for runs in reached(brief).sequences)


def evicted(problem: Problem, low: float, high: float) -> list[Entry]:
    """Entries that the online policy of `dtr` gives between two peaks: near the floor it often costs least."""
    peaks = np.geomspace(max(1.0, low), max(1.0, low, high), EVICTED_PEAKS)
    within = [replace(problem, whole=False).within(peak) for peak in peaks]
    return proposals.all_of(problem, [partial(proposals.proposed, one, "dtr") for one in within])


def _seeds(problem: Problem) -> list[Entry]:
    """The plain step, and entries of fast solvers and of blocks that are joined for least memory, while time is left."""
    whole = replace(problem, whole=True)
    found = [entry(problem.graph, problem.weights, np.flatnonzero(problem.graph.needed))]
    found += proposals.all_of(problem, [partial(proposals.proposed, whole, name) for name in SOLVERS])
    if min(e.peak for e in found) > _floor(problem):
        found += proposals.all_of(
            problem, [partial(_of_blocks, problem, curve) for curve in proposals.blocks_of(problem)]
        )
    return pareto(found)


def _evicted_below(problem: Problem, least: float) -> list[Entry]:
    """Entries that `dtr` gives below the seeds. They are too long for chains, and worse beginnings."""
    unit, rooms = problem.graph.weights("unit"), [int(share * least) for share in EVICTED_BELOW]
    within = [replace(problem, limit=problem.graph.with_resident(room)) for room in rooms]
    return proposals.all_of(problem, [partial(proposals.proposed, one, "dtr", unit) for one in within])


def _floor(problem: Problem) -> int:
    """No schedule has a smaller peak, in bytes without the resident ones."""
    return problem.graph.beside_resident(bounds.look_ahead(problem.graph).bytes)


def _of_blocks(problem: Problem, curve: proposals.Levels) -> Iterator[Entry]:
    yield from entries(replace(problem, whole=True), curve)
    yield from entries(problem, curve)


def cheaper(problem: Problem, known: list[Entry], high: float) -> list[Entry]:
    """Entries of lower cost, in the unit of the problem, from the least peak among the `known` ones up to `high` bytes; none
    is smaller than the smallest known one."""
    least = min(float(e.peak) for e in known)
    reduced = Reduced(problem.graph, NEGLIGIBLE_SHARE)
    polish = Polish(problem, reduced)
    polish.enter([reduced.reduced_runs(e.runs) for e in pareto(known)])
    with problem.interruptible():
        polish.look(least, max(high, least), CHEAPER_TIMES)
    return [e for e in polish.entries() if e.peak >= least]
