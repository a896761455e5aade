"""Searches the ways of each part: one search for each graph, one measured step for each kind of part without a graph."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ... import allowance
from ...ask import PlanOptions
from ...errors import RekindleError
from ...parts.ways import Way, as_part_plan, ways
from ...printed import first_line
from ...saying.progress import announce
from ..measure import trial
from ..measure.measured_step import Subject
from ..measure.recording import signature
from ..run import stages
from ..run.bound import BoundPlan
from ..tensors.sharded import class_name
from ..trace import plain_forward
from ..ways.finding import Found, Unit
from ..ways.trial_steps import again_ways
from .choices import Choices, smallest

# A part is worth a plan if its ways save at least so large a share of the bytes that it holds plain, and if equal parts save
# together at least so large a share of the bytes that all parts hold plain. Both are guesses.
SAVED_LEAST_SHARE, ALIKE_LEAST_SHARE = 0.1, 0.02


def search(s: Subject, found: Found, options: PlanOptions, check: bool) -> Choices:
    """The units for which some way saves enough, with their ways. check : try a plan of each graph on its part by itself; parts
    whose planned step differs from the plain one run plain, and `found.plain` says so."""
    planned, again = _plans(s, found, options, check), _again(s, found, options)
    return Choices.of([(u, w) for u in found.units if (w := (again if u.trace is None else planned)[id(u)])], options)


def _plans(s: Subject, found: Found, options: PlanOptions, check: bool) -> dict[int, list[Way]]:
    """The ways of each unit that was captured; [] where they save too little."""
    known: dict[str, list[Way]] = {}
    units = [(u, u.trace) for u in found.units if u.trace is not None]
    allowance.of_step(sum(float(traced.graph.weights("seconds").sum()) for _, traced in units))
    sizes = {traced.graph.hash: len(traced.graph.ops) for _, traced in units}
    every_op = sum(sizes.values())
    for unit, traced in units:
        graph = traced.graph
        if graph.hash not in known:
            announce(options.progress, f"searching plans for {unit.path} ({len(graph.ops):,} ops)")
            limit = None if options.time_limit is None else options.time_limit * sizes[graph.hash] / every_op
            left = sum(n for h, n in sizes.items() if h not in known)
            with allowance.part(sizes[graph.hash] / left):
                finish = stages.finish(traced.lowered)
                known[graph.hash] = ways(graph, replace(options, time_limit=limit), finish, len(found.units))
    count = Counter(traced.graph.hash for _, traced in units)
    every = sum(n * known[h][0].figures.held_bytes for h, n in count.items())
    tried: set[str] = set()
    for unit, traced in units:
        graph = traced.graph
        useful = known[graph.hash]
        if graph.hash in tried:
            continue
        tried.add(graph.hash)
        saved, plain = _saved(useful), useful[0].figures
        few = saved < SAVED_LEAST_SHARE * max(plain.held_bytes, plain.backward_bytes)
        if few or count[graph.hash] * saved < ALIKE_LEAST_SHARE * every:
            known[graph.hash] = []
        elif check and s.fake is None and (wrong := _wrong(unit, useful[smallest(useful)], options)):
            found.plain.append(f"{class_name(unit.module)} (its planned step {wrong})")
            known[graph.hash] = []
    return {id(u): known[traced.graph.hash] for u, traced in units}


def _wrong(unit: Unit, way: Way, options: PlanOptions) -> str:
    """The fault of a planned step of the part by itself, such as "differs in the loss"; "" if it has none."""
    assert unit.trace is not None
    try:
        finish = stages.finish(unit.trace.lowered)
        bound = BoundPlan(unit.module, unit.trace, as_part_plan(unit.trace.graph, way, options, finish))
        with unit.given.surroundings(unit.module):
            found = trial.differences(unit.module, plain_forward(unit.module), bound, unit.given.call)
    except torch.OutOfMemoryError:
        raise
    except Exception as e:  # a part that works only inside of the model's step
        return f"fails with {type(e).__name__}: {first_line(e)}"
    return f"differs in {', '.join(found)}" if found else ""


def _again(s: Subject, found: Found, options: PlanOptions) -> dict[int, list[Way]]:
    """The ways of each unit that was not captured: left open, and running again in backward; [] where it cannot."""
    known: dict[Any, list[Way]] = {}
    made: dict[int, list[Way]] = {}
    for unit in found.units:
        if unit.trace is not None:
            continue
        kind = (signature(unit.module), unit.key)
        if kind not in known:
            announce(options.progress, f"measuring {unit.path}, which may run again in backward")
            known[kind] = []
            with contextlib.suppress(torch.OutOfMemoryError, RekindleError, RuntimeError):
                known[kind] = again_ways(unit, s.device, options.cost)
        made[id(unit)] = known[kind]
    return made


def _saved(found: Sequence[Way]) -> int:
    """Bytes held that the ways of a part can save, or, where that is more, bytes of its peak."""
    held = [w.figures.held_bytes for w in found]
    peaks = [w.figures.backward_bytes for w in found]
    return max(held[0] - min(held), peaks[0] - min(peaks))
