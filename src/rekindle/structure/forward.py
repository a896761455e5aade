"""The forward part of a step as the DAG of tensors on which papers on checkpointing work.

A captured step is no such DAG by itself. What is done here, so that a chain in the model is a chain in the DAG:

- one vertex per forward op. Keeping it keeps what forward itself reads of its outputs. What only backward reads (the
  statistics of a normalisation, the indices of a pooling) goes with it where it is small; otherwise it is made again
  with the segment that ends in the vertex, and that is where it is charged;
- ops that no path leads from to a result (buffer updates and their tokens) are no vertices;
- what the caller holds (parameters, inputs) is always at hand and makes no edges;
- a side input is computed from what the caller holds and joins the main stream: a cast weight, an attention mask, the
  input's part of a recurrent step. One that enters at a single vertex is charged to the segment that ends there; a
  light one that enters at several is always kept, and then makes no edges either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..graph import Graph

LIGHT = 50  # a side input is light if it holds at most a 50th of what forward makes
SMALL = 16  # outputs only for backward are small if they hold at most a 16th of the others


@dataclass(frozen=True)
class Dag:
    """Vertices 0 to n - 1 in a topological order, each on a path from 0, the source, to n - 1, the target.

    cost : int64 [vertices]; bytes that a vertex takes where it is kept.
    inside : int64 [vertices]; bytes that it takes where it lies inside a segment.
    tail, head : int64 [edges].
    edge_cost : int64 [edges]; bytes that a segment with this edge holds beside its vertices.
    """

    cost: np.ndarray
    inside: np.ndarray
    tail: np.ndarray
    head: np.ndarray
    edge_cost: np.ndarray


@dataclass(frozen=True)
class Forward:
    """The DAG of a graph's forward part, and what its vertices stand for.

    values : per vertex the values that keeping it saves; none for a source or target that is no op.
    ops : per vertex the op, -1 for such a source or target.
    always : values that are saved whatever is kept.
    """

    dag: Dag
    values: tuple[tuple[int, ...], ...]
    ops: tuple[int, ...]
    always: tuple[int, ...]

    def saved(self, kept: Iterable[int]) -> list[int]:
        """The values to save for backward where the vertices `kept` are kept: theirs, the results' and `always`."""
        ends = [-1, *np.unique(self.dag.tail[self.dag.head == len(self.ops) - 1])] if self.ops[-1] < 0 else [-1]
        return sorted({*self.always, *(v for i in (*kept, *ends) for v in self.values[i])})


def forward_ops(graph: Graph) -> list[int]:
    """The forward ops that a result depends on, in baseline order; none where nothing marks the end of forward."""
    end = _end(graph)
    if end is None:
        return []
    producer, needed = graph.arrays.producer, graph.needed
    wanted = {int(producer[v]) for v in results(graph)}
    for i in range(end - 1, -1, -1):
        if i in wanted:
            wanted.update(int(producer[v]) for v in graph.ops[i].inputs)
    return [i for i in range(end) if i in wanted and needed[i] and not graph.ops[i].backward]


def results(graph: Graph) -> list[int]:
    """What forward hands on: what the boundary reads; without one, what backward reads of what forward made. Values of
    no bytes are tokens (some op has run), unless there is nothing else."""
    end = _end(graph)
    if end is None:
        return []
    size, producer = graph.arrays.bytes, graph.arrays.producer
    if graph.boundary is not None:
        read = graph.ops[end].inputs
    else:
        read = tuple(v for op in graph.ops[end:] for v in op.inputs)
    made = [v for v in dict.fromkeys(read) if 0 <= producer[v] < end]
    return [v for v in made if size[v]] or made


def _end(graph: Graph) -> int | None:
    """Id of the boundary or, without one, of the first backward op."""
    if graph.boundary is not None:
        return graph.boundary
    return next((i for i, op in enumerate(graph.ops) if op.backward and graph.needed[i]), None)


def forward_dag(graph: Graph) -> Forward | None:
    """The forward DAG, or None where nothing marks the end of forward or no op leads to a result. O(n + edges)."""
    ops = forward_ops(graph)
    return _Builder(graph, ops).build() if ops else None


