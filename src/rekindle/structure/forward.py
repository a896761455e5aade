"""The forward part of a step as the DAG of tensors on which papers on checkpointing work.

A captured step is no such DAG by itself. These rules make a chain in the model a chain in the DAG:

- One vertex per forward op. Saving a vertex saves the outputs that forward reads. Outputs that only backward reads
  (statistics of a normalisation, indices of a pooling) are saved with it where they are small; large ones are recomputed
  with the segment that ends in the vertex, and charged there.
- Inside a segment only values that backward reads count. The others are freed at once, as where ops work in place.
- Ops from which no path leads to a result (buffer updates and their tokens) are no vertices.
- Values that the caller holds (parameters, inputs) are always at hand and make no edges.
- A side input is computed from values that the caller holds and joins the main stream: a cast weight, an attention mask,
  the input's share of a recurrent step. A side input that enters at a single vertex is charged to the segment that ends
  there; a light one that enters at several vertices is always saved. Neither makes edges.
- A concatenation that reads all inputs of an earlier one, and more, reads the earlier one instead; saving the earlier one
  saves its parts. So dense blocks are the chains that they would be if each layer appended to the features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..model.graph import Graph

# Sizes that decide what becomes a vertex; guesses.
LIGHT_SHARE = 1 / 50  # of the bytes that forward makes: a side input of at most that is light
# Of the bytes of an op's outputs that forward reads: outputs for backward alone of at most that many bytes are small.
SMALL_SHARE = 1 / 16


@dataclass(frozen=True)
class Dag:
    """Vertices 0 to n - 1 in a topological order, each on a path from 0, the source, to n - 1, the target.

    cost : int64 [vertices]; bytes that a vertex takes where it is saved.
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
    """The DAG of a graph's forward part, and the op of each vertex.

    ops : per vertex the op. -1: the source stands for the values of the caller, the target for all results at once.
    values : per vertex the values to save where the vertex is saved.
    always : values that are saved in any case: the results, and light side inputs.
    """

    dag: Dag
    ops: tuple[int, ...]
    values: tuple[tuple[int, ...], ...]
    always: tuple[int, ...]

    def saved(self, kept: Iterable[int]) -> list[int]:
        """The values to save for backward where the vertices `kept` are saved."""
        return sorted({*self.always, *(v for i in kept for v in self.values[i])})


def end_of_forward(graph: Graph) -> int | None:
    """Id of the boundary, or else of the first backward op; None where nothing marks the end of forward."""
    if graph.boundary is not None:
        return graph.boundary
    return next((i for i, op in enumerate(graph.ops) if op.backward and graph.needed[i]), None)


def results(graph: Graph) -> list[int]:
    """The values that forward hands on: those that the boundary reads, or, without a boundary, those that forward makes and
    backward reads. Values of no bytes are left out (they only say that an op has run), unless there are no others."""
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
    """Turns forward ops into the DAG.

    before, after : op -> the ops that it reads from, and the ops that read from it.
    values, cost : op -> the values to save where it is saved, and their bytes.
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
        """The ops of side inputs that make no edges. Charges them, or marks their outputs as always saved."""
        main = self._main_stream()
        everything = sum(self.bytes.values())
        aside: set[int] = set()
        for group in self._connected([o for o in self.ops if o not in main]):
            entered = {q for o in group for q in self.after[o] if q in main}
            taken = sum(self.bytes[o] for o in group)
            light = taken <= LIGHT_SHARE * everything
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
        """The ops downstream of the op where the heaviest path to a result begins."""
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
        """The values to save with each op; large outputs for backward alone are charged."""
        handed_on, inside = set(results(self.graph)), set(self.ops)
        for o in self.ops:
            outputs = self.graph.ops[o].outputs
            own = [v for v in outputs if v in handed_on or not inside.isdisjoint(self.graph.consumers[v])]
            rest = [v for v in outputs if v not in own and self._for_backward(v)]
            if self._bytes(rest) <= SMALL_SHARE * self._bytes(own):
                own += rest
            else:
                self.charged[o] += self._bytes(rest)
            self.values[o], self.cost[o] = tuple(own), self._bytes(own)

    def _off_path(self) -> None:
        """Charge values made for backward alone to the segment where the last of their inputs is made."""
        host = {o: o for o in self.ops}
        for i in np.flatnonzero(self.graph.needed[: self.end]).tolist():
            if i not in host:
                made_by = self.graph.arrays.producer[list(self.graph.ops[i].inputs)].tolist()
                hosts = [host[p] for p in made_by if p in host]
                if hosts:
                    host[i] = max(hosts)
                    self.charged[host[i]] += self._bytes(v for v in self.graph.ops[i].outputs if self._for_backward(v))

    def _concatenations(self) -> None:
        """Rewire concatenations: ops as large as all they read, where a later op reads all of that and more."""
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
