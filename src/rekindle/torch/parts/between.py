"""Measures a step of a model whose parts are planned: what it holds outside of the parts, and when each part runs.

The step runs with known plans, so what the planned parts hold is known. The rest is outside of them, such as the loss and the
inputs of parts, or inside of a part that cannot be captured and was left open (see `ways.again`). Those bytes do not depend on
the plans, as long as these save no more of their inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...parts.division import PHASES, Moment
from ...parts.ways import Figures
from ..measure.memory import Level
from .watched import BEGINS, ENDS, Call


@dataclass(frozen=True)
class Between:
    """What a measured step holds outside of its parts.

    moments : for the division. peak_bytes : of the measured step. calls : how often each unit was called.
    at_end_bytes : held outside of planned parts when backward begins. at_end_inside : of that, inside of each unit.
    next : of each unit, those that are called next after a call of it; None: no part is. shared : as of `Call`, of all its
    calls.
    """

    moments: tuple[Moment, ...]
    peak_bytes: int
    at_end_bytes: int
    at_end_inside: tuple[int, ...]
    calls: tuple[int, ...]
    next: tuple[frozenset[int | None], ...] = ()
    shared: tuple[frozenset[int], ...] = ()


def between(
    levels: Sequence[Level], calls: Sequence[Call], used: Sequence[Figures], is_open: Sequence[bool]
) -> Between:
    """What the step held outside of its parts.

    used : of each unit, the way by which it ran. is_open : whether it is a part that was left open.
    """
    books = _Books(calls, used, is_open)
    moments = []
    for x in levels:
        moments.append(books.moment(x.peak))
        books.settle(x.level)
        if x.name:
            call, phase, what = x.name.split()
            books.note(int(call), phase, what)
    at_end = books.at_end or (0, {})
    counts = tuple(sum(c.unit == i for c in calls) for i in range(len(used)))
    inside = tuple(at_end[1].get(i, 0) for i in range(len(used)))
    known = [c for c in calls if c.unit >= 0]
    pairs = [(a.unit, b) for a, b in zip(known, [*(c.unit for c in known[1:]), None], strict=False)]
    return Between(
        tuple(moments), max((x.peak for x in levels), default=0), at_end[0], inside, counts,
        tuple(frozenset(b for a, b in pairs if a == i) for i in range(len(used))),
        tuple(frozenset(k for c in known if c.unit == i for k in c.shared) for i in range(len(used))),
    )  # fmt: skip


@dataclass
class _Books:
    """Who holds the bytes of the step, as it goes on.

    Bytes that appear while a part that is open runs are that part's; its results, and its gradients of inputs, are those of the
    code around it. Bytes that appear while a planned part runs are the part's as far as its plan says so.

    holding : calls of parts that hold what their forward saved. near : the call whose forward ended last; in backward, the one
    before the call that runs; with the calls before it if it may stay open. running : (call, phase) of parts that are not open.
    opened : calls of open parts that run now, the innermost last. inside : bytes of calls of open parts. outside : of nobody.
    """

    calls: Sequence[Call]
    used: Sequence[Figures]
    is_open: Sequence[bool]
    holding: list[int] = field(default_factory=list)
    running: list[tuple[int, str]] = field(default_factory=list)
    opened: list[tuple[int, str]] = field(default_factory=list)
    inside: dict[int, int] = field(default_factory=dict)
    outside: int = 0
    at_end: tuple[int, dict[int, int]] | None = None
    near: set[int] = field(default_factory=set)
    order: list[int] = field(default_factory=list)  # calls whose forward has ended

    def moment(self, peak: int) -> Moment:
        """The time since the last event, in which the most bytes were held."""
        parts = [*((c, self._phase(c)) for c in self.holding), *self.running]
        own = sum(self._bytes(c, phase) for c, phase in parts)
        more = max(0, peak - own - self.outside - sum(self.inside.values()))
        inside = dict(self.inside)
        if self.opened:
            inside[self.opened[-1][0]] += more
        parts += [*self.opened, *((c, self._phase(c)) for c in self.inside if all(c != o for o, _ in self.opened))]
        outside = self.outside + (0 if self.opened else more)
        return Moment(
            outside,
            tuple((self.calls[c].unit, phase) for c, phase in parts),
            tuple((self.calls[c].unit, n) for c, n in inside.items()),
        )

    def _before(self, at: int) -> set[int]:
        """The call before that place in the order of calls; and the one before it if it may stay open, since copies do not wait
        for parts that are open."""
        found: set[int] = set()
        for call in reversed(self.order[:at]):
            found.add(call)
            if not self.is_open[self.calls[call].unit]:
                break
        return found

    def _phase(self, call: int) -> str:
        return "near" if call in self.near else "held"

    def _bytes(self, call: int, phase: str) -> int:
        return self.used[self.calls[call].unit].bytes[PHASES.index(phase)]

    def settle(self, level: int) -> None:
        """Charge the bytes that have come or gone since the last event."""
        if self.running:
            return  # the next event of the running part says what remains
        self._charge(level - sum(self._bytes(c, self._phase(c)) for c in self.holding))

    def _charge(self, now: int) -> None:
        change = now - self.outside - sum(self.inside.values())
        for call, _ in reversed(self.opened):
            taken = max(change, -self.inside[call])
            self.inside[call] += taken
            change -= taken
        self.outside = max(0, self.outside + change)

    def note(self, call: int, phase: str, what: str) -> None:
        """Take note of an event, as `Watched` marks it."""
        if (unit := self.calls[call].unit) < 0:
            return
        if phase == "backward" and what == BEGINS and self.at_end is None:
            by_unit: dict[int, int] = {}
            for c, n in self.inside.items():
                by_unit[self.calls[c].unit] = by_unit.get(self.calls[c].unit, 0) + n
            self.at_end = self.outside + sum(self.inside.values()), by_unit
        if phase == "forward" and what == ENDS:
            self.order.append(call)
            self.near = self._before(len(self.order))
        elif phase == "backward" and what == BEGINS and call in self.order:
            self.near = self._before(self.order.index(call))
        if self.is_open[unit]:
            self._note_open(call, phase, what)
        elif what == BEGINS:
            if phase == "backward" and call in self.holding:
                self.holding.remove(call)
            self.running.append((call, phase))
        elif (call, phase) in self.running:
            self.running.remove((call, phase))
            if phase == "forward":
                self.holding.append(call)

    def _note_open(self, call: int, phase: str, what: str) -> None:
        if what == BEGINS:
            self.inside.setdefault(call, 0)
            self.opened.append((call, phase))
            return
        if (call, phase) not in self.opened:
            return
        self.opened.remove((call, phase))
        if phase == "forward":
            goes = min(self.inside[call], self.calls[call].result_bytes)
            self.inside[call] -= goes
        else:
            goes = self.inside.pop(call)
        if self.opened:
            self.inside[self.opened[-1][0]] += goes
        else:
            self.outside += goes


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
        more = [(u, "held") for p, phase in m.parts for u in after.get(p, ()) if phase != "forward"]
        extra = sum(inputs[u] for u, _ in more)
        moments.append(Moment(m.outside_bytes + extra, (*m.parts, *more), m.inside))
        for p, phase in m.parts:
            for u in after.get(p, ()) if phase in ("forward", "backward") else ():
                others = tuple(x for x in (*m.parts, *more) if x not in ((p, phase), (u, "held")))
                held = (*others, (p, "held"), (u, phase))
                moments.append(Moment(m.outside_bytes + extra + inputs[u], held, m.inside))
    return tuple(moments)
