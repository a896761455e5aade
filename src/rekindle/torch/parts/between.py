"""Measures a step of a model whose parts are planned: what it holds outside of the parts, and when each part runs.

The step runs with known plans, so what the planned parts hold is known. The rest is outside of them, such as the loss and the
inputs of parts, or inside of a part that cannot be captured and was left open (see `ways.again`). Those bytes do not depend on
the plans, as long as these save no more of their inputs.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from ...parts.division import PHASES, Moment
from ...parts.ways import Figures
from ..compiled.compiled_forward import CompiledForward
from ..compiled.compiler import is_compiled
from ..measure.memory import Level, Levels
from ..private import will_run
from ..run.execute import boundary_of, last_stage_of
from ..run.own_forward import forward_instead
from ..serve.planned import PlannedForward
from ..tensors import tree
from ..tensors.op_tensors import storage_of
from ..ways.again import AgainForward
from ..ways.finding import Unit
from .applied import Forward

BEGINS, ENDS = "begins", "ends"


@dataclass(frozen=True)
class Between:
    """The bytes that a measured step holds outside of its parts.

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
    """The bytes that the step held outside of its parts.

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

    holding : calls of parts whose saved tensors are alive. near : the call whose forward ended last, in backward the call
    before the running one; and where it may stay open, calls before it. running : (call, phase) of parts that are not open.
    opened : calls of open parts that run now, the innermost last. inside : bytes of calls of open parts. outside : of no part.
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


@dataclass
class Call:
    """One call of a part in a measured step.

    unit : its number; -1: it ran without a plan. result_bytes : of what it made. shared : numbers of its input tensors that the
    call before it, or the one after it, has as well.
    """

    unit: int = -1
    result_bytes: int = 0
    shared: set[int] = field(default_factory=set)


class Watched:
    """The calls of parts in one step, noted as marks of `levels`: the call with the number 2 begins its forward ("2 forward
    begins"), ends it, begins its backward, and ends it."""

    def __init__(self, levels: Levels) -> None:
        self.levels = levels
        self.calls: list[Call] = []
        self._runs: int | None = None  # the compiled part whose backward runs
        self._inputs: list[weakref.ref[torch.Tensor]] = []  # of the last call

    @contextlib.contextmanager
    def watching(self, applied: Sequence[tuple[Forward, Sequence[int], Sequence[Unit]]]) -> Iterator[None]:
        """While this context is open, every call of a forward in `applied` is appended to `calls`, with its beginning and end.

        applied : (forward, numbers of its module's units, those units), as `Choices.applied` gives them.
        """
        with contextlib.ExitStack() as stack:
            for forward, numbers, units in applied:
                if isinstance(forward, PlannedForward):
                    noted = self._planned(forward, dict(zip((u.key for u in units), numbers, strict=True)))
                elif isinstance(forward, CompiledForward) and forward.way is not None:
                    noted = self._compiled(forward, numbers[0])
                else:
                    noted = self._open(forward, numbers[0])
                stack.enter_context(forward_instead(units[0].module, noted))
            yield

    def _planned(self, planned: PlannedForward, numbers: dict[Any, int]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return planned(*args, **kwargs)
            call = self._begin(tree.tensors_in((args, kwargs)))
            planned.last = None
            result = planned(*args, **kwargs)
            last = planned.last
            self._end(call, -1 if last is None else numbers.get(last.trace.key, -1), (), result)
            node = boundary_of(tree.tensors_in(result))
            if node is not None:
                node.register_prehook(lambda _: self._mark(call, "backward", BEGINS))
                last_stage_of(node).register_hook(lambda *_: self._mark(call, "backward", ENDS))
            return result

        return forward

    def _compiled(self, compiled: CompiledForward, number: int) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return compiled(*args, **kwargs)
            call = self._begin(tree.tensors_in((args, kwargs)))
            result = compiled(*args, **kwargs)
            given = tree.flatten((args, kwargs), opaque_ok=True)[0]
            around = {get_gradient_edge(t).node for t in given if t.requires_grad}
            nodes = _behind((t.grad_fn for t in tree.tensors_in(result)), around)
            node = next(filter(is_compiled, nodes), None)  # None: nothing of it is differentiated
            self._end(call, -1 if node is None else number, given, result)
            if node is not None:
                node.register_prehook(lambda _: self._backward_begins(call))
                if not any(is_compiled(n) for n in around):
                    node.register_hook(lambda *_: self._backward_ends())
                # A hook behind a node keeps the gradient that the node is given. The next part's hook serves as well.
            return result

        return forward

    def _open(self, again: AgainForward | CompiledForward, number: int) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            tensors, spec = tree.flatten((args, kwargs), opaque_ok=True)
            around = {get_gradient_edge(t).node for t in tensors if t.requires_grad}
            if not torch.is_grad_enabled() or not around or tree.opaque_kinds(spec):
                return again(*args, **kwargs)
            call = self._begin(tree.tensors_in((args, kwargs)))
            result = again(*args, **kwargs)
            self._end(call, number, tensors, result)
            nodes = {t.grad_fn for t in tree.tensors_in(result) if t.grad_fn is not None} - around
            # A node of our own around an input would add up the gradients of the input's uses before eager does.
            last = [n for n in _behind(nodes, around) if any(m in around for m, _ in n.next_functions)]
            left: set[int] = set()  # ids of the nodes of `last` that have not run

            def begins(_: Any) -> None:
                if last:
                    left.update(id(n) for n in last if will_run(n))
                    last.clear()
                    self._backward_ends()
                    self._mark(call, "backward", BEGINS)

            def ends(number: int, *_: Any) -> None:
                if number in left:
                    left.discard(number)
                    if not left:
                        self._mark(call, "backward", ENDS)

            for node in last:
                node.register_hook(partial(ends, id(node)))
            for node in nodes:
                node.register_prehook(begins)
            return result

        return forward

    def _backward_begins(self, call: int) -> None:
        self._backward_ends()
        self._mark(call, "backward", BEGINS)
        self._runs = call

    def _backward_ends(self) -> None:
        """Note that the compiled part whose backward began last is over."""
        if self._runs is not None:
            self._mark(self._runs, "backward", ENDS)
        self._runs = None

    def _begin(self, given: Sequence[torch.Tensor]) -> int:
        before = {id(t): i for i, at in enumerate(self._inputs) if (t := at()) is not None}
        shared = {i: before[id(t)] for i, t in enumerate(given) if id(t) in before}
        if shared:
            self.calls[-1].shared.update(shared.values())
        self._inputs = [weakref.ref(t) for t in given]
        self.calls.append(Call(shared={*shared}))
        self._mark(len(self.calls) - 1, "forward", BEGINS)
        return len(self.calls) - 1

    def _end(self, call: int, unit: int, given: Sequence[torch.Tensor], result: Any) -> None:
        mine = {id(storage_of(t)) for t in given}
        made = {id(s): s.nbytes() for t in tree.tensors_in(result) if (s := storage_of(t)) is not None}
        noted = self.calls[call]
        noted.unit, noted.result_bytes = unit, sum(n for k, n in made.items() if k not in mine)
        self._mark(call, "forward", ENDS)

    def _mark(self, call: int, phase: str, what: str) -> None:
        self.levels.mark(f"{call} {phase} {what}")


def _behind(nodes: Iterable[Any], around: set[Any]) -> Iterator[Any]:
    """These autograd nodes and those behind them, as far as the nodes `around`."""
    stack = [n for n in nodes if n is not None and n not in around]
    seen = {*stack, *around}
    while stack:
        node = stack.pop()
        yield node
        more = [n for n, _ in node.next_functions if n is not None and n not in seen]
        seen.update(more)
        stack += more
