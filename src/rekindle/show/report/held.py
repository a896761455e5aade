"""The memory of a schedule, run by run, by the reason for which it is held.

Every total is the judge's, and every reason is the one that `explain` says. The parts of a total are:

- saved : made before forward ended, and live after that;
- recomputed : made by an op that ran before;
- fetched : brought back from the host;
- passing : every other value that is live: it is made and freed within forward, or within backward;
- working : new outputs and workspace of the op that runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...explain import holding
from ...explain.holding import Lives, Peak, peak_of
from ...model.graph import Graph
from ...model.schedule import Schedule

SAVED, RECOMPUTED, FETCHED, PASSING, WORKING = range(5)
PARTS = ("saved", "recomputed", "fetched", "passing", "working")
PART_OF = {
    holding.SAVED: SAVED, holding.RECOMPUTED: RECOMPUTED, holding.FETCHED: FETCHED,
    holding.GRADIENT: PASSING, holding.FORWARD: PASSING,
    holding.RUNNING: WORKING, holding.WORKSPACE: WORKING,
}  # fmt: skip


@dataclass(frozen=True)
class MemoryByPart:
    """The memory of a schedule, run by run.

    lives : the values that it holds.
    parts : int64 [5, runs], bytes by `PARTS`; with `graph.resident_bytes` they add up to the judge's memory of the run.
    at_peak : what is held in the run that holds most.
    """

    lives: Lives
    parts: np.ndarray
    at_peak: Peak

    @classmethod
    def of(cls, graph: Graph, schedule: Schedule) -> MemoryByPart:
        """The memory of a schedule of the graph. O(steps + edges). Raises as `simulate`."""
        lives = Lives.of(graph, schedule)
        runs, size = len(lives.ops), graph.arrays.bytes.tolist()
        change = np.zeros((len(PARTS), runs + 2), np.int64)
        for x in lives.every:
            change[PART_OF[x.role], x.first + 1] += size[x.value]
            change[PART_OF[x.role], min(x.last, runs) + 1] -= size[x.value]
        parts = change.cumsum(axis=1)[:, :runs]
        parts[WORKING] = graph.beside_resident(lives.memory) - parts.sum(axis=0)
        return cls(lives, parts, peak_of(graph, lives))
