"""Plans of compiled stages, remembered on disk: the next start of the same script compiles, measures and compares nothing.

One JSON file per request, in the folder `parts` of the cache folder ($REKINDLE_CACHE or ~/.cache/rekindle). Its name is a
digest of everything that the plan depends on: the request, torch, the device, and the code and shapes of every stage. A file
that is damaged counts as absent and is replaced; if the folder cannot be used, nothing is remembered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ...ask import PlanOptions
from ...errors import FormatError
from ...model import formats, options_file
from ...model.cache_folder import cache_folder
from ...parts.files import parts_plan_from_json
from ...parts.plan import PartsPlan
from ..compiled.saving import VERSION as SAVING_VERSION
from ..compiled.stage import Stage
from ..costs.cache import environment
from ..measure.measured_step import Subject
from ..serve.verify import subject
from ..tensors import tree
from ..trace import call_arguments
from ..ways.finding import Found
from ..ways.known_ways import digest, read, write
from .dividing import PartsRequest, held_throughout

FORMAT = "rekindle.remembered_parts/1"
VERSION = 2  # raise it whenever a request leads to another plan: plans that are older are then not used


def place(request: PartsRequest, s: Subject, found: Found) -> Path | None:
    """The file of the plan for a request whose stages were found.

    None : such a plan is not remembered, as where parts of forward run outside of stages.
    """
    folder, o = cache_folder("parts"), request.options
    if not o.cache or not request.check or request.turns is not None or found.staged is None or folder is None:
        return None
    stages = [(u.path, u.module.kind) for u in found.units if isinstance(u.module, Stage)]
    made_by = [VERSION, SAVING_VERSION, environment(s.device)]
    return folder / digest([made_by, question(request), held_throughout(request, s), stages, found.staged.graphs])


def recall(path: Path | None, request: PartsRequest, seconds: float) -> PartsPlan | None:
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


def keep(path: Path | None, plan: PartsPlan) -> None:
    """Write the plan to the file."""
    if path is not None:
        write(path, {"format": FORMAT, "plan": plan.to_json(), "offer": plan.offer})


def question(request: PartsRequest) -> dict[str, Any]:
    """All on which the plans depend, but for measured costs and the state of the model: processes should not differ there."""
    options, captured = request.options, request.captured
    args, kwargs = call_arguments(request.sample)
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
