"""The single-level plans of a chain that are best in peak and time, as autograd runs them.

The revised objective of Hong, Tsai, Wang, Liu, Wu, GPU Memory Usage Optimization for Backward Propagation in Deep
Network Training, JPDC 2025, arXiv:2502.12499, with what a step really holds in the place of its U, and with time.

Problem: choose the stages of a chain whose inputs are kept, for the least peak of the whole step within a time, or the
least time within a peak. While segment (i, j) is at work, either forward passes it, or it is run again behind the
gradient that waits, and its backward follows; the last one is kept whole. Each stage counts with what backward reads
of it, with workspace and temporaries, with ops that write in place, and with the gradients that are there. Other graphs
are taken as the chain of stages between their splitting vertices.

Optimality: for peak and time, among plans that keep inputs of stages and run each segment but the last again once,
whole. On a chain of single ops, each of which needs its input and its gradient, the peak is the judge's. It is one
forward more at most. Where more than `MOST_PLANS` plans from a stage on are undominated, the search
goes on with that many of them.

Complexity: O(n) for the least peak where what passes from one stage is read by the next alone: the queue of `hong`, with
its largest terms looked up, as they need not grow with the segment here. (What backward does not read of it may make
the best next stage jump, by d stages at the cost of log d.) With time as well O(n^2 f log(n f)) for f undominated plans;
longer chains are taken with some stages merged for that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..kernels import hong as kernel
from ..model.schedule import Schedule
from ..problem import Problem, register
from ..structure.chain import Chain, chain_of, segmented
from .hong import followed

# How large the dynamic programme with time may grow; measured to take seconds.
MOST_PLANS = 400  # undominated plans to go on with from a stage
MOST_STAGES = 400  # longer chains are merged to that many, as soon as time is looked at
FRONTIER_PLANS = 40  # plans given where the whole frontier is wanted; a guess
PLANS_BEYOND_LIMIT = 3  # plans just above a limit that are given too: the judge may find less than the model; a guess


@register(
    "hong-exact",
    graphs="chain",
    objective="peak and time, of keeping inputs of stages and running each segment again once",
    optimal="for peak and time among single-level plans, on a chain",
    complexity="O(n) for the least peak; with time O(n^2 f log n) for f undominated plans",
    citation="after Hong, Tsai, Wang, Liu, Wu, GPU Memory Usage Optimization for Backward Propagation in Deep Network "
    "Training, JPDC 2025, arXiv:2502.12499",
    curve=True,
)
def hong_exact(problem: Problem) -> Iterator[Schedule]:
    """Single-level checkpointing of a chain by exact peak and time; takes a budget or an overhead."""
    chain = chain_of(problem.graph)
    if chain is None:
        yield Schedule.baseline(problem.graph, "hong-exact")
        return
    if len(chain) > MOST_STAGES:
        yield from chain.schedules(segmented(chain.turn, least(chain)[1]), "hong-exact")
        if not problem.whole and problem.limit is None and problem.max_overhead is None:
            return
        chain = chain_of(problem.graph, MOST_STAGES) or chain
    found = Plans(chain, problem.weights)
    for plan in sorted(_wanted(problem, found)):
        yield from chain.schedules(segmented(chain.turn, found.cuts(plan)), "hong-exact")


def _wanted(problem: Problem, found: Plans) -> set[int]:
    """The plan of least peak, and what meets the goal."""
    wanted = {0}
    if problem.whole:
        ranks = np.geomspace(1, len(found.peaks), FRONTIER_PLANS).astype(np.int64) - 1
        wanted.update(ranks.tolist())
    elif problem.room is not None:
        fit = np.flatnonzero(found.peaks <= problem.room)
        wanted.update(fit[-1:].tolist())
        wanted.update(
            range(len(fit), min(len(found.peaks), len(fit) + PLANS_BEYOND_LIMIT))
        )  # a peak may turn out smaller
    elif problem.max_overhead is not None:
        fit = np.flatnonzero(found.times <= problem.base_cost * (1 + problem.max_overhead) * (1 + 1e-12))
        wanted.update(fit[:1].tolist())
    return wanted


def least(chain: Chain) -> tuple[int, list[int]]:
    """(bytes without what is resident, the stages whose inputs are kept) of least peak at any time."""
    if not chain.lives.single:
        found = Plans(chain, np.zeros(len(chain.graph.ops)), most=1)
        return int(found.peaks[0]), found.cuts(0)
    sizes = kernel.StageBytes(
        chain.lives.read, chain.lives.unread, chain.saved, chain.gradient, chain.skip_peak, chain.save_peak,
        chain.alone_peak, chain.backward_peak,
    )  # fmt: skip
    peak, follow = kernel.least(sizes)
    return chain.held + int(peak), followed(follow)


class Plans:
    """The undominated plans, in order of rising peak and falling time.

    most : how many to go on with from a stage.
    peaks : int64; bytes, without what is resident.
    times : float64.
    """

    def __init__(self, chain: Chain, weights: np.ndarray, most: int = MOST_PLANS):
        t = chain.times(weights)
        stages = kernel.Stages(
            chain.hold, chain.passing, chain.saved, chain.gradient, chain.save_peak, chain.alone_peak,
            chain.backward_peak, t.skip, t.save, t.alone, t.backward,
        )  # fmt: skip
        begin, peaks, times, self._stages, self._entries = kernel.frontier(most, stages)
        self._n, self._begin = len(chain), int(begin[len(chain)])
        self.peaks = chain.held + peaks[self._begin : begin[len(chain) + 1]]
        self.times = t.once + times[self._begin : begin[len(chain) + 1]]

    def cuts(self, plan: int) -> list[int]:
        """The stages whose inputs are kept."""
        cuts: list[int] = []
        at = self._begin + plan
        while self._stages[at] < self._n:
            cuts.append(int(self._stages[at]))
            at = int(self._entries[at])
        return cuts
