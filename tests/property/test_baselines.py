"""The plans that people make by hand: every block, every sqrt(n)-th tensor."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.model.judge import simulate
from rekindle.model.schedule import Schedule
from rekindle.planning import registry
from rekindle.problem import Problem
from rekindle.solvers.chen_sqrt import equally_spaced
from rekindle.solvers.every import block_path, blocks
from strategies import graphs


def solve(solver: str, graph: Graph) -> list[Schedule]:
    return list(registry.get(solver).solve(Problem(graph, graph.weights("unit"))))


def chain(names: list[str], size: int = 64, modules: list[str] | None = None) -> Graph:
    """A step of a chain: op i reads value i and makes value i + 1; its backward reads that and both of its gradients'
    neighbours, as an activation function's does."""
    n = len(names)
    modules = modules or [""] * n
    values = [Value(size) for _ in range(2 * n + 2)]
    forward = [
        Op(name, (i,), (i + 1,), flops=1, seconds=1.0, module=module)
        for i, (name, module) in enumerate(zip(names, modules, strict=True))
    ]
    boundary = Op(BOUNDARY, (n,), (n + 1,), recompute=False)
    backward = [
        Op(f"{names[i]}.backward", (i, 2 * n - i), (2 * n - i + 1,), flops=2, seconds=2.0, backward=True)
        for i in range(n - 1, -1, -1)
    ]
    return Graph(tuple(values), (*forward, boundary, *backward), (2 * n + 1,))


@given(st.sampled_from(["every", "chen-sqrt"]), graphs())
def test_valid_and_at_most_one_extra_forward(solver: str, graph: Graph) -> None:
    schedules = solve(solver, graph)
    assert schedules
    before = next((i for i, op in enumerate(graph.ops) if op.name == BOUNDARY or op.backward), 0)
    for schedule in schedules:
        assert schedule.solver == solver
        judged = simulate(graph, schedule)
        assert judged.runs.max(initial=0) <= 2
        assert (judged.runs[before:] <= 1).all(), "only forward ops run again"


@pytest.mark.parametrize("n", [16, 64, 144, 400])
def test_sqrt_of_a_uniform_chain(n: int) -> None:
    graph = chain([f"f{i}" for i in range(n)], size=1)
    whole, last_kept = (simulate(graph, s, "flops") for s in solve("chen-sqrt", graph))
    root = math.isqrt(n)
    # root - 1 kept and the result; a segment run again, and the gradients on both sides of an op
    assert 2 * root - 1 <= whole.peak_bytes <= 2 * root + 3
    assert last_kept.peak_bytes <= whole.peak_bytes
    assert whole.flops_overhead <= 1 / 3
    assert last_kept.flops_overhead == pytest.approx((n - root - (root - 1)) / (3 * n))
    assert simulate(graph, Schedule.baseline(graph)).peak_bytes == n + 1


def test_equally_spaced() -> None:
    assert equally_spaced(list(range(10))) == [3, 6]
    assert equally_spaced(list(range(101))) == list(range(10, 100, 10))
    assert equally_spaced([5, 9]) == []
    lengths = [b - a for a, b in zip([0, *equally_spaced(list(range(78)))], [*equally_spaced(list(range(78))), 77])]  # noqa: B905
    assert max(lengths) - min(lengths) <= 1


def test_block_paths() -> None:
    assert block_path("layer1.0.conv2") == "layer1.0"
    assert block_path("transformer.h.3") == "transformer.h.3"
    assert block_path("bn1") == "bn1"
    assert block_path("head.norm") == "head"
    assert block_path("") == ""


def test_every_keeps_what_passes_between_blocks() -> None:
    paths = ["stem", "layer.0.conv", "layer.0.norm", "", "layer.1.conv", "layer.1.norm", "layer.1", "head"]
    graph = chain([f"f{i}" for i in range(len(paths))], modules=paths)
    assert list(blocks(graph).values()) == [1, 2, 2, 2, 3, 3, 3, 4]
    (schedule,) = solve("every", graph)
    runs = simulate(graph, schedule).runs[:8].tolist()
    # The inputs of blocks are kept. The last op of each makes one, and runs once; so does all that backward never reads
    assert runs == [1, 2, 2, 1, 2, 2, 1, 1]


def test_every_of_a_graph_without_module_paths_keeps_the_splitting_vertices() -> None:
    graph = chain([f"f{i}" for i in range(6)])
    (schedule,) = solve("every", graph)
    assert simulate(graph, schedule).overhead == 0


@pytest.mark.parametrize("solver", ["every", "chen-sqrt", "feng"])
def test_no_end_of_forward_means_nothing_to_drop(solver: str) -> None:
    graph = Graph((Value(1), Value(10), Value(4)), (Op("f", (0,), (1,)), Op("g", (1,), (2,))), (2,))
    (schedule,) = solve(solver, graph)
    assert schedule.runs == [0, 1]
    assert schedule.solver == solver
