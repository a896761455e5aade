"""The forward part of a step as the DAG of tensors on which papers on checkpointing work.

A captured step is no such DAG by itself. What is done here, so that a chain in the model is a chain in the DAG:

- One vertex per forward op. Keeping it keeps what forward reads of its outputs. What only backward reads (statistics of
  a normalisation, indices of a pooling) goes along where it is small; else it is made again with the segment that ends
  in the vertex, and charged there.
- Inside a segment counts what backward reads. The rest is gone again at once, as where ops work in place.
- Ops from which no path leads to a result (buffer updates and their tokens) are no vertices.
- What the caller holds (parameters, inputs) is always at hand and makes no edges.
- A side input is computed from what the caller holds and joins the main stream: a cast weight, an attention mask, the
  input's share of a recurrent step. One that enters at a single vertex is charged to the segment that ends there; a
  light one that enters at several is always kept. Neither makes edges.
- A concatenation of what an earlier one has, and more, reads the earlier one; and that is kept by keeping its parts.
  So dense blocks are the chains that they would be if each layer appended to the features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..model.graph import Graph

LIGHT = 50  # a side input is light if it takes at most a 50th of what forward makes
SMALL = 16  # outputs only for backward are small if they take at most a 16th of the others


@dataclass(frozen=True)
class Dag:
    """Vertices 0 to n - 1 in a topological order, each on a path from 0, the source, to n - 1, the target.

    cost : int64 [vertices]; bytes that a vertex takes where it is kept.
    inside : int64 [vertices]; bytes that it takes where it lies inside a segment.
    tail, head : int64 [edges]; no two edges have the same ends.
    edge_cost : int64 [edges]; bytes that a segment with this edge takes beside its vertices.
    """

    cost: np.ndarray
    inside: np.ndarray
    tail: np.ndarray
    head: np.ndarray
    edge_cost: np.ndarray

    @property
    def edges(self) -> list[tuple[int, int]]:
        """(tail, head) of every edge."""
        return list(zip(self.tail.tolist(), self.head.tolist(), strict=True))


@dataclass(frozen=True)
class Forward:
    """The DAG of a graph's forward part, and what its vertices stand for.

    ops : per vertex the op. -1: the source stands for what the caller holds, the target for all results at once.
    values : per vertex the values that keeping it saves.
    always : values that are saved whatever is kept: the results, and light side inputs.
    """

    dag: Dag
    ops: tuple[int, ...]
    values: tuple[tuple[int, ...], ...]
    always: tuple[int, ...]

    def saved(self, kept: Iterable[int]) -> list[int]:
        """The values to save for backward where the vertices `kept` are kept."""
        return sorted({*self.always, *(v for i in kept for v in self.values[i])})


def end_of_forward(graph: Graph) -> int | None:
    """Id of the boundary, or else of the first backward op; None where nothing marks the end of forward."""
    if graph.boundary is not None:
        return graph.boundary
    return next((i for i, op in enumerate(graph.ops) if op.backward and graph.needed[i]), None)


def results(graph: Graph) -> list[int]:
    """What forward hands on: what the boundary reads; without one, what backward reads of what forward made. Values of
    no bytes are tokens (some op has run), unless there is nothing else."""
    end = end_of_forward(graph)
    if end is None:
        return []
    readers = graph.ops[end:] if graph.boundary is None else graph.ops[end : end + 1]
    size, producer = graph.arrays.bytes, graph.arrays.producer
    made = [v for v in dict.fromkeys(v for op in readers for v in op.inputs) if 0 <= producer[v] < end]
    return [v for v in made if size[v]] or made


def forward_ops(graph: Graph) -> list[int]:
    """The forward ops that a result depends on, in baseline order; none where nothing marks the end of forward."""
    producer = graph.arrays.producer
    wanted = {int(producer[v]) for v in results(graph)}
    end = end_of_forward(graph) or 0
    for i in range(end - 1, -1, -1):
        if i in wanted:
            wanted.update(int(producer[v]) for v in graph.ops[i].inputs)
    return [i for i in range(end) if i in wanted and graph.needed[i] and not graph.ops[i].backward]


def forward_dag(graph: Graph) -> Forward | None:
    """The forward DAG, or None where nothing marks the end of forward or no op leads to a result."""
    ops = forward_ops(graph)
    return _Builder(graph, ops).build() if ops else None


class _Builder:
    """before, after : op -> the ops that it reads from, and that read from it.
    values, cost : op -> what keeping it saves, and the bytes of that.
    charged : op -> bytes on an edge into it.
    """

    def __init__(self, graph: Graph, ops: list[int]):
        self.graph, self.ops = graph, ops
        self.end = end_of_forward(graph) or 0
        inside = set(ops)
        made_by = graph.arrays.producer.tolist()
        self.before = {o: sorted({made_by[v] for v in graph.ops[o].inputs} & inside) for o in ops}
        self.after: dict[int, list[int]] = {o: [] for o in ops}
        for o in ops:
            for p in self.before[o]:
                self.after[p].append(o)
        self.bytes = {o: self._bytes(graph.ops[o].outputs) for o in ops}
        self.values: dict[int, tuple[int, ...]] = {}
        self.cost: dict[int, int] = {}
        self.charged = dict.fromkeys(ops, 0)
        self.always: set[int] = set()

    def build(self) -> Forward:
        aside = self._side_inputs()
        self._outputs()
        self._off_path()
        inside = {o: self._bytes(v for v in self.values[o] if self._for_backward(v)) for o in self.ops}
        self._concatenations()
        at = [-1, *(o for o in self.ops if o not in aside)]
        vertex = {o: i for i, o in enumerate(at)}
        edges: list[tuple[int, int, int]] = []
        for o in at[1:]:
            tails = [vertex[p] for p in self.before[o] if p in vertex] or [0]
            edges += [(t, vertex[o], self.charged[o] if t == tails[-1] else 0) for t in tails]
        sinks = [o for o in at[1:] if not any(q in vertex for q in self.after[o])]
        if len(sinks) > 1:
            edges += [(vertex[o], len(at), 0) for o in sinks]
            at.append(-1)
        self.always.update(v for o in sinks for v in self.values[o])
        sizes = np.array([(self.cost.get(o, 0), inside.get(o, 0)) for o in at], np.int64)
        tail, head, edge_cost = np.array(edges, np.int64).T.copy()
        dag = Dag(sizes[:, 0].copy(), sizes[:, 1].copy(), tail, head, edge_cost)
        return Forward(dag, tuple(at), tuple(self.values.get(o, ()) for o in at), tuple(sorted(self.always)))

    def _side_inputs(self) -> set[int]:
        """The ops of side inputs that make no edges; charges them, or marks what they make as always kept."""
        main = self._main_stream()
        everything = sum(self.bytes.values())
        aside: set[int] = set()
        for group in self._connected([o for o in self.ops if o not in main]):
            entered = {q for o in group for q in self.after[o] if q in main}
            taken = sum(self.bytes[o] for o in group)
            light = taken * LIGHT <= everything
            if len(entered) == 1 and (light or len(group) == 1):
                self.charged[entered.pop()] += taken
            elif entered and light:
                made = (v for o in group for v in self.graph.ops[o].outputs)
                self.always.update(v for v in made if not main.isdisjoint(self.graph.consumers[v]))
            else:
                continue
            aside.update(group)
        return aside

    def _main_stream(self) -> set[int]:
        """Everything downstream of where the heaviest path to a result begins."""
        heaviest: dict[int, tuple[int, int]] = {}  # bytes of the heaviest path to an op, and the op where it begins
        for o in self.ops:
            taken, first = max((heaviest[p] for p in self.before[o]), default=(0, o))
            heaviest[o] = (taken + self.bytes[o], first)
        main = {max(heaviest.values())[1]}
        for o in self.ops:
            if not main.isdisjoint(self.before[o]):
                main.add(o)
        return main

    def _connected(self, ops: list[int]) -> Iterator[list[int]]:
        """The connected groups that `ops` form."""
        left = set(ops)
        for start in ops:
            if start not in left:
                continue
            left.discard(start)
            group = [start]
            for o in group:  # grows while it is read
                near = {*self.before[o], *self.after[o]} & left
                left -= near
                group += sorted(near)
            yield group

    def _outputs(self) -> None:
        handed_on, inside = set(results(self.graph)), set(self.ops)
        for o in self.ops:
            outputs = self.graph.ops[o].outputs
            own = [v for v in outputs if v in handed_on or not inside.isdisjoint(self.graph.consumers[v])]
            rest = [v for v in outputs if v not in own and self._for_backward(v)]
            if self._bytes(rest) * SMALL <= self._bytes(own):
                own += rest
            else:
                self.charged[o] += self._bytes(rest)
            self.values[o], self.cost[o] = tuple(own), self._bytes(own)

    def _off_path(self) -> None:
        """What forward makes for backward alone is made again with the segment where the last of its inputs is made."""
        host = {o: o for o in self.ops}
        for i in np.flatnonzero(self.graph.needed[: self.end]).tolist():
            if i not in host:
                made_by = self.graph.arrays.producer[list(self.graph.ops[i].inputs)].tolist()
                hosts = [host[p] for p in made_by if p in host]
                if hosts:
                    host[i] = max(hosts)
                    self.charged[host[i]] += self._bytes(v for v in self.graph.ops[i].outputs if self._for_backward(v))

    def _concatenations(self) -> None:
        """An op as large as all it reads is taken for a concatenation where a later op reads all of that and more."""
        reads = {o: set(before) for o, before in self.before.items()}
        joins = {o for o in self.ops if len(reads[o]) > 1 and self.cost[o] == sum(self.cost[p] for p in reads[o])}
        extended = set()
        for o in self.ops:
            earlier = {a for p in reads[o] for a in self.after[p] if a in joins and a < o and reads[a] < reads[o]}
            if earlier:
                largest = max(earlier, key=lambda a: (len(reads[a]), a))
                extended.add(largest)
                self.before[o] = sorted({largest, *(reads[o] - reads[largest])})
        for o in sorted(extended):
            self.values[o] = tuple(v for p in sorted(reads[o]) for v in self.values[p])

    def _for_backward(self, v: int) -> bool:
        return any(c >= self.end and self.graph.needed[c] for c in self.graph.consumers[v])

    def _bytes(self, values: Iterable[int]) -> int:
        return int(self.graph.arrays.bytes[list(values)].sum())
