"""The working set of a large op, and what must be live while its inputs are made: a look a few runs back.

Just before op v runs for the first time its inputs R are all live. Take the last run before it that made one of them
live, by an op q: while q ran, its inputs and outputs were live, its workspace taken, and R but for q's outputs was live
already. So were q's inputs, and the argument goes on from R without q's outputs and with q's inputs. Every
schedule takes at least the smallest, over all such ways, of the most memory on the way. The same holds at the end of the step,
where R is what is kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from ..exact.needed import overwritable
from ..kernels import waiting as kernel
from ..model.floor import Bound, remembered, single_op, working_set
from ..model.graph import Graph

# Values in all sets looked at for one op, where each set counts as WORK_PER_SET more; measured: under a second in all.
MOST_WORK, WORK_PER_SET = 200_000, 20
BACK_RUNS = 4  # how many runs are looked back; a guess
LARGEST_OPS = 8  # how many ops are looked at, those with the largest working sets; a guess


@remembered
def look_ahead(graph: Graph, depth: int = BACK_RUNS, ops: int = LARGEST_OPS) -> Bound:
    """A bound on the peak of every schedule, whatever it costs; at least `single_op`.

    depth : runs looked back. ops : of how many ops, those with the largest working sets.

    A look that takes too many sets of values ends with what it has shown by then: less than a second in all.
    """
    found = single_op(graph)
    own = {int(i): working_set(graph, int(i)) for i in np.flatnonzero(graph.needed)}
    largest = sorted(own, key=lambda i: (-own[i], i))[: max(0, ops)]
    looks = _Looks(graph)
    starts: list[tuple[int | None, tuple[int, ...]]] = [
        (None, graph.keep),
        *((i, graph.ops[i].inputs) for i in largest),
    ]
    for i, values in starts:
        held = graph.with_resident(looks.least(values, depth))
        if held > found.bytes:
            found = Bound(held, i)
    return found


class _Looks:
    """Looks back from sets of live values; inputs of the graph, which are always there, are left out of them."""

    def __init__(self, graph: Graph):
        a = graph.arrays
        self.size, self.made_by = a.bytes.tolist(), a.producer.tolist()
        self.ops, self.arrays = graph.ops, a
        self.over = lru_cache(maxsize=None)(lambda q: overwritable(graph, q, False))
        self.depends = lru_cache(maxsize=None)(lambda q: kernel.depends(q, a).tobytes())

    def least(self, values: Iterable[int], depth: int) -> int:
        """The least memory that is met in the last `depth` runs that make `values` live, or bring those about.

        Always goes on from the set reached with the least memory so far, so that this is a bound whenever it stops; of
        equal ones from the one most runs back. A set is looked at again only when it is reached by more runs.
        """
        live = frozenset(v for v in values if self.made_by[v] >= 0)
        held = sum(self.size[v] for v in live)
        queue = [(held, 0, 0, held, live)]
        done: dict[frozenset[int], int] = {}
        pushed = work = 0
        while True:
            memory, back, _, held, live = heapq.heappop(queue)
            if not live or -back >= depth or work > MOST_WORK:
                return memory
            if done.get(live, 1) <= back:
                continue
            done[live] = back
            for q in {self.made_by[v] for v in live}:
                left = live.difference(self.ops[q].outputs)
                work += len(live) + WORK_PER_SET
                # An op that may run only once ran before every op that depends on it.
                if not self.ops[q].recompute and any(self.depends(q)[self.made_by[v]] for v in left):
                    continue
                during, before_held, before = self._undo(q, live, left, held)
                pushed += 1
                heapq.heappush(queue, (max(memory, during), back - 1, pushed, before_held, before))

    def _undo(self, q: int, live: frozenset[int], left: frozenset[int], held: int) -> tuple[int, int, frozenset[int]]:
        """(bytes held during a run of q that leaves `live`, bytes of what must be live before it, those values)."""
        op, size = self.ops[q], self.size
        before = left.union(v for v in op.inputs if self.made_by[v] >= 0)
        held += sum(size[v] for v in set(op.inputs) - left) - sum(size[v] for v in op.outputs if v in live)
        during = held + op.workspace + sum(size[v] for v in op.outputs)
        if any(v not in live for v in self.over(q)):
            during -= size[op.outputs[0]]
        return during, held, before
