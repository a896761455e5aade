"""Searches the ways of each part: one search for each graph, one measured step for each kind of part without a graph, and one
measurement for each kind of part that torch.compile runs, whatever the depth."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ... import allowance
from ...ask import PlanOptions
from ...compiling import IN_SLICES, OF_PARTS, OF_WHOLE, CompileOptions
from ...errors import RekindleError, TraceError, UsageError
from ...parts.ways import Way, as_part_plan, ways
from ...printed import first_line
from ...saying import notices
from ...saying.progress import announce
from ..compiled.compiled_forward import not_compiled
from ..compiled.stage import Stage
from ..compiled.whole_graph import WHOLE
from ..costs.allocations import recording_is_safe
from ..measure import trial
from ..measure.measured_step import Outcome, Subject
from ..measure.recording import signature
from ..rewrite.closeness import EXACT_MOST, Loose, difference, least_scale
from ..run import stages
from ..run.bound import BoundPlan
from ..tensors.sharded import class_name
from ..trace import plain_forward
from ..ways import known_ways
from ..ways.compiled_finding import Kinds
from ..ways.compiled_ways import HALF_APART_MOST, QUICK, Measured, compiled_ways, held_uncompiled
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
    count = Counter(traced.graph.hash for _, traced in units)
    kinds = {traced.graph.hash: (u, traced) for u, traced in units[::-1]}  # the first unit of each graph
    sizes = {h: len(kinds[h][1].graph.ops) for h in count}
    for h, ops in sizes.items():
        unit, traced = kinds[h]
        announce(options.progress, f"searching plans for {unit.path} ({ops:,} ops)")
        limit = None if options.time_limit is None else options.time_limit * ops / sum(sizes.values())
        with allowance.part(ops / sum(n for k, n in sizes.items() if k not in known)):
            finish = stages.finish(traced.lowered)
            known[h] = ways(traced.graph, replace(options, time_limit=limit), finish, len(found.units))
    every = sum(n * known[h][0].figures.held_bytes for h, n in count.items())
    for h, n in count.items():
        unit, useful = kinds[h][0], known[h]
        saved, plain = _saved(useful), useful[0].figures
        few = saved < SAVED_LEAST_SHARE * max(plain.held_bytes, plain.backward_bytes)
        if few or n * saved < ALIKE_LEAST_SHARE * every:
            known[h] = []
        elif check and s.fake is None and (wrong := _wrong(unit, useful[smallest(useful)], options)):
            found.plain.append(f"{class_name(unit.module)} (its planned step {wrong})")
            known[h] = []
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


def compiled_choices(
    s: Subject, found: Found, options: PlanOptions, compile: CompileOptions, all_of_them: bool
) -> Choices:
    """The parts with the ways of each. A part that torch.compile cannot compile runs as it is, and `found.plain` says so.

    all_of_them : the user names the parts; else those that hold next to nothing are left out, since each kind takes seconds.
    """
    if s.device.type == "cpu" and not recording_is_safe():
        raise UsageError(
            "compile=True: ways are measured, and a profiler runs in another thread; stop it while this plans"
        )
    kinds, known, rows = Kinds(), dict[str, Measured | None](), []
    held: dict[str, int] = {}
    named = [(u, kind) for u in found.units if (kind := _kind(u, kinds, held, s.device, found))]
    count = Counter({kind: sum(max(u.calls, 1) for u, k in named if k == kind) for kind in held})
    every = sum(count[k] * n for k, n in held.items())
    begin = time.monotonic()
    for unit, kind in named:
        few, tried = (("min-cut", "blocks"), OF_WHOLE) if unit.path == WHOLE else (QUICK, OF_PARTS)
        saves = few if options.effort == "quick" else tried
        if not all_of_them and count[kind] * held[kind] < ALIKE_LEAST_SHARE * every:
            if found.staged is None:
                found.plain.append(f"{class_name(unit.module)} (holds next to nothing)")
                continue
            saves = saves[:1]  # a stage may take long, though it holds nothing
        if kind not in known:
            told = partial(_told, options, len(known), len(count), begin)
            stage = unit.module if isinstance(unit.module, Stage) else None
            saves = tuple(x for x in saves if x not in IN_SLICES or stage is not None and stage.has_slices(x))
            known[kind] = _measured(unit, kind, s, found, saves, replace(options, progress=told), compile)
        if (measured := known[kind]) is not None:
            rows.append((replace(unit, kind=kind), measured))
    made = Choices.of([(u, m.ways) for u, m in rows], options)
    return replace(made, compile=compile, eager_seconds=[m.eager_seconds for _, m in rows])


def _told(options: PlanOptions, done: int, kinds: int, begin: float, line: str) -> None:
    """Report a line with the number of the kind of parts that is measured, and the seconds that the others may take."""
    left = f", about {(time.monotonic() - begin) / done * (kinds - done):.0f} s left" if done else ""
    announce(options.progress, f"{line} ({done + 1} of {kinds} kinds of parts{left})")


def _kind(unit: Unit, kinds: Kinds, held: dict[str, int], device: torch.device, found: Found) -> str:
    """The kind of a part; "" of one that must run uncompiled, which `found.plain` names. held : kind -> bytes that such a part
    holds uncompiled; a new kind is added."""
    why = not_compiled(unit.module, vars(unit.module).get("forward"))
    try:
        if not why:
            kind = unit.module.kind if isinstance(unit.module, Stage) else kinds.of(unit)
            if kind not in held:
                held[kind] = held_uncompiled(unit, device)
            return kind
    except torch.OutOfMemoryError:
        raise
    except Exception as e:  # a part that works only inside of the model's step
        why = f"cannot run by itself: {type(e).__name__}"
    found.plain.append(f"{unit.name} ({why})")
    return ""


def _measured(
    unit: Unit, kind: str, s: Subject, found: Found, saves: Sequence[str], options: PlanOptions, compile: CompileOptions
) -> Measured | None:
    name = unit.name
    try:
        path = known_ways.place(unit, kind, s.device, compile, saves) if options.cache else None
        measured = known_ways.recall(path)
        if measured is None:
            measured = compiled_ways(unit, kind, s.device, compile, saves, options.progress)
            known_ways.keep(path, measured)
    except torch.OutOfMemoryError:
        raise
    except Exception as e:  # the compiler's own errors have no common class
        why = str(e) if isinstance(e, TraceError) else f"torch.compile fails: {type(e).__name__}: {first_line(e)[:120]}"
        found.plain.append(f"{name} ({why})")
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
    apart = farthest(found, eager)
    if is_far(apart):
        notices.warn(
            f"the step through torch.compile is {apart:.1e} of a tensor's largest element away from the step without it. "
            "rekindle.verify compares them; a plan without compile=True has the step's own numbers"
        )
    return found, apart


def is_far(apart: float | None) -> bool:
    """Whether the compiled step is so far from eager's that `reference` warns."""
    return apart is not None and apart > HALF_APART_MOST


def rounded(ours: Outcome, apart: float | None) -> Loose:
    """The numbers that may differ by rounding between a step in other ways and the one with every part compiled as it is: all,
    by twice the distance of the latter from eager, and no less than in other steps."""
    most = max(EXACT_MOST, 2 * (apart or 0.0))
    return Loose(frozenset(ours.gradients), True, True, frozenset(ours.written), most)


def farthest(one: Outcome, other: Outcome) -> float:
    """The largest difference of losses and gradients of two steps, relative to the largest element of the tensor."""
    least = least_scale(other.gradients.values())
    pairs = [(one.loss, other.loss), *((one.gradients.get(k), g) for k, g in other.gradients.items())]
    return max((difference(a, b, least) for a, b in pairs if a is not None and b is not None), default=0.0)
