"""Steps of a module at several lengths or batches, and the step at a further one that follows from them.

A run with padding to the longest of a batch meets dozens of lengths. The first few are captured; from then on the captured step
follows by arithmetic (see `lowering.resize`), and one plain step at that length must agree with it in every op and every bit.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from ..costs.resident import resident_beside
from ..lowering.normalise import lower
from ..lowering.resize import Anatomy
from ..measure.witness import Witness
from ..private import make_contiguous_strides_for
from ..run.bound import answered
from ..situation.module_call import Key, ModuleCall
from ..trace import Trace
from .bound_plans import BoundPlans
from .pattern import Pattern, Sizes, alike

STEPS_LEAST = 3  # captured steps from which others follow
WATCHED_LEAST = 2  # of them, steps that must have been seen running plainly, op by op
SIZES_MOST = 3  # that may vary at once: of a batch, of its sources and of its targets, say
STEPS_MOST = 8  # captured steps that are kept, of all kinds of calls together; the oldest makes room. A guess


@dataclass(eq=False)
class CapturedStep:
    """A captured step.

    seen : the ops of one plain step of the same call, see `Witness.values`; None: no plain step was watched.
    way : a token, the same object for all captured steps that run the same ops; None until `Lengths._way` sets it.
    """

    trace: Trace
    seen: Sequence[Any] | None = None
    way: object = None

    @functools.cached_property
    def anatomy(self) -> Anatomy:
        return Anatomy(self.trace.lowered.captured)


@dataclass(frozen=True)
class Followed:
    """A step that follows from others. plain : how the ops of a plain step depend on the sizes, which are `sizes` here."""

    trace: Trace
    plain: Pattern
    sizes: Sizes

    def agrees(self, model: nn.Module, witness: Witness) -> bool:
        """Whether a plain step that was watched ran the ops that were expected, and read no attribute that is not guarded."""
        return self.plain.holds(self.sizes, witness.values) and witness.read_only(model, self.trace.expected.reads)


class Lengths:
    """The captured steps of one module, from which steps at other lengths follow."""

    def __init__(self) -> None:
        self._known: list[CapturedStep] = []
        self._patterns: dict[Any, _Patterns] = {}  # (sizes, ids of known steps) -> how the steps depend on the sizes

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

    def follow(self, model: nn.Module, call: ModuleCall, key: Key, plans: BoundPlans) -> Iterator[Followed]:
        """Steps for a call that differs from known ones in a few sizes alone: one for each known way through forward.

        plans : the plans on the module, whose guards tell whether its state is the one that was captured.
        """
        for family in self._families(model, key, plans):
            found = self._patterns_of(family)
            if found.step is None or found.plain is None:
                continue
            like, sizes = found.like, family.sizes(key)
            captured = like.anatomy.resized(found.step.at(sizes))
            if captured is None or not captured.casts(call.tensors):
                continue
            if answered(captured.questions, call.tensors, model):
                yield Followed(_as_trace(model, call, key, like.trace, captured), found.plain, sizes)

    def _patterns_of(self, family: _Family) -> _Patterns:
        """The patterns that all steps of the family follow, or all but one. At one size forward may run other ops than at all
        others: an embedding of positions that is read whole is not sliced."""
        every = family.known
        without = [[*every[:i], *every[i + 1 :]] for i in range(len(every) - 1, -1, -1)]
        for known in (every, *without):
            at = family.places, tuple(map(id, known))
            if at not in self._patterns:
                self._patterns[at] = _Patterns.of(_Family(family.places, known))
            if self._patterns[at].step is not None and self._patterns[at].plain is not None:
                return self._patterns[at]
        return _Patterns(every[0])

    def _families(self, model: nn.Module, key: Key, plans: BoundPlans) -> Iterator[_Family]:
        """The known steps that differ from the call, and from each other, in a few sizes alone; those of the fewest sizes
        first. Those that take another way through forward than others (at a size of one, say) are a family of their own."""
        found: list[_Family] = []
        apart = {k: p for k in self._known if (p := _differing(k.trace.key, key))}
        like = next((k for k in reversed(apart) if plans.guards(model, k.trace.expected).hold(model)), None)
        if like is None:
            return
        apart = {k: p for k, p in apart.items() if _same_state(k.trace, like.trace)}
        for places in {*apart.values(), frozenset().union(*apart.values())}:
            ways: dict[object, list[CapturedStep]] = {}
            for k in (k for k, p in apart.items() if p <= places):
                ways.setdefault(self._way(k), []).append(k)
            found += [_Family.of(places, way, key) for way in ways.values()]
        for family in sorted(found, key=lambda f: (len(f.places), -len(f.known))):
            if len(family.places) <= SIZES_MOST and family.tells_apart:
                yield family

    def _way(self, step: CapturedStep) -> object:
        """The token of the step's way through forward, which is compared with the ways of the other steps only once."""
        known = (k for k in self._known if k.way is not None and alike(k.anatomy.values, step.anatomy.values))
        step.way = step.way or next((k.way for k in known), object())
        return step.way


