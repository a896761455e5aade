"""Checkpoint every block.

The usual way by hand, `torch.utils.checkpoint` around each block of a model: each block saves its inputs, and backward
runs the whole block again.

Problem: none is solved. A block is a module path cut after its first number ("layer1.0", "transformer.h.3"), else after
its first name; in a model that has hardly any such numbers, after the first name that ends in one
("features.denseblock2"). An op without a path belongs to the block before it. In a graph whose ops name no modules the
blocks are the stretches between splitting vertices.

Optimality: none.

Complexity: O(n + edges).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model.graph import Graph
from ..model.schedule import Schedule
from ..problem import Problem, register
from ..structure.division import splitting_vertices
from ..structure.forward import forward_dag, forward_ops, results
from ..structure.saved import runs_from_saved

FEW_PATHS = 4  # with fewer different block paths, names that end in a number count as numbers too; a guess


@register(
    "every",
    graphs="any",
    objective="none: keeps what passes from one block of the model to another",
    optimal="",
    complexity="O(n)",
    citation="torch.utils.checkpoint around each block, by hand",
)
def every(problem: Problem) -> Iterator[Schedule]:
    """One segment per block of the model: the usual way by hand. One plan, whatever the goal."""
    graph = problem.graph
    forward = forward_dag(graph)
    if forward is None:
        yield Schedule.baseline(graph, "every")
        return
    if any(graph.ops[o].module or graph.ops[o].kind for o in forward_ops(graph)):
        saved = _passed_on(graph)
    else:
        saved = forward.saved(splitting_vertices(forward.dag))
    yield Schedule.from_runs(graph, runs_from_saved(graph, saved), "every")


def _passed_on(graph: Graph) -> list[int]:
    """The values that an op of another block reads, and the results."""
    block = blocks(graph)
    producer = graph.arrays.producer.tolist()
    read = {v for o in block for v in graph.ops[o].inputs if block.get(producer[v], block[o]) != block[o]}
    return sorted(read | set(results(graph)))


def blocks(graph: Graph) -> dict[int, int]:
    """The number of the block of each forward op that leads to a result. Where the path changes, a new block begins:
    a module that is called again later is another block."""
    found: dict[int, int] = {}
    current, number = "", 0
    ops = forward_ops(graph)
    plain, loose = ([block_path(graph.ops[o].module, ending) for o in ops] for ending in (False, True))
    few = len(set(plain)) < FEW_PATHS < len(set(loose))
    for o, path in zip(ops, loose if few else plain, strict=True):
        if path and path != current:
            current, number = path, number + 1
        found[o] = number
    return found


def block_path(module: str, ending: bool = False) -> str:
    """The path of the block in which a module lies. ending : a name that ends in a number counts as a number.

    >>> block_path("layer1.0.conv2")
    'layer1.0'
    >>> block_path("features.denseblock2.denselayer3.conv1", ending=True)
    'features.denseblock2'
    """
    parts = module.split(".")
    first = next((i for i, part in enumerate(parts) if (part[-1:] if ending else part).isdigit()), 0)
    return ".".join(parts[: first + 1])
