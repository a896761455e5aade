"""Measures a step of a model whose parts are planned: what it holds outside of the parts, and when each part runs.

The step runs with known plans, so what the parts hold is known; the rest is outside of them: the code between the parts, the
loss, the inputs of parts. Those bytes do not depend on the parts' plans, as long as these save no more of the inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...parts.division import Moment
from ...parts.figures import Figures
from ..capture import tree
from ..costs.levels import Level, Levels
from ..run.bound import Bound
from ..run.execute import boundary_of, last_stage_of
from ..run.planned import PlannedForward
from .finding import Unit

BEGINS, ENDS = "begins", "ends"


@dataclass(frozen=True)
class Event:
    """A part's call begins or ends its forward or its backward. call : number of the call. phase : "forward" or "backward"."""

    call: int
    phase: str
    what: str

    @property
    def name(self) -> str:
        return f"{self.call} {self.phase} {self.what}"

    @classmethod
    def of(cls, name: str) -> Event:
        call, phase, what = name.split()
        return cls(int(call), phase, what)


class Watched:
    """The calls of parts in one step, noted as marks of `levels`. units : of each call, its unit or None (it ran plain)."""

    def __init__(self, levels: Levels) -> None:
        self.levels = levels
        self.units: list[int] = []

    @contextlib.contextmanager
    def watching(self, planned: Sequence[tuple[PlannedForward, Sequence[int], Sequence[Unit]]]) -> Iterator[None]:
        """Inside, calls of these planned forwards are noted. Each comes with the numbers and the units of its module."""
        before = []
        try:
            for forward, numbers, units in planned:
                module = units[0].module
                before.append((module, module.__dict__.get("forward")))
                module.__dict__["forward"] = self._noting(forward, dict(zip((u.key for u in units), numbers, strict=True)))
            yield
        finally:
            for module, forward in before:
                module.__dict__["forward"] = forward

    def _noting(self, planned: PlannedForward, numbers: dict[Any, int]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return planned(*args, **kwargs)
            call = len(self.units)
            self.units.append(-1)
            self._mark(call, "forward", BEGINS)
            planned.last = None
            result = planned(*args, **kwargs)
            bound: Bound | None = planned.last
            self.units[call] = -1 if bound is None else numbers.get(bound.trace.key, -1)
            self._mark(call, "forward", ENDS)
            node = boundary_of(tree.tensors_in(result))
            if node is not None:
                node.register_prehook(lambda _: self._mark(call, "backward", BEGINS))
                last_stage_of(node).register_hook(lambda *_: self._mark(call, "backward", ENDS))
            return result

        return forward

    def _mark(self, call: int, phase: str, what: str) -> None:
        self.levels.mark(Event(call, phase, what).name)


@dataclass(frozen=True)
class Between:
    """What a measured step holds outside of its parts.

    moments : for the division. peak_bytes : of the measured step. at_end_bytes : held outside when backward begins.
    calls : how often each unit was called.
    """

    moments: tuple[Moment, ...]
    peak_bytes: int
    at_end_bytes: int
    calls: tuple[int, ...]


def between(levels: Sequence[Level], calls_of: Sequence[int], used: Sequence[Figures]) -> Between:
    """What the step held outside of its parts. calls_of : the unit of each call, or -1. used : of each unit, the way by which
    it ran. A part that takes more than its plan says has the difference counted outside."""
    holding: list[int] = []  # units whose forward has ended and whose backward has not begun
    running: list[tuple[int, str]] = []
    moments: list[Moment] = []
    at_begin = 0  # bytes outside of parts when the present part began
    at_end: int | None = None
    for x in levels:
        own = sum(used[u].held_bytes for u in holding)
        if running:
            within = sum(_most(used[u], phase) for u, phase in running)
            outside = at_begin + max(0, x.peak - own - at_begin - within)
        else:
            outside = x.peak - own
        moments.append(Moment(max(0, outside), (*((u, "held") for u in holding), *running)))
        if not x.name:
            break
        event = Event.of(x.name)
        unit = calls_of[event.call]
        if unit < 0:
            continue
        if event.what == BEGINS:
            at_begin = max(0, x.level - own) if not running else at_begin
            if event.phase == "backward":
                at_end = max(0, x.level - own) if at_end is None else at_end
                holding.remove(unit)
            running.append((unit, event.phase))
        else:
            if (unit, event.phase) in running:
                running.remove((unit, event.phase))
            if event.phase == "forward":
                holding.append(unit)
    counts = tuple(sum(u == i for u in calls_of) for i in range(len(used)))
    peak = max((x.peak for x in levels), default=0)
    return Between(tuple(moments), peak, at_end or 0, counts)


def with_uncalled(found: Between, like: Sequence[int | None], inputs: Sequence[int]) -> tuple[Moment, ...]:
    """The moments of a step that calls the units which the measured step left out (LayerDrop).

    Such a unit holds bytes whenever its neighbour does, and takes its moments too. like : of each unit, the neighbour in whose
    place it is called besides; None: it was called. inputs : bytes of each unit's inputs, which its neighbour saves.
    """
    after: dict[int, list[int]] = {}
    for u, neighbour in enumerate(like):
        if neighbour is not None:
            after.setdefault(neighbour, []).append(u)
    moments = []
    for m in found.moments:
        more = [(u, "held") for p, phase in m.parts for u in after.get(p, ()) if phase in ("held", "backward")]
        extra = sum(inputs[u] for u, _ in more)
        moments.append(Moment(m.outside_bytes + extra, (*m.parts, *more)))
        for p, phase in m.parts:
            for u in after.get(p, ()) if phase != "held" else ():
                others = tuple(x for x in (*m.parts, *more) if x not in ((p, phase), (u, "held")))
                held = (*others, (p, "held"), (u, phase))
                moments.append(Moment(m.outside_bytes + extra + inputs[u], held))
    return tuple(moments)


def _most(f: Figures, phase: str) -> int:
    return f.forward_bytes if phase == "forward" else f.backward_bytes
