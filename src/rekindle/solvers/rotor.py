"""Optimal persistent checkpointing of a heterogeneous chain.

Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, Optimal checkpointing for heterogeneous chains: how to train deep
neural networks with limited memory, 2019, arXiv:1911.13214 (ACM TOMS 2024).

Problem: a chain of stages that differ in sizes and costs. Forward runs a stage keeping nothing, its input, or all that
backward reads of it; any stage may run again, any number of times. Least time within a memory. Other graphs are taken
as the chain of stages between their splitting vertices, each with what one run of it alone takes.

Optimality: for the time, among persistent schedules (what is kept stays until its backward, and no earlier stage runs
before that) of whole stages, with memory counted in slots: each size that is held is rounded up to a whole one. A
schedule that drops what it kept before it is used, or that keeps part of a stage, can be better. One that runs earlier
stages before is no better if each gradient takes at most as much as its value, as in the paper; if not, it can be. A
chain of more than `MOST_STAGES` stages is merged to that many first. Where inputs of stages share values
(concatenations), a candidate that does not make these again takes less time than the table knows.

Complexity: O(S n^3) for n stages and S slots, O(S n^2) memory; with K options for each stage (`kernels.rotor`),
O(S n^2 (n + K)). One table holds the answer for every memory; where the goal lies low in it, a finer one follows. On
one core 50 stages in 500 slots take about 0.01 s, 200 in 1,000 about 0.5 s.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from ..kernels import rotor as kernel
from ..model.schedule import Schedule
from ..problem import Problem, choose, register
from ..saying.shares import EPS
from ..structure.archive import Entry, entry, pareto
from ..structure.chain import Chain, chain_of

# How fine the tables are; both sizes were measured (see the complexity above).
SLOTS = 1000  # slots of memory in a table
MOST_STAGES = 200  # a longer chain is merged to that many
MOST_TABLES = 5  # ever finer tables for one goal; a guess
# How the whole frontier is taken from tables; guesses.
TABLE_SHARES = (1.0, 0.35, 0.12)  # memory of each table, as a share of the memory in which nothing runs twice
LEAST_PLANS_PER_TABLE = 7
OVERHEADS = np.array((0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.33, 0.5, 0.7, 1.0))  # each has a plan in any case
FRONTIER_MOST_PLANS = 24  # plans given of the whole frontier


@register(
    "rotor",
    graphs="chain",
    objective="least time within a memory, of a chain of stages that differ",
    optimal="for its objective, among persistent schedules of whole stages, up to memory slots",
    complexity="O(S n^3) for S memory slots",
    citation="Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, Optimal checkpointing for heterogeneous chains: how to "
    "train deep neural networks with limited memory, 2019, arXiv:1911.13214",
)
def rotor(problem: Problem) -> Iterator[Schedule]:
    """Multi-level checkpointing of a chain by dynamic programming over memory; takes a budget or an overhead."""
    chain = chain_of(problem.graph, MOST_STAGES)
    if chain is None:
        yield Schedule.baseline(problem.graph, "rotor")
        return
    found = list(entries(problem, Curve(chain, problem.weights)))
    yield from (Schedule.from_runs(problem.graph, e.runs, "rotor") for e in thin(choose(problem, pareto(found))))


def thin(frontier: list[Entry]) -> list[Entry]:
    """At most `FRONTIER_MOST_PLANS` entries of a frontier, evenly spread over it."""
    ranks = np.unique(np.linspace(0, len(frontier) - 1, FRONTIER_MOST_PLANS).round().astype(np.int64))
    return [frontier[k] for k in ranks]


class Curve:
    """The least time for every memory up to `top` bytes (beside what is resident).

    levels, enter : as `kernels.rotor` takes them; here one level.
    unit : bytes of a slot.
    slots : how many there are. whole : bytes in which nothing runs twice.
    times : float64 [slots + 1]; the time in each number of slots, infinite where that is too little.
    """

    def __init__(self, chain: Chain, weights: np.ndarray):
        self.chain, self.weights = chain, weights
        self.levels, self.once = options(chain, weights)
        self.enter = np.zeros((1, 1, len(chain) + 1))
        self.slots = SLOTS
        self.whole = chain.held + int(
            (np.cumsum(chain.saved) - chain.saved + np.maximum(chain.save_peak, chain.alone_peak)).max()
        )

    def aim(self, top: int) -> None:
        """Find the times, with the slots spread over `top` bytes."""
        self.unit = unit_of(max(0, min(self.whole, top) - self.chain.held), self.slots, self.chain.saved)
        self.solve()
        self.times = self.once + self.tables[0, kernel.row(0, len(self.chain) - 1)]

    def solve(self) -> None:
        """Find the tables of `kernels.rotor`."""
        self.tables = kernel.solve(self.levels, self.enter, self.unit, self.slots)

    def rows(self, slots: int, first: int = 0, last: int | None = None) -> list[list[int]]:
        """(operation, stage, option, level) rows of the fastest way to run the stages `first` to `last` in so many slots."""
        to = len(self.chain) - 1 if last is None else last
        rows: list[list[int]] = kernel.sequence(
            self.levels, self.enter, self.unit, self.tables, slots, first, to
        ).tolist()
        return rows

    @property
    def choices(self) -> list[int]:
        """The numbers of slots in which something is faster than in fewer."""
        before = np.append(np.inf, self.times[:-1])
        return np.flatnonzero(self.times < np.where(np.isfinite(before), before * (1 - EPS), np.inf)).tolist()

    def bytes(self, slots: int) -> int:
        """The memory in so many slots."""
        return slots * self.unit + self.chain.held

    def runs(self, slots: int) -> list[list[int]]:
        """Sequences of runs of least time in so many slots."""
        return self.chain.both([(what, stage) for what, stage, *_ in self.rows(slots)])

    def entries(self, slots: int) -> list[Entry]:
        """The same, with their peak and cost."""
        return [entry(self.chain.graph, self.weights, runs) for runs in self.runs(slots)]


def unit_of(top: int, slots: int, sizes: np.ndarray) -> int:
    """Bytes of a slot, for at least `top` bytes in all the slots, such that rounding adds least to the sizes."""
    units = np.maximum(1, -(-top // np.arange(slots // 2, slots + 1)))
    different, count = np.unique(sizes, return_counts=True)
    rounded = -(-different.reshape(-1, 1) // units) * units
    return int(units[::-1][(count @ rounded)[::-1].argmin()])


def options(chain: Chain, weights: np.ndarray) -> tuple[kernel.Stages, float]:
    """The stages of a chain on one level with one option each, to save all that backward reads, and what is run once in any
    case."""
    times = chain.times(weights)
    column = (slice(None), None)
    stages = kernel.Stages(
        chain.hold, chain.passing, chain.gradient, times.skip, chain.saved[column], chain.save_peak[column],
        times.save[column], chain.alone_peak[column], times.alone[column], chain.backward_peak[column],
        times.backward[column],
    )  # fmt: skip
    return kernel.Stages(*(np.ascontiguousarray(x[None]) for x in stages)), times.once


def entries(problem: Problem, curve: Curve) -> Iterator[Entry]:
    """The plain step, and what a curve has near the goal of a problem."""
    yield entry(problem.graph, problem.weights, np.flatnonzero(problem.graph.needed).tolist())
    if problem.whole:
        yield from spread(problem, curve)
    elif problem.room is not None:
        yield from _within(problem, curve, problem.room)
    else:
        yield from _smallest(problem, curve)


def spread(problem: Problem, curve: Curve) -> Iterator[Entry]:
    """Plans over the whole range of memory and time."""
    for part in TABLE_SHARES:
        if problem.time_left <= 0:
            return
        curve.aim(int(part * curve.whole))
        choices = np.array(curve.choices, np.int64)
        if not len(choices):
            return
        by_time = np.searchsorted(-curve.times[choices], -problem.base_cost * (1 + OVERHEADS) * (1 + EPS))
        by_memory = (
            np.searchsorted(choices, np.linspace(choices[0], curve.slots, LEAST_PLANS_PER_TABLE), side="right") - 1
        )
        wanted = choices[np.unique(np.append(by_memory, by_time[by_time < len(choices)]))]
        for slots in wanted[(wanted > 0.3 * curve.slots) | (part == TABLE_SHARES[-1])].tolist():
            yield from curve.entries(slots)


def _within(problem: Problem, curve: Curve, room: int) -> Iterator[Entry]:
    """The fastest plan that fits within the room; where there is none, the one of least memory."""
    curve.aim(room + room // 16)  # rounding up and what ends early leave some: more may be asked for than there is
    choices = curve.choices
    if not choices:
        yield from _smallest(problem, curve)
        return
    yield from curve.entries(choices[0])
    low, high = 0, len(choices)  # plans below `low` fit, those from `high` on do not
    while low < high:
        middle = (low + high) // 2
        found = curve.entries(choices[middle])
        yield from found
        if any(e.peak <= room for e in found):
            low = middle + 1
        else:
            high = middle


def _smallest(problem: Problem, curve: Curve) -> Iterator[Entry]:
    """Plans of the least memory in which the time is within what is allowed."""
    more = np.inf if problem.max_overhead is None else problem.base_cost * problem.max_overhead * (1 + EPS) + 1e-12
    fit, found, beyond = -1, [], 0.0  # beyond: what judged plans take that the table does not know of
    for _ in range(MOST_TABLES):
        curve.aim(curve.whole if fit < 0 else curve.bytes(fit + curve.slots // 32))
        times = curve.times - problem.base_cost
        fit = next((slots for slots in curve.choices if times[slots] <= more - beyond), -1)
        if fit < 0:
            return
        found = curve.entries(fit)
        yield from found
        beyond = max(beyond, min(e.extra for e in found) - times[fit])
        enough = times[fit] <= more - beyond and (curve.unit == 1 or fit > 0.9 * curve.slots)
        if enough or problem.time_left <= 0:
            break
    # Where values are reused, a schedule takes less time than the table says: less memory may do.
    low, high = 0, bisect_left(curve.choices, fit)
    while low < high and len(found) > 1 and problem.time_left > 0:
        middle = (low + high) // 2
        found = curve.entries(curve.choices[middle])
        if min(e.extra for e in found) <= more:
            yield from found
            high = middle
        else:
            low = middle + 1