@dataclass(frozen=True)
class _Family:
    """Captured steps whose inputs differ in a few sizes. places : of each such size, the first (tensor, dimension)."""

    places: tuple[tuple[int, int], ...]
    known: list[CapturedStep]

    @classmethod
    def of(cls, places: Iterable[tuple[int, int]], known: Sequence[CapturedStep], key: Key) -> _Family:
        """The steps that differ from a call at these places. Places whose sizes are always equally far apart have one size."""
        one_each: dict[Sizes, tuple[int, int]] = {}
        for place in sorted(places):
            beyond = tuple(_size_at(k.trace.key, place) - _size_at(key, place) for k in known)
            one_each.setdefault(beyond, place)
        of = tuple(one_each.values())
        by_size = {tuple(_size_at(k.trace.key, p) for p in of): k for k in known}
        return cls(of, [*by_size.values()])

    def sizes(self, key: Key) -> Sizes:
        return tuple(_size_at(key, p) for p in self.places)

    @property
    def tells_apart(self) -> bool:
        """Whether the steps are enough to tell how numbers depend on each size. Two say how one depends on one size, and the
        third confirms it."""
        rows = [(1, *self.sizes(k.trace.key)) for k in self.known]
        return len(rows) >= STEPS_LEAST and bool(np.linalg.matrix_rank(rows) == len(self.places) + 1)


@dataclass(frozen=True)
class _Patterns:
    """How the steps of a family depend on their sizes: as they were captured, and as plain steps. None: too few are known,
    or too few were seen running plainly, or they follow no pattern. like : one of the steps."""

    like: CapturedStep
    step: Pattern | None = None
    plain: Pattern | None = None

    @classmethod
    def of(cls, family: _Family) -> _Patterns:
        sizes = [family.sizes(k.trace.key) for k in family.known]
        watched = [(s, k.seen) for s, k in zip(sizes, family.known, strict=True) if k.seen is not None]
        like = family.known[-1]  # the latest, whose guards were looked at
        if not family.tells_apart or len(watched) <= len(family.places):
            return cls(like)
        # The plain step of the new sizes is watched too, and so confirms this pattern itself.
        plain = Pattern.of([s for s, _ in watched], [seen for _, seen in watched], spare=0)
        return cls(like, Pattern.of(sizes, [k.anatomy.values for k in family.known]), plain)


def _size_at(key: Key, place: tuple[int, int]) -> int:
    tensor, dim = place
    size: int = key[0][tensor][0][dim]
    return size


def _differing(one: Key, other: Key) -> frozenset[tuple[int, int]]:
    """The places, (tensor, dimension), where the shapes of two calls differ; none if they differ in more than sizes."""
    if one[1:] != other[1:] or len(one[0]) != len(other[0]) or one[0][-1] != other[0][-1] or one[0][-1] != ():
        return frozenset()
    places: list[tuple[int, int]] = []
    for i, (a, b) in enumerate(zip(one[0][:-1], other[0][:-1], strict=True)):
        if a[2:] != b[2:] or len(a[0]) != len(b[0]):
            return frozenset()
        if a[:2] != b[:2] and any(
            tuple(strides) != make_contiguous_strides_for(shape) for shape, strides in (a[:2], b[:2])
        ):
            return frozenset()
        places += [(i, d) for d, (x, y) in enumerate(zip(a[0], b[0], strict=True)) if x != y]
    return frozenset(places)


def covers(one: Key, other: Key) -> bool:
    """Whether the calls are equal apart from sizes, of which the first call's are no smaller."""
    places = _differing(one, other)
    return one == other or bool(places) and all(_size_at(one, p) > _size_at(other, p) for p in places)


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
