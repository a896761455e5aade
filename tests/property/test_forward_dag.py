"""From a graph to its forward DAG."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import assume, given

from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.structure.division import splitting_vertices
from rekindle.structure.forward import forward_dag
from strategies import graphs


# -- from a graph to its forward DAG --------------------------------------------------------------------------------
class Step:
    """A step by hand: forward ops, the boundary, and one backward op that reads what is to be saved."""

    def __init__(self) -> None:
        self.values = [Value(1000)]
        self.ops: list[Op] = []
        self.saved: list[int] = []

    def op(
        self, name: str, inputs: Sequence[int], *sizes: int, backward: Sequence[int] = (0,), once: bool = False
    ) -> int:
        """The first value that the op makes; backward reads those at the positions `backward`."""
        made = [len(self.values) + i for i in range(len(sizes))]
        self.values += [Value(s) for s in sizes]
        self.ops.append(Op(name, tuple(inputs), tuple(made), seconds=1.0, recompute=not once))
        self.saved += [made[i] for i in backward]
        return made[0]

    def graph(self, *read: int) -> Graph:
        last = len(self.values)
        values = (*self.values, Value(1), Value(1))
        boundary = Op(BOUNDARY, read, (last,), recompute=False)
        backward = Op("backward", (last, *self.saved), (last + 1,), seconds=1.0, backward=True)
        return Graph(values, (*self.ops, boundary, backward), (last + 1,))


def names(graph: Graph) -> list[str]:
    forward = forward_dag(graph)
    assert forward is not None
    return [graph.ops[o].name if o >= 0 else "-" for o in forward.ops]


def test_statistics_and_buffer_updates_leave_a_chain_a_chain() -> None:
    step = Step()
    x, tokens = 0, []
    for i in range(4):
        before = step.op(f"snapshot{i}", [0], 4, backward=(), once=True)
        x = step.op(f"conv{i}", [x], 100)
        x = step.op(f"norm{i}", [x, before], 100, 4, 4, backward=(1,))
        update = step.op(f"update{i}", [x + 2], 4, backward=(), once=True)
        tokens.append(step.op(f"copy{i}", [update, before], 0, backward=(), once=True))
        x = step.op(f"relu{i}", [x], 100)
    graph = step.graph(x, *tokens)
    forward = forward_dag(graph)
    assert forward is not None
    assert names(graph) == ["-", *(f"{kind}{i}" for i in range(4) for kind in ("conv", "norm", "relu"))]
    assert forward.dag.edges == [(i, i + 1) for i in range(12)]
    assert forward.dag.cost.tolist() == [0] + [100, 104, 100] * 4, "small statistics are kept with their norm"
    assert forward.dag.inside.tolist() == [0] + [100, 4, 100] * 4, "backward does not read what norm hands to relu"
    assert forward.always == (x,)


def test_what_only_backward_reads_is_charged_to_the_segment_that_ends_there() -> None:
    step = Step()
    a = step.op("conv", [0], 100)
    pooled = step.op("pool", [a], 25, 50, backward=(0, 1))
    out = step.op("fc", [pooled], 10)
    forward = forward_dag(step.graph(out))
    assert forward is not None
    assert forward.dag.cost.tolist() == [0, 100, 25, 10]
    assert forward.dag.edge_cost.tolist() == [0, 50, 0]
    assert forward.saved([2]) == [pooled, out]


def test_side_inputs_make_no_edges() -> None:
    step = Step()
    mask = step.op("mask", [0], 1, backward=())
    x = step.op("embed", [0], 100)
    for i in range(3):
        weight = step.op(f"cast{i}", [0], 30, backward=())
        x = step.op(f"layer{i}", [x, weight, mask], 100)
    graph = step.graph(x)
    forward = forward_dag(graph)
    assert forward is not None
    assert names(graph) == ["-", "embed", "layer0", "layer1", "layer2"]
    assert forward.dag.edge_cost.tolist() == [0, 30, 30, 30]
    assert forward.always == (mask, x)


def test_dense_concatenations_are_a_chain_of_blocks() -> None:
    step = Step()
    features = [step.op("stem", [0], 64)]
    for i in range(5):
        joined = step.op(f"cat{i}", features, sum(step.values[f].bytes for f in features))
        features.append(step.op(f"conv{i}", [step.op(f"norm{i}", [joined], 40)], 16))
    out = step.op("last", features, 64 + 5 * 16)
    forward = forward_dag(step.graph(out))
    assert forward is not None
    found = names(step.graph(out))
    splitting = [found[v] for v in splitting_vertices(forward.dag)]
    assert splitting == ["-", "stem", *(f"cat{i}" for i in range(1, 5)), "last"]
    assert forward.saved([found.index("cat3")]) == sorted([*features[:4], out]), "kept by its parts"


def test_several_results_meet_in_one_target() -> None:
    step = Step()
    a = step.op("a", [0], 5)
    first, second = step.op("b", [a], 7), step.op("c", [a], 9)
    forward = forward_dag(step.graph(first, second))
    assert forward is not None
    assert forward.dag.edges == [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)]
    assert forward.ops == (-1, 0, 1, 2, -1)
    assert forward.always == (first, second)


@given(graphs())
def test_every_vertex_of_a_forward_dag_is_on_a_path(graph: Graph) -> None:
    forward = forward_dag(graph)
    assume(forward is not None)
    n = len(forward.ops)
    tails, heads = set(forward.dag.tail.tolist()), set(forward.dag.head.tolist())
    assert tails == set(range(n - 1))
    assert heads == set(range(1, n))
    assert all(a < b for a, b in forward.dag.edges)
    assert len(set(forward.dag.edges)) == len(forward.dag.edges)
    assert not {v for vs in forward.values for v in vs} - {v for op in graph.ops for v in op.outputs}
