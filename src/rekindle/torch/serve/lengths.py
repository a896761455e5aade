"""Steps of a module at several lengths or batches, and the step at a further one that follows from them.

A run with padding to the longest of a batch meets dozens of lengths. The first few are captured; from then on the captured step
follows by arithmetic (see `lowering.resize`), and one plain step at that length must agree with it in every op and every bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from ..costs.resident import resident_beside
from ..lowering.normalise import lower
from ..lowering.resize import Anatomy
from ..measure.witness import Witness
from ..run.bound import answered
from ..situation.module_call import Key, ModuleCall
from ..trace import Trace
from .pattern import Pattern

# Captured steps from which a further one may follow: two say how a number depends on a size, and the third confirms it. Where
# a number depends on its square, it takes four.
STEPS_LEAST = 3
WATCHED_LEAST = 2  # of them, steps that must have been seen running plainly, op by op
STEPS_MOST = 8  # captured steps that are kept, of all kinds of calls together; the oldest makes room. A guess


@dataclass(eq=False)
class CapturedStep:
    """A captured step. seen : the ops of one plain step of the same call, see `Witness.values`; None: none was watched."""

    trace: Trace
    seen: Sequence[Any] | None = None
    _anatomy: Anatomy | None = field(default=None, repr=False)

    @property
    def anatomy(self) -> Anatomy:
        if self._anatomy is None:
            self._anatomy = Anatomy(self.trace.lowered.captured)
        return self._anatomy


@dataclass(frozen=True)
class Followed:
    """A step that follows from others. plain : how the ops of a plain step depend on the size, which is `size` here."""

    trace: Trace
    plain: Pattern
    size: int

    def agrees(self, model: nn.Module, witness: Witness) -> bool:
        """Whether a plain step that was watched ran the ops that were expected, and read no attribute that is not guarded."""
        return self.plain.holds(self.size, witness.values) and witness.read_only(model, self.trace.expected.reads)


class Lengths:
    """The captured steps of one module, from which steps at other lengths follow."""

    def __init__(self) -> None:
        self._known: list[CapturedStep] = []
        self._patterns: dict[tuple[int, ...], _Patterns] = {}  # ids of known steps -> how they depend on their size

    def add(self, trace: Trace, seen: Sequence[Any] | None = None) -> None:
        """Note a captured step. seen : the ops of a plain step of the same call."""
        trace = trace.as_captured
        if trace.fake or trace.lowered.captured.numbers.places or any(k.trace is trace for k in self._known):
            return
        self._known = [*self._known, CapturedStep(trace, seen)][-STEPS_MOST:]
        self._patterns = {}  # the ids in it may be of steps that are gone

    def captured_for(self, model: nn.Module, call: ModuleCall, key: Key) -> Trace | None:
        """The step that was captured for such a call, whose plan may have made room for others; None: there is none."""
        for trace in (k.trace for k in self._known if k.trace.key == key):
            captured = trace.lowered.captured
            if not captured.casts(call.tensors) or trace.expected.differences(model):
                continue
            if answered(captured.questions, call.tensors, model):
                return trace
        return None

    def follow(self, model: nn.Module, call: ModuleCall, key: Key) -> Followed | None:
        """The step of a call that differs from known ones in one size alone; None: it does not follow from them."""
        for line in self._lines(key):
            if line.known[0].trace.expected.differences(model):
                continue
            line, found = self._patterns_of(line)
            if found.step is None or found.plain is None:
                continue
            size = _size_at(key, line.place)
            captured = line.known[0].anatomy.resized(found.step.at(size))
            if captured is None or not captured.casts(call.tensors):
                continue
            if answered(captured.questions, call.tensors, model):
                return Followed(_as_trace(model, call, key, line.known[0].trace, captured), found.plain, size)
        return None

    def _patterns_of(self, line: _Line) -> tuple[_Line, _Patterns]:
        """The steps that follow patterns, and the patterns: of all steps of the line, or of all but one. At one size forward
        may run other ops than at all others: an embedding of positions that is read whole is not sliced."""
        every = line.known
        without = [[*every[:i], *every[i + 1 :]] for i in range(len(every) - 1, -1, -1)]
        for known in (every, *without):
            ids = tuple(map(id, known))
            if ids not in self._patterns:
                self._patterns[ids] = _Patterns.of(_Line(line.place, known))
            if self._patterns[ids].step is not None and self._patterns[ids].plain is not None:
                return _Line(line.place, known), self._patterns[ids]
        return line, _Patterns()

    def _lines(self, key: Key) -> Iterator[_Line]:
        """The known steps that differ from the call, and from each other, in one size alone; the longest line first."""
        lines: dict[Any, list[CapturedStep]] = {}
        for k in self._known:
            differing = _differing(k.trace.key, key)
            if differing:
                lines.setdefault(differing, []).append(k)
        for differing, known in sorted(lines.items(), key=lambda x: -len(x[1])):
            (place, *_), like = differing[0], known[-1].trace  # the latest: the module may have changed since the first
            by_size = {_size_at(k.trace.key, place): k for k in known if _same_state(k.trace, like)}
            yield _Line(place, [*by_size.values()])


@dataclass(frozen=True)
class _Line:
    """Steps along one size. place : (tensor, dimension) where that size stands."""

    place: tuple[int, int]
    known: list[CapturedStep]


@dataclass(frozen=True)
class _Patterns:
    """How the steps of a line depend on their size: as they were captured, and as plain steps. None: too few are known, or they
    follow no pattern."""

    step: Pattern | None = None
    plain: Pattern | None = None

    @classmethod
    def of(cls, line: _Line) -> _Patterns:
        sizes = [_size_at(k.trace.key, line.place) for k in line.known]
        watched = [(s, k.seen) for s, k in zip(sizes, line.known, strict=True) if k.seen is not None]
        if len(line.known) < STEPS_LEAST or len(watched) < WATCHED_LEAST:
            return cls()
        # The plain step of the new size is watched too, and so confirms this pattern itself.
        plain = Pattern.of([s for s, _ in watched], [seen for _, seen in watched], spare=0)
        return cls(Pattern.of(sizes, [k.anatomy.values for k in line.known]), plain)


def _size_at(key: Key, place: tuple[int, int]) -> int:
    tensor, dim = place
    size: int = key[0][tensor][0][dim]
    return size


def _differing(one: Key, other: Key) -> tuple[Any, ...] | None:
    """(places where the shapes of two calls differ, the differences of the sizes there from the first of them); None: the calls
    differ in more than one size, or in none."""
    if one[1:] != other[1:] or len(one[0]) != len(other[0]) or one[0][-1] != other[0][-1] or one[0][-1] != ():
        return None
    places: list[tuple[int, int]] = []
    for i, (a, b) in enumerate(zip(one[0][:-1], other[0][:-1], strict=True)):
        if a[2:] != b[2:] or len(a[0]) != len(b[0]):
            return None
        if a[:2] != b[:2] and not (_is_dense(*a[:2]) and _is_dense(*b[:2])):
            return None
        places += [(i, d) for d, (x, y) in enumerate(zip(a[0], b[0], strict=True)) if x != y]
    if not places:
        return None
    beyond = [tuple(_size_at(k, p) - _size_at(k, places[0]) for p in places) for k in (one, other)]
    return (tuple(places), beyond[0]) if beyond[0] == beyond[1] else None


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if s != step:
            return False
        step *= n
    return True


def _same_state(one: Trace, other: Trace) -> bool:
    """Whether two steps are for the same state of the module, and were captured in the same way."""
    a, b = one.expected, other.expected
    return (
        (a.keys, a.reads, a.ignored) == (b.keys, b.reads, b.ignored)
        and (one.state_bytes, one.options, one.module_kinds) == (other.state_bytes, other.options, other.module_kinds)
        and not any(p in t.lowered.captured.mutations for t in (one, other) for p in t.lowered.captured.inputs)
    )


def _as_trace(model: nn.Module, call: ModuleCall, key: Key, like: Trace, captured: Any) -> Trace:
    """The captured step as a trace with modelled costs. like : the trace of another size."""
    how = like.options
    resident = resident_beside(model, call.tensors, captured, how.gradients) + like.state_bytes
    lowered = lower(captured, like.module_name, resident, how.must_save, how.gradients)
    made = replace(like, graph=lowered.graph, lowered=lowered, key=key, spec=call.spec)
    return made.costed(like.options.target, measure=False)
