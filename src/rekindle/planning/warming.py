"""Compiles the search ahead of the first plan: for images of machines, for CI, and for `make setup`.

numba keeps what it compiles on disk, beside the kernels or in the folder that NUMBA_CACHE_DIR names.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..ask import Fraction, Goal, LeastMemory, MaxOverhead, PlanOptions
from ..errors import RekindleError
from ..kernels import companion
from ..kernels.judge import judge
from ..model.graph import BOUNDARY, Graph, Op, Value
from . import registry
from .planner import plan_graph

SHORT_STAGES = 6
LONG_STAGES = 24  # more ops than the exact search answers alone, so that every search of `auto` runs
GOALS = (Fraction(0.5), MaxOverhead(0.3), LeastMemory())


@dataclass(frozen=True)
class Warmed:
    """The result of `warm`. kernels : compiled functions that are new on disk. folder : where they are."""

    kernels: int
    seconds: float
    folder: str

    @property
    def sentence(self) -> str:
        """The result as one sentence."""
        if not self.kernels:
            return f"nothing to compile: all is in {self.folder}"
        return f"compiled {self.kernels} functions in {self.seconds:.0f} s, into {self.folder}"


def warm(every_solver: bool = False, progress: Callable[[str], None] = lambda _: None) -> Warmed:
    """Compile the kernels that the solver `auto` needs, or those of every solver; those on disk are only read.

    Two processes compile where there are two cores.
    """
    start, folder = time.monotonic(), Path(judge.stats.cache_path)
    before = _on_disk(folder)
    companion.start()
    listed = companion.remaining()[::-1]  # the second process begins at the other end
    for i, (kernel, types) in enumerate(listed):
        if not companion.taken(kernel, types):
            progress(f"compiling {i + 1} of {len(listed)}: {kernel.py_func.__name__}")
            kernel.compile(types)
    companion.wait()
    # Kernels for small graphs, and those of other solvers, are compiled by plans.
    for graph in (training_step(SHORT_STAGES), training_step(LONG_STAGES)):
        for goal in GOALS:
            _plan(graph, "auto", goal, progress)
    if every_solver:
        for solver in registry.all_solvers():
            for goal in GOALS:
                _plan(training_step(SHORT_STAGES), solver.name, goal, progress)
    return Warmed(_on_disk(folder) - before, time.monotonic() - start, str(folder))


def _plan(graph: Graph, solver: str, goal: Goal, progress: Callable[[str], None]) -> None:
    progress(f"planning {len(graph.ops)} ops with {solver}")
    with contextlib.suppress(RekindleError):  # a solver may have no plan for a goal
        plan_graph(graph, PlanOptions(goal, solver=solver, cost="unit", cache=False))


def _on_disk(folder: Path) -> int:
    return len(list(folder.glob("*.nbi")))


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
