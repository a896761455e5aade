"""A schedule: the sequence of runs and frees that carries out one training step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .graph import Graph
from .kernels import liveness

RUN, FREE = 0, 1


class Run(NamedTuple):
    """Run op `op`; with `into`, write its first output over value `into`, which ends there."""

    op: int
    into: int | None = None


class Free(NamedTuple):
    """End value `value`."""

    value: int


Step = Run | Free


@dataclass(frozen=True)
class Schedule:
    """A sequence of steps for the graph whose hash is `graph_hash`; `solver` names its maker."""

    steps: tuple[Step, ...]
    graph_hash: str
    solver: str = ""

    def __repr__(self) -> str:
        runs = sum(isinstance(s, Run) for s in self.steps)
        return f"Schedule({self.solver!r}, {runs} runs, {len(self.steps) - runs} frees)"

    @cached_property
    def array(self) -> np.ndarray:
        """int64 [steps, 3]: kind (0 run, 1 free), id, into (-1: none)."""
        rows = [
            (RUN, s.op, -1 if s.into is None else s.into) if isinstance(s, Run) else (FREE, s.value, -1)
            for s in self.steps
        ]
        return np.array(rows, np.int64).reshape(-1, 3)

    @property
    def runs(self) -> list[int]:
        """The ops in the order in which they run."""
        return [s.op for s in self.steps if isinstance(s, Run)]

    @classmethod
    def from_runs(
        cls, graph: Graph, runs: Sequence[int] | np.ndarray, solver: str = "", inplace: bool = True
    ) -> Schedule:
        """The schedule of a sequence of runs: every value ends right after its last use before it is
        produced again, and with `inplace` an op writes over a dying input wherever `Op.inplace` allows it
        safely (never over what the caller holds, nor, in backward, over what forward saved: a second
        backward over the same step must find it whole)."""
        rows = liveness.lower(np.asarray(runs, np.int64), inplace, *graph.arrays)
        return cls(_steps(rows.tolist()), graph.hash, solver)

    @classmethod
    def baseline(cls, graph: Graph, solver: str = "none") -> Schedule:
        """Every op once, in baseline order, unneeded ops left out: nothing is recomputed."""
        return cls.from_runs(graph, np.flatnonzero(graph.needed).tolist(), solver)


def _steps(rows: Iterable[Sequence[int]]) -> tuple[Step, ...]:
    return tuple(Run(i, None if into < 0 else into) if kind == RUN else Free(i) for kind, i, into in rows)
