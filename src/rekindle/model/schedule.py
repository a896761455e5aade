"""A schedule: the sequence of runs, frees and copies to and from the host that carries out one training step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..errors import UsageError
from ..kernels import liveness
from ..kernels.arrays import FETCH, FREE, OFFLOAD, RUN
from .graph import Graph


class Run(NamedTuple):
    """Run op `op`; with `into`, write its first output over value `into`, which ends there."""

    op: int
    into: int | None = None


class Free(NamedTuple):
    """Free the storage of value `value`; where it is being copied, once that copy has ended."""

    value: int


class Offload(NamedTuple):
    """Begin to copy value `value` to the host. It stays on the device until it is freed."""

    value: int


class Fetch(NamedTuple):
    """Take room for value `value`, which the host has and the device has not, and begin to copy it back. The first step that
    needs the value waits for the copy, and then the host's ends."""

    value: int


Step = Run | Free | Offload | Fetch
_OF_VALUES: dict[int, type[Free] | type[Offload] | type[Fetch]] = {FREE: Free, OFFLOAD: Offload, FETCH: Fetch}
_KINDS = {step: kind for kind, step in _OF_VALUES.items()}


class Schedule:
    """A sequence of steps for the graph whose hash is `graph_hash`; `solver` names its maker. Not to be changed.

    steps : tuple of `Run`, `Free`, `Offload` and `Fetch`.
    array : int64 [steps, 3], the same as rows: kind (0 run, 1 free, 2 offload, 3 fetch), id, into (-1: none).
    """

    def __init__(self, steps: Iterable[Step], graph_hash: str, solver: str = ""):
        self.steps = tuple(steps) if isinstance(steps, Iterable) else ()
        wrong = next((s for s in self.steps if not isinstance(s, Step)), None)
        if wrong is not None or not isinstance(steps, Iterable):
            raise UsageError(
                f"{steps if wrong is None else wrong!r:.80} is no step; a schedule is made of Run(op), Free(value), "
                "Offload(value) and Fetch(value)"
            )
        self.graph_hash, self.solver = graph_hash, solver

    @classmethod
    def from_array(cls, rows: np.ndarray, graph_hash: str, solver: str) -> Schedule:
        """Of rows as in `array`. Solvers make many schedules of which few are looked at step by step."""
        out = cls.__new__(cls)
        out.array, out.graph_hash, out.solver = rows, graph_hash, solver
        return out

    def __repr__(self) -> str:
        runs, frees, copies = (int(np.isin(self.array[:, 0], k).sum()) for k in (RUN, FREE, (OFFLOAD, FETCH)))
        return f"Schedule({self.solver!r}, {runs} runs, {frees} frees{f', {copies} copies' if copies else ''})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        same = (self.graph_hash, self.solver) == (other.graph_hash, other.solver)
        return same and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash((self.array.tobytes(), self.graph_hash, self.solver))

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps of `array`."""
        rows = self.array.tolist()
        return tuple(
            Run(i, None if into < 0 else into) if kind == RUN else _OF_VALUES[kind](i) for kind, i, into in rows
        )

    @cached_property
    def array(self) -> np.ndarray:
        """The rows of `steps`. An `into` below 0, which no op may write into, becomes -2, as -1 means none."""
        rows = [
            (RUN, s.op, -1 if s.into is None else s.into if s.into >= 0 else -2)
            if isinstance(s, Run)
            else (_KINDS[type(s)], s.value, -1)
            for s in self.steps
        ]
        return np.array(rows, np.int64).reshape(-1, 3)

    @property
    def moves(self) -> bool:
        """Whether the schedule copies values to the host."""
        return bool((self.array[:, 0] == OFFLOAD).any())

    @property
    def runs(self) -> list[int]:
        """The ops in the order in which they run."""
        rows: list[int] = self.array[self.array[:, 0] == RUN, 1].tolist()
        return rows

    @classmethod
    def from_runs(
        cls, graph: Graph, runs: Sequence[int] | np.ndarray, solver: str = "", inplace: bool = True
    ) -> Schedule:
        """The schedule of a sequence of runs: every value ends right after its last use before it is
        produced again, and with `inplace` an op writes over a dying input wherever `Op.inplace` allows it,
        but not over what the boundary reads or makes: the caller may hold that."""
        rows = liveness.lower(np.asarray(runs, np.int64), inplace, graph.shared, graph.arrays)
        return cls.from_array(rows, graph.hash, solver)

    @classmethod
    def baseline(cls, graph: Graph, solver: str = "none") -> Schedule:
        """Every op once, in baseline order, unneeded ops left out: nothing is recomputed."""
        return cls.from_runs(graph, np.flatnonzero(graph.needed).tolist(), solver)
