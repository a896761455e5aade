"""Steps of a chain of equal ops and of a recurrent network, as graphs."""

from __future__ import annotations

from rekindle.model.graph import Graph, Op, Value


def chain(n: int) -> Graph:
    """Unit costs and sizes; backward op i reads what forward op i - 1 made."""
    ops = [Op(f"f{i}", (i - 1,) if i else (), (i,), 1.0) for i in range(n)]
    ops.append(Op("boundary", (n - 1,), (n,), recompute=False))
    for k, i in enumerate(range(n - 1, -1, -1)):
        ops.append(Op(f"b{i}", (n + k, *([i - 1] if i else [])), (n + k + 1,), 1.0, backward=True))
    return Graph(tuple(Value(1) for _ in range(2 * n + 1)), tuple(ops), (2 * n,))


def unrolled(steps: int) -> Graph:
    """A recurrent network: each step gives a state and what its own backward needs."""
    values: list[Value] = []
    ops: list[Op] = []

    def new(size: int) -> int:
        values.append(Value(size))
        return len(values) - 1

    states, insides = [], []
    for t in range(steps):
        insides.append(new(8))
        states.append(new(2))
        ops.append(Op(f"{t}", (states[t - 1],) if t else (), (insides[t], states[t]), seconds=1.0))
    gradient = new(2)
    ops.append(Op("boundary", (states[-1],), (gradient,), recompute=False))
    for t in reversed(range(steps)):
        before = (states[t - 1],) if t else ()
        ops.append(Op(f"{t} back", (insides[t], gradient, *before), (new(2),), seconds=2.0, backward=True))
        gradient = ops[-1].outputs[0]
    return Graph(tuple(values), tuple(ops), (gradient,), name="unrolled")