class _Builder:
    def __init__(self, graph: Graph, ops: list[int]):
        self.graph = graph
        self.ops = ops
        self.size = graph.arrays.bytes
        self.end = _end(graph) or 0
        inside = set(ops)
        producer = graph.arrays.producer
        self.before = {
            o: sorted({int(producer[v]) for v in graph.ops[o].inputs if int(producer[v]) in inside}) for o in ops
        }
        self.after: dict[int, list[int]] = {o: [] for o in ops}
        for o in ops:
            for p in self.before[o]:
                self.after[p].append(o)
        self.bytes = {o: sum(int(self.size[v]) for v in graph.ops[o].outputs) for o in ops}
        self.extra = dict.fromkeys(ops, 0)  # bytes on the edge into an op
        self.always: set[int] = set()

    def build(self) -> Forward:
        aside = self._side_inputs()
        values, cost = self._outputs()
        inside = {o: sum(int(self.size[v]) for v in vs if self._outlives_forward(v)) for o, vs in values.items()}
        self._off_path()
        for o, taken in self._concatenations(cost).items():
            values[o] = tuple(v for p in taken for v in values[p])
        order = [o for o in self.ops if o not in aside]
        vertex = {o: i + 1 for i, o in enumerate(order)}
        tail, head, edge_cost = [], [], []
        for o in order:
            before = [vertex[p] for p in self.before[o] if p in vertex] or [0]
            tail += before
            head += [vertex[o]] * len(before)
            edge_cost += [0] * (len(before) - 1) + [self.extra[o]]
        at = [-1, *order]
        sinks = [vertex[o] for o in order if not any(q in vertex for q in self.after[o])]
        if len(sinks) > 1:
            tail += sinks
            head += [len(at)] * len(sinks)
            edge_cost += [0] * len(sinks)
            at.append(-1)
        dag = Dag(
            np.array([cost.get(o, 0) for o in at], np.int64), np.array([inside.get(o, 0) for o in at], np.int64),
            np.array(tail, np.int64), np.array(head, np.int64),
            np.array(edge_cost, np.int64),
        )  # fmt: skip
        return Forward(dag, tuple(values.get(o, ()) for o in at), tuple(at), tuple(sorted(self.always)))

    def _side_inputs(self) -> set[int]:
        """The ops that become no vertices; charges what they hold, or marks it as always kept."""
        main = self._main_stream()
        aside: set[int] = set()
        for group in self._groups([o for o in self.ops if o not in main]):
            entered = {q for o in group for q in self.after[o] if q in main}
            held = sum(self.bytes[o] for o in group)
            light = held * LIGHT <= sum(self.bytes.values())
            if len(entered) == 1 and (light or len(group) == 1):
                self.extra[entered.pop()] += held
            elif entered and light:
                seen = [v for o in group if any(q in main for q in self.after[o]) for v in self.graph.ops[o].outputs]
                self.always.update(v for v in seen if any(q in main for q in self.graph.consumers[v]))
            else:
                continue
            aside.update(group)
        return aside

    def _main_stream(self) -> set[int]:
        """Everything downstream of where the heaviest path to a result begins."""
        heaviest: dict[int, tuple[int, int]] = {}  # bytes of the heaviest path to an op, where it begins
        for o in self.ops:
            held, first = max((heaviest[p] for p in self.before[o]), default=(0, o))
            heaviest[o] = (held + self.bytes[o], first)
        main = {max(heaviest.values())[1]}
        for o in self.ops:
            if any(p in main for p in self.before[o]):
                main.add(o)
        return main

    def _groups(self, ops: list[int]) -> list[list[int]]:
        """`ops` as the connected parts that they form."""
        left, groups = set(ops), []
        for start in ops:
            if start not in left:
                continue
            left.discard(start)
            group, stack = [], [start]
            while stack:
                o = stack.pop()
                group.append(o)
                near = [q for q in (*self.before[o], *self.after[o]) if q in left]
                left.difference_update(near)
                stack += dict.fromkeys(near)
            groups.append(group)
        return groups

    def _outputs(self) -> tuple[dict[int, tuple[int, ...]], dict[int, int]]:
        """Per op the values that keeping it saves, and their bytes."""
        inside, handed_on = set(self.ops), set(results(self.graph))
        values, cost = {}, {}
        for o in self.ops:
            outputs = self.graph.ops[o].outputs
            own = [v for v in outputs if v in handed_on or any(c in inside for c in self.graph.consumers[v])]
            rest = [v for v in outputs if v not in own and self._outlives_forward(v)]
            cost[o] = sum(int(self.size[v]) for v in own)
            beside = sum(int(self.size[v]) for v in rest)
            if beside * SMALL <= cost[o]:
                own += rest
                cost[o] += beside
            else:
                self.extra[o] += beside
            values[o] = tuple(own)
        return values, cost

    def _concatenations(self, cost: dict[int, int]) -> dict[int, list[int]]:
        """The ops whose outputs are as large as all they read together, where a later op reads all of that and more:
        that one now reads from the former, which is kept by keeping what it read."""
        reads = {o: set(before) for o, before in self.before.items()}
        found: dict[int, list[int]] = {}
        for o in self.ops:
            if len(reads[o]) < 3:
                continue
            rows = [
                a
                for a in {a for p in reads[o] for a in self.after[p]}
                if a < o and 1 < len(reads[a]) and reads[a] < reads[o] and cost[a] == sum(cost[p] for p in reads[a])
            ]
            if rows:
                largest = max(rows, key=lambda a: (len(reads[a]), a))
                found[largest] = sorted(reads[largest])
                self.before[o] = sorted({largest, *(reads[o] - reads[largest])})
        return found

    def _off_path(self) -> None:
        """What forward makes for backward alone is made again with the segment in which its last input is made."""
        host = {o: o for o in self.ops}
        producer = self.graph.arrays.producer
        for i in np.flatnonzero(self.graph.needed[: self.end]).tolist():
            if i in host:
                continue
            hosts = [host[p] for v in self.graph.ops[i].inputs if (p := int(producer[v])) in host]
            if hosts:
                host[i] = max(hosts)
                held = [int(self.size[v]) for v in self.graph.ops[i].outputs if self._outlives_forward(v)]
                self.extra[host[i]] += sum(held)

    def _outlives_forward(self, v: int) -> bool:
        return any(c >= self.end and self.graph.needed[c] for c in self.graph.consumers[v])
