"""Measures the ways of each part that torch.compile runs: one measurement for each kind of part, whatever the depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ...ask import PlanOptions
from ...compiling import CompileOptions
from ..capture.sharded import class_name
from ..rewrite.closeness import SETTINGS, Loose, difference, least_scale
from ..run.measured_step import Outcome, Subject
from . import known_ways
from .choices import Choices
from .compiled_ways import Measured, compiled_ways, held_uncompiled
from .finding import Found, Unit
from .recording import signature
from .searching import SETTINGS as SEARCHING


def compiled_choices(s: Subject, found: Found, options: PlanOptions, compile: CompileOptions) -> Choices:
    """The parts with the ways of each. A part that torch.compile cannot compile runs as it is, and `found.plain` says so."""
    known: dict[Any, Measured | None] = {}
    rows, eager = [], []
    for unit, kind in _worth_it(s, found):
        if kind not in known:
            known[kind] = _measured(unit, s, found, options, compile)
        if (measured := known[kind]) is not None:
            rows.append((unit, measured.ways))
            eager.append(measured.eager_seconds)
    return replace(Choices.of(rows, options), compile=compile, eager_seconds=eager)


def _worth_it(s: Subject, found: Found) -> list[tuple[Unit, Any]]:
    """The parts, each with its kind, without those that together hold next to nothing: to compile a kind takes seconds."""
    kinds = [(u, (signature(u.module), u.key)) for u in found.units]
    held: dict[Any, int] = {}
    for u, kind in kinds:
        if kind not in held:
            held[kind] = held_uncompiled(u, s.device)
    count = Counter(kind for _, kind in kinds)
    every = sum(count[k] * n for k, n in held.items())
    return [(u, k) for u, k in kinds if count[k] * held[k] >= SEARCHING.matters * every]


def _measured(unit: Unit, s: Subject, found: Found, options: PlanOptions, compile: CompileOptions) -> Measured | None:
    name, path = class_name(unit.module), known_ways.place(unit, s.device, compile, options)
    measured = known_ways.recall(path)
    try:
        if measured is None:
            measured = compiled_ways(unit, s.device, compile, options)
            known_ways.keep(path, measured)
    except Exception as e:  # the compiler's own errors have no common class
        line = next((x for x in str(e).strip().splitlines() if x.strip()), "")
        found.plain.append(f"{name} (torch.compile fails: {type(e).__name__}: {line[:120]})")
        return None
    found.plain += [f"{name} {wrong}" for wrong in measured.wrong]
    return measured


def reference(
    eager: Outcome | None, min_cut: Callable[[], Outcome], compile: CompileOptions
) -> tuple[Outcome | None, float | None]:
    """(the step with every part compiled as it is; how far it is from eager's, relative to the largest element of a tensor).

    None : that step does not fit the device; the two draw other random numbers, or eager's step is not known.
    """
    try:
        found = min_cut()
    except torch.OutOfMemoryError:
        return None, None
    if eager is None or eager.drew and not compile.draws_as_eager:
        return found, None
    return found, farthest(found, eager)


def rounded(ours: Outcome, apart: float | None) -> Loose:
    """What may differ by rounding between a step in other ways and the one with every part compiled as it is: all numbers, by
    twice what the latter is away from eager, and no less than in other steps."""
    most = max(SETTINGS.exact_most, 2 * (apart or 0.0))
    return Loose(frozenset(ours.gradients), True, True, frozenset(ours.written), most)


def farthest(one: Outcome, other: Outcome) -> float:
    """The largest difference of losses and gradients of two steps, relative to the largest element of the tensor."""
    least = least_scale(other.gradients.values())
    pairs = [(one.loss, other.loss), *((one.gradients.get(k), g) for k, g in other.gradients.items())]
    return max((difference(a, b, least) for a, b in pairs if a is not None and b is not None), default=0.0)
