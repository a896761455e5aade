"""Plans the parts of a model under one goal: find them, search their ways, divide the goal among them. Of the processes of a
distributed run, the first that asks makes the plan, and the others bind and check it.

Plans of compiled stages are remembered on disk: the next start of the same script compiles, measures and compares nothing. One
JSON file per request, in the folder `parts` of the cache folder ($REKINDLE_CACHE or ~/.cache/rekindle), is named by a digest of
all on which the plan depends: the request, torch, the device, and the code and shapes of every stage. A file that is damaged
counts as absent and is replaced; if the folder cannot be used, nothing is remembered.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ...ask import PlanOptions
from ...compiling import CompileOptions
from ...errors import FormatError, InfeasibleBudget, ParityError, PlanMismatch, RekindleError, TraceError, UsageError
from ...model import formats, options_file
from ...model.cache_folder import cache_folder
from ...parts.files import parts_plan_from_json
from ...parts.plan import PartsPlan
from ...planning.remembered import digest, read, write
from ...saying.notices import warn
from ...saying.progress import announce
from .. import accept
from ..compiled.saving import VERSION as SAVING_VERSION
from ..compiled.stage import Stage
from ..costs.cache import environment
from ..measure.as_before import as_before
from ..measure.caches import matter, without_caches
from ..measure.measured_step import Calls, Subject, run
from ..serve.verify import require, subject
from ..tensors import ranks, tree
from ..tensors.precision import deterministic
from ..tensors.sharded import any_fully_sharded, class_name
from ..trace import plain_forward
from ..ways import compiled_finding
from ..ways.finding import Finder, Found
from . import words
from .applied import Replan
from .dividing import Dividing, PartsRequest, held_throughout
from .searching import compiled_choices, is_far, search
from .verify import verify

log = logging.getLogger("rekindle")
FORMAT = "rekindle.remembered_parts/1"
VERSION = 2  # raise it whenever a request leads to another plan: plans that are older are then not used
_SHARDED = itertools.count()  # each plan of a sharded model is made anew: how it is sharded is not in the question


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
            path = None if how.compile is None else _place(request, s, found)
            if (known := _recalled(path, request, time.monotonic() - begin)) is not None:
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
            write(path, {"format": FORMAT, "plan": plan.to_json(), "offer": plan.offer})
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
    made = [(d, p) for d, p in made if d.goal == d.options.goal] or made  # others are of least memory
    if len(made) == 1:
        return made[0][1]
    if not made[0][0].goal.is_budget:
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


def _place(request: PartsRequest, s: Subject, found: Found) -> Path | None:
    """The file of the plan for a request whose stages were found.

    None : such a plan is not remembered, as where parts of forward run outside of stages.
    """
    folder, o = cache_folder("parts"), request.options
    if not o.cache or not request.check or request.turns is not None or found.staged is None or folder is None:
        return None
    stages = [(u.path, u.module.kind) for u in found.units if isinstance(u.module, Stage)]
    made_by = [VERSION, SAVING_VERSION, environment(s.device)]
    return folder / digest([made_by, question(request), held_throughout(request, s), stages, found.staged.graphs])


def _recalled(path: Path | None, request: PartsRequest, seconds: float) -> PartsPlan | None:
    """The plan in the file; None: there is none. seconds : what it took to ask."""
    found = read(path, FORMAT, partial(_plan, request.options))
    if found is None:
        return None
    return replace(found, asked=request.options, captured=request.captured, solve_seconds=seconds)


def _plan(asked: PlanOptions, r: formats.Reader) -> PartsPlan:
    offer = r.doc.get("offer")
    if offer is not None and (not isinstance(offer, list) or [type(x) for x in offer] != [int, float]):
        raise FormatError(f"{r.where} offers {offer!r}")
    plan = parts_plan_from_json(r.table("plan"), r.where)
    if plan.goal != asked.goal and not asked.or_least:
        raise FormatError(f"{r.where} holds a plan for another goal")
    return replace(plan, offer=None if offer is None else (offer[0], offer[1]))


def question(request: PartsRequest) -> dict[str, Any]:
    """All on which the plans depend, but for measured costs and the state of the model: processes should not differ there."""
    options, captured = request.options, request.captured
    args, kwargs = accept.sample(request.sample)
    tensors = tree.flatten((args, kwargs))[0]
    return {
        "model": hashlib.sha256(repr(_shapes(request.model)).encode()).hexdigest(),
        "inputs": [[[*t.shape], str(t.dtype), t.device.type, t.requires_grad] for t in tensors],
        "arguments": [len(args), *kwargs], "goal": options.goal.to_json(), "solver": options.solver, "cost": options.cost,
        "options": options_file.to_json(options, captured), "check": request.check, "named": request.named,
        "fake": subject(request.model, request.sample).fake is not None,
    }  # fmt: skip


def _shapes(model: nn.Module) -> Sequence[Any]:
    modules = [(name, type(m).__qualname__, m.training) for name, m in model.named_modules()]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [*modules, *((k, tuple(t.shape), str(t.dtype), t.device.type, t.requires_grad) for k, t in tensors)]


def parts_for_all(request: PartsRequest) -> PartsPlan:
    """The plans of parts that every process gets that asks for the same: a model of the same shapes, inputs and options.

    A process whose model turns out to be another one warns, and plans by itself. Raises as `plan_parts`.
    """
    if any_fully_sharded(request.model):
        return _parts_of_sharded(request)
    found = ranks.once(
        "the plans of parts", question(request), lambda: plan_parts(request), PartsPlan.to_json, request.options.report
    )
    if not isinstance(found, ranks.Received):
        return found
    try:
        return bound_here(request, parts_plan_from_json(found.answer, "the plans of parts of another process"))
    except RekindleError as e:
        warn(
            f"the plans of parts that another process made do not fit the {class_name(request.model)} of this one, which "
            f"plans by itself, so plans differ from process to process: {e}"
        )
        return plan_parts(request)


def _parts_of_sharded(request: PartsRequest) -> PartsPlan:
    """The same for a model that `fully_shard` has sharded. All processes run each step together: while the first one measures
    planned steps, the others take plain ones, in which the same pieces of parameters and gradients travel.

    Raises
    ------
    UsageError : the model is made of fake tensors.
    RekindleError : as `plan_parts`.
    """
    model, how = request.model, request.captured
    s = subject(model, request.sample, None, how.gradients, how.unused_by_parts)
    if s.fake is not None:
        raise UsageError(
            f"{class_name(model)} is sharded and made of fake tensors, which no process can send; plan it before fully_shard"
        )
    alike = deterministic() if how.compile is None else contextlib.nullcontext()
    with accept.gradients_on(), as_before(model, s.sample.tensors), alike:
        keeps = matter(s)
        with without_caches(model, keeps):
            found = find(request, s)
        turns = ranks.Turns(lambda: run(s, plain_forward(model), "plain", Calls.HELD))
        made = ranks.once(
            "the plans of parts", question(request) | {"inputs": [], "sharded": next(_SHARDED)},
            lambda: plan_parts(replace(request, turns=turns), found, keeps), PartsPlan.to_json, request.options.report, turns,
        )  # fmt: skip
    if not isinstance(made, ranks.Received):
        return made
    plan = parts_plan_from_json(made.answer, "the plans of parts of another process")
    try:
        return _with_traces(plan, request, found)
    except PlanMismatch:  # the inputs of this process have other shapes
        return _carried_over(plan, request, found)


def bound_here(request: PartsRequest, plan: PartsPlan) -> PartsPlan:
    """The plans, bound to this process's model and checked by measured steps.

    Raises
    ------
    RekindleError : they do not fit the model, do not give the plain step's numbers, or exceed the budget here.
    """
    s, found = subject(request.model, request.sample, gradients=request.captured.gradients), Found()
    if request.captured.compile is None:  # compiled parts have no traces
        with (
            accept.gradients_on(),
            as_before(request.model, s.sample.tensors, fake=s.fake is not None),
            s.fake or deterministic(),
            without_caches(request.model, plan.keeps_caches),
        ):
            found = find(request, s)
    bound = _with_traces(plan, request, found)
    if request.check and s.fake is None:
        announce(request.options.progress, "checking the plans of another process by a measured step")
        require(verify(request.model, request.sample, bound), "the step with planned parts", bound)
    return bound


def _with_traces(plan: PartsPlan, request: PartsRequest, found: Found) -> PartsPlan:
    """The plans with the traces of this process.

    Raises
    ------
    PlanMismatch : a part has another graph here, or must not run again.
    """
    parts = []
    for part in plan.parts:
        units = [u for u in found.units if u.path == part.path]
        if part.again and all(u.trace is not None for u in units):
            raise PlanMismatch(f"{part.path!r} cannot run again in backward here")
        traces = {u.trace.graph.hash: u.trace for u in units[::-1] if u.trace is not None}  # of equal graphs, the first
        if any(p.graph_hash not in traces for p in part.plans):
            raise PlanMismatch(f"{part.path!r} has another graph here")
        bound = [replace(p, trace=traces[p.graph_hash].with_graph(p.graph)) for p in part.plans]
        parts.append(replace(part, plans=tuple(bound)))
    return replace(plan, parts=tuple(parts), captured=request.captured)


def _carried_over(plan: PartsPlan, request: PartsRequest, found: Found) -> PartsPlan:
    """The same schedules for other shapes; where one does not keep its goal there, one that holds as small a share.

    Raises
    ------
    PlanMismatch : a part cannot be captured here.
    """
    parts = []
    for part in plan.parts:
        traces = [u.trace for u in found.units if u.path == part.path and u.trace is not None]
        if not traces:
            raise PlanMismatch(f"{part.path!r} cannot be captured here, but in another process it can")
        replan = Replan(part.plans)
        parts.append(replace(part, plans=tuple(replan(t, request.options, ()).plan for t in traces)))
    return replace(plan, parts=tuple(parts), captured=request.captured)
