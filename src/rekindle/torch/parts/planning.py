"""Plans the parts of a model under one goal: find them, search their ways, divide the goal among them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ...compiling import CompileOptions
from ...errors import InfeasibleBudget, ParityError, RekindleError, TraceError
from ...parts.plan import PartsPlan
from .. import accept
from ..compiled.stage import Stage
from ..measure.as_before import as_before
from ..measure.caches import matter, without_caches
from ..measure.measured_step import Subject
from ..serve.verify import subject
from ..tensors.precision import deterministic
from ..tensors.sharded import class_name
from ..ways import compiled_finding
from ..ways.finding import Finder, Found
from . import known_plans, words
from .compiled_search import compiled_choices, is_far
from .dividing import Dividing, PartsRequest
from .searching import search

log = logging.getLogger("rekindle")


def plan_parts(request: PartsRequest, found: Found | None = None, keeps_caches: bool | None = None) -> PartsPlan:
    """The plans of a model's parts under one goal. The model is left as it was.

    found : its parts; None: they are looked for. keeps_caches : whether the step makes key-value caches; None: as it must.

    Raises
    ------
    TraceError : no part can be planned, or one that the user names.
    UsageError : no plan of the submodules that the user names saves memory.
    InfeasibleBudget : no division keeps the budget in a measured step.
    ParityError : a step with planned parts does not give the plain step's numbers.
    """
    begin, how = time.monotonic(), request.captured
    s = subject(request.model, request.sample, None, how.gradients, how.unused_by_parts)
    kept = as_before(request.model, s.sample.tensors, fake=s.fake is not None)
    # Under that flag torch compiles other kernels, and compiled parts train without it.
    alike = contextlib.nullcontext() if how.compile is not None else s.fake or deterministic()
    with accept.gradients_on(), kept, alike:
        keeps = matter(s) if keeps_caches is None else keeps_caches
        with without_caches(request.model, keeps):
            found = found or find(request, s)
            path = None if how.compile is None else known_plans.place(request, s, found)
            if (known := known_plans.recall(path, request, time.monotonic() - begin)) is not None:
                return known
            if how.compile is not None:
                choices = compiled_choices(s, found, request.options, how.compile, request.named is not None)
            else:
                choices = search(s, found, request.options, request.check)
            choices = replace(choices, keeps_caches=keeps)
        if keeps:
            found.plain.insert(0, "layers that fill a key-value cache (config.use_cache=False lets them be planned)")
        if not choices.units:
            raise words.nothing(found.plain, request.error, how.compile is not None)
        tried = [Dividing(request, s, found, choices)]
        if (in_one := _in_one_piece(request, s, found, keeps)) is not None:
            tried.append(in_one)
        plan = _better(tried, begin) if len(tried) > 1 else tried[0].plan(begin)
        if not any(is_far(d.apart) for d in tried):  # else the next start should warn again
            known_plans.keep(path, plan)
        return plan


def _in_one_piece(request: PartsRequest, s: Subject, found: Found, keeps_caches: bool) -> Dividing | None:
    """The model compiled in one piece, if its stages are unlike each other: they then save no time of compilation, and each
    border between two costs kernels that one piece fuses. None: three stages are equal, or it fails in one piece."""
    kinds = Counter(u.module.kind for u in found.units if isinstance(u.module, Stage))
    if found.staged is None or len(found.stages) == 1 or max(kinds.values()) > 2:
        return None
    options, how = request.options, request.captured
    try:
        with without_caches(request.model, keeps_caches):
            whole = compiled_finding.in_one_piece(s, how, options.progress)
            choices = compiled_choices(s, whole, options, how.compile or CompileOptions(), False)
    except Exception as e:  # the compiler's errors have no common class, and one piece may not fit the device
        log.debug("the model does not compile in one piece: %s", e)
        return None
    return Dividing(request, s, whole, replace(choices, keeps_caches=keeps_caches)) if choices.units else None


def _better(tried: Sequence[Dividing], begin: float) -> PartsPlan:
    """The better of several plans: of two that keep a budget the one whose parts take less time, else the one of the lower
    peak. Times are those that were measured of the ways, and remembered, so that the next start takes the same one.

    Raises
    ------
    RekindleError : none of them can be made; as of the first.
    """
    made: list[tuple[Dividing, PartsPlan]] = []
    errors: list[RekindleError] = []
    for dividing in tried:
        dividing.eager = tried[0].eager
        try:
            made.append((dividing, dividing.plan(begin)))
        except (InfeasibleBudget, ParityError) as e:
            errors.append(e)
        except Exception as e:  # in one piece the step may not fit the device, or fail in the compiler
            if not made and not errors:
                raise
            log.debug("no plan of the model in one piece: %s", e)
    if not made:
        raise errors[0]
    if any(d.keeps_goal for d, _ in made):
        made = [(d, p) for d, p in made if d.keeps_goal]
    if len(made) == 1:
        return made[0][1]
    if not made[0][0].has_limit:
        return min((p for _, p in made), key=lambda p: p.peak_bytes)
    return min(made, key=lambda x: x[0].seconds)[1]


def find(request: PartsRequest, s: Subject) -> Found:
    """The parts of the model of a request.

    Raises
    ------
    TraceError, UsageError : as `plan_parts`.
    """
    try:
        if request.captured.compile is not None:
            return compiled_finding.find(s, request.named, request.captured, request.options.progress)
        return Finder(s, request.options, request.captured, request.named, request.error).find()
    except RekindleError:
        raise
    except Exception as e:  # the module itself fails on the sample
        if request.error is not None:
            raise request.error from None
        raise TraceError(
            f"{class_name(request.model)} itself fails on this sample: {type(e).__name__}: {e}. Give a sample that "
            "model(…) works on"
        ) from None
