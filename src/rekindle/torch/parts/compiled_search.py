"""Measures the ways of each part that torch.compile runs: one measurement for each kind of part, whatever the depth."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from ...ask import PlanOptions
from ...compiling import IN_SLICES, OF_PARTS, OF_WHOLE, CompileOptions
from ...errors import TraceError, UsageError
from ...printed import first_line
from ...saying import notices
from ...saying.progress import announce
from ..compiled.compiled_forward import not_compiled
from ..compiled.stage import Stage
from ..compiled.whole_graph import WHOLE
from ..costs.allocations import recording_is_safe
from ..measure.measured_step import Outcome, Subject
from ..rewrite.closeness import EXACT_MOST, Loose, difference, least_scale
from ..tensors.sharded import class_name
from ..ways import known_ways
from ..ways.compiled_finding import Kinds
from ..ways.compiled_ways import HALF_APART_MOST, QUICK, Measured, compiled_ways, held_uncompiled
from ..ways.finding import Found, Unit
from .choices import Choices
from .searching import ALIKE_LEAST_SHARE


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
    """What may differ by rounding between a step in other ways and the one with every part compiled as it is: all numbers, by
    twice what the latter is away from eager, and no less than in other steps."""
    most = max(EXACT_MOST, 2 * (apart or 0.0))
    return Loose(frozenset(ours.gradients), True, True, frozenset(ours.written), most)


def farthest(one: Outcome, other: Outcome) -> float:
    """The largest difference of losses and gradients of two steps, relative to the largest element of the tensor."""
    least = least_scale(other.gradients.values())
    pairs = [(one.loss, other.loss), *((one.gradients.get(k), g) for k, g in other.gradients.items())]
    return max((difference(a, b, least) for a, b in pairs if a is not None and b is not None), default=0.0)
