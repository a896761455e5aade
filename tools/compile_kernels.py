"""Compiles the kernels of all solvers and keeps them on disk, so that neither the tests nor the first plan wait for them.

numba writes what it compiles into `__pycache__` beside the kernels. `make setup` runs this once in a fresh clone.
"""

from __future__ import annotations

import contextlib
import time

import rekindle
from rekindle import Graph, Op, Value
from rekindle.model.graph import BOUNDARY
from rekindle.registry import all_solvers

STAGES = 24  # more ops than the exact search answers alone, so that every search of `auto` runs
GOALS = ({"budget": 0.5}, {"max_overhead": 0.3}, {"minimize": "memory"})


def training_step(stages: int) -> Graph:
    """A chain of stages that differ, some with workspace, a skip connection, or a result that may overwrite its input."""
    values = [Value(4096)]
    ops: list[Op] = []

    def add(name: str, inputs: list[int], size: int, backward: bool, inplace: bool = False) -> int:
        values.append(Value(size))
        made = len(values) - 1
        over = tuple(inputs[:1]) if inplace else ()
        workspace = size // 2 if made % 5 == 0 else 0
        ops.append(Op(name, tuple(inputs), (made,), 1.0 + made % 3, made, workspace, backward, inplace=over))
        return made

    saved = [0]
    for i in range(stages):
        skip = saved[-4:-3] if i % 7 == 0 else []
        saved.append(add(f"stage {i}", [saved[-1], *skip], 4096 * (1 + i % 4), False, inplace=i % 9 == 5))
    values.append(Value(4096))
    gradient = len(values) - 1
    ops.append(Op(BOUNDARY, (saved[-1],), (gradient,), recompute=False))
    for i in reversed(range(stages)):
        gradient = add(f"stage {i} backward", [gradient, saved[i]], 4096 * (1 + i % 4), True)
    return Graph(tuple(values), tuple(ops), (gradient,), name="warm")


def main() -> None:
    start = time.monotonic()
    short, long = training_step(6), training_step(STAGES)
    for solver in all_solvers():
        for goal in GOALS:
            with contextlib.suppress(rekindle.RekindleError):  # a solver may have no plan for a goal
                rekindle.plan(short, solver=solver.name, cost="unit", **goal)
    rekindle.plan(long, cost="unit", budget=0.5)
    print(f"kernels compiled in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
