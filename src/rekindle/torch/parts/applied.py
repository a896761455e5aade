"""Puts the plans of parts on a model's submodules, and takes them off."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...ask import PlanOptions
from ...compiling import Compiled, CompileOptions
from ...errors import PlanMismatch
from ...model import formats
from ...model.plan import Plan
from ...model.schedule import Schedule
from ...parts.files import parts_plan_from_json
from ...parts.plan import PartsPlan
from ...parts.ways import Way, as_part_plan, figures, ways
from ...planning.carrying import ANOTHER_GRAPH, CARRIED, Replanned, carried
from ...saying import notices
from ...saying.sizes import format_bytes
from .. import private
from ..compiled.compiled_forward import CompiledForward
from ..compiled.stage import block_of
from ..compiled.whole_graph import WHOLE, StagedForward, staged
from ..costs.resident import gradient_bytes
from ..measure.caches import without_caches
from ..measure.recording import bytes_of
from ..offload.away import pool_of
from ..offload.part_copies import CallOrder, PartCopies
from ..operators.node_tensors import overlap
from ..run import stages
from ..run.own_forward import InPlaceOfForward, Tally
from ..serve import unused
from ..serve.planned import WHERE, PlannedForward, from_text, planned_forward
from ..serve.said_once import left_over
from ..serve.verify import Check
from ..tensors import tree
from ..tensors.lock import LOCK
from ..tensors.sharded import local
from ..trace import Trace
from ..ways.again import AgainForward

log = logging.getLogger("rekindle")


class PartsForward(InPlaceOfForward):
    """The forward of a model whose parts are planned: the model's own, which calls the planned parts.

    plain : the model's own forward. plan : the plans of all parts. watches : whether a step with larger inputs than those of
    the plan is warned of: each part then takes over its schedule, and the budget of the step is not divided again.
    """

    def __init__(self, model: nn.Module, plan: PartsPlan, watches: bool = False):
        super().__init__(model)
        self._watches, self._training = watches, model.training
        self._begin(plan)

    def _begin(self, plan: PartsPlan) -> None:
        self.plan = plan
        self.copies_of: Callable[[str], PartCopies | None] | None = None  # gives what copies for the part of a path
        self.staged: StagedForward | None = None  # made by the first call: a pickled module is not filled before
        self.tallies: dict[str, Tally] = {}  # path of a stage -> how often it ran; "" -> calls in stages
        self.waits: tuple[str, bool] | None = None  # arguments of `put_on`, to be called after a first call
        self.checked: Check | None = None  # of the step that `verify` measured last
        self._told = False  # the log, that the model makes no cache
        self._noted = False  # which parts share memory
        self._counts_on = "" if plan.captured.gradients == "kept" else plan.captured.gradients

    @private.not_traced_by_compile
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._watches and torch.is_grad_enabled() and not LOCK.mine:
            self._watch(args, kwargs)
        model = self._model()
        if model is None or not torch.is_grad_enabled():
            self.tally.idle += 1
            return self.plain(*args, **kwargs)
        if self.waits is not None and not LOCK.mine and model.training == self._training:
            return self._first(model, args, kwargs)
        if model.training != self._training:
            self.tally.idle += 1
        elif self.plan.stays_plain:
            self.tally.add_plain(f"{type(model).__name__}: {self.plan.in_vain}")
        else:
            self.tally.ran += 1
        if self._counts_on and any(p.grad is not None for p in model.parameters()) and not LOCK.mine:
            notices.warn(left_over(model, self._counts_on, gradient_bytes(model)))
            self._counts_on = ""
        if not self._noted:
            self.have_copies(model)
            _note_shared_memory(model)
            planned = [f for _, f in forwards_of(model) if isinstance(f, PartForward)]
            for f in planned:
                f.join(planned[0], self.plan)
            self._noted = True
        with without_caches(model, self.plan.keeps_caches) as makes_one:
            if makes_one and not self._told:
                self._told = True
                log.warning(
                    "config.use_cache of %s is True, but a step with planned parts makes no cache: past_key_values is None",
                    type(model).__name__,
                )
            return self.forward(*args, **kwargs)

    def put_on(self, model: nn.Module, on_new_shape: str, check: bool) -> None:
        """Put the plans of the parts on the submodules, unless these run plain. Raises as `apply_parts`."""
        if self.plan.stays_plain:
            return
        with without_caches(model, self.plan.keeps_caches):  # as in a step, for which the plans are
            forwards = _forwards(model, self.plan, on_new_shape, check)
        self.copies_of = copies_of(self.plan, model)
        for (module, forward), part in zip(forwards, self.plan.parts, strict=False):
            forward.copies = self.copies_of(part.path)
            forward.take_over(module)
            unused.used(module)  # a step may leave it out

    def _first(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The first call, after which the parts are put on."""
        line = "its first call sets state for later calls. It runs plain; its parts are planned for those"
        notices.say(f"{type(model).__name__}: {line}", aloud=self.plan.options.progress is not False)
        result = self.plain(*args, **kwargs)
        waits, self.waits = self.waits, None
        if waits is not None:  # else another thread has put them on meanwhile
            self.put_on(model, *waits)
        return result

    def have_copies(self, model: nn.Module) -> None:
        """Tell the parts of a model that was copied or pickled what copies for them. Raises as `copies_of`."""
        if self.copies_of is None:
            self.copies_of = copies_of(self.plan, model)
            for path, module in model.named_modules() if not self.plan.stages else ():
                if (forward := forward_of(module)) is not None:
                    forward.copies = self.copies_of(path)

    @property
    def forward(self) -> Callable[..., Any]:
        """The forward of a step with gradients: the model's own, which calls the parts, or its stages."""
        model = self._model()
        if not self.plan.stages or model is None:
            return self.plain
        if self.staged is None:
            how = self.plan.captured.compile or CompileOptions()
            in_one = self.plan.stages == (WHOLE,)
            self.staged = staged(model, how, self._own, self.plan.captured.unused_by_parts, in_one)
            self.staged.trains_in(self._training)
            ways = {p.path: Compiled(p.compiled.saves) for p in self.plan.parts if p.compiled is not None}
            self.staged.run_by(ways, self.plan.stages, self.copies_of or copies_of(self.plan, model), self.tallies)
        return self.staged

    def _watch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        model, known, now = self._model(), self.plan.input_bytes, bytes_of(tree.tensors_in((args, kwargs)))
        if model is None or model.training != self._training or known is None or now <= known:
            return
        self._watches = False
        notices.warn(
            f"{type(model).__name__} was called with larger inputs ({format_bytes(now)}) than its budget was divided for "
            f"({format_bytes(known)}): each part takes over its schedule, the budget is not divided again, and such a "
            "step may exceed it. Call rekindle.checkpoint with the largest inputs first"
        )

    def give_back(self, model: nn.Module) -> None:
        """Take the plans of all parts off, and put the model's own forward back."""
        for m, forward in forwards_of(model):
            forward.give_back(m)
        self.staged = None
        super().give_back(model)

    def __deepcopy__(self, memo: dict[int, Any]) -> PartsForward:
        copied = super().__deepcopy__(memo)
        copied.staged = copied.copies_of = None  # they are the first model's
        copied._noted, copied.tallies = False, {}
        return copied

    def _pickled(self) -> Any:
        return self.plan.to_text(), self._watches, self._training, self.waits

    def _unpickle(self, pickled: Any) -> None:
        text, self._watches, self._training, waits = pickled
        self._begin(parts_plan_from_json(formats.parse_json(text, WHERE), WHERE))
        self.waits = waits


class PartForward(PlannedForward):
    """The forward of one part of a model."""


Forward = PartForward | AgainForward | CompiledForward


def apply_parts(model: nn.Module, plan: PartsPlan, on_new_shape: str, check: bool, later: bool = False) -> nn.Module:
    """Put the plans on the model's submodules. If one cannot be put on, the model is as it was. later : put them on after the
    first call, which sets up what the plans are for.

    Raises
    ------
    PlanMismatch : the model has no submodule of that name, or one of other classes.
    RekindleError : the host does not have the memory that the plan copies to.
    """
    root = PartsForward(model, plan, on_new_shape == "plan" and plan.goal.is_budget)
    if later:
        root.waits = on_new_shape, check
    else:
        root.put_on(model, on_new_shape, check)
    root.take_over(model)
    return model


def _forwards(model: nn.Module, plan: PartsPlan, on_new_shape: str, check: bool) -> list[tuple[nn.Module, Forward]]:
    """Each planned submodule with its forward; of a plan in stages, none."""
    forwards: list[tuple[nn.Module, Forward]] = []
    for part in plan.parts:
        try:
            module = model.get_submodule(block_of(part.path) if plan.stages else part.path)
        except AttributeError:
            raise PlanMismatch(
                f"the plan is for a model with a submodule {part.path!r}, which this {type(model).__name__} does not have"
            ) from None
        if plan.stages:
            continue
        forward: Forward
        if (c := part.compiled) is not None:
            how = plan.captured.compile or CompileOptions()
            forward = CompiledForward(module, Compiled(c.saves), how, c.kind, plan.keeps_caches)
        elif part.again:
            forward = AgainForward(module, part.rule, plan.keeps_caches)
        else:
            forward = part_forward(module, part.plans, on_new_shape, check)
        forwards.append((module, forward))
    return forwards


def _note_shared_memory(model: nn.Module) -> None:
    """Tell each part of the parameters elsewhere that use memory of its own tensors (`b.weight.data = a.weight.data`).

    Hooks may write to them once their gradients are handed over, so that this waits for the part's last read.
    """
    at: dict[Any, list[nn.Parameter]] = {}
    for p in model.parameters():
        if p.requires_grad and p.layout is torch.strided:
            at.setdefault(local(p).untyped_storage()._cdata, []).append(p)
    for module, forward in forwards_of(model):
        own = {id(t): t for t in [*module.parameters(), *module.buffers()]}
        if isinstance(forward, PartForward):
            forward.share_memory = [
                weakref.ref(q) for t in own.values() if t.layout is torch.strided
                for q in at.get(local(t).untyped_storage()._cdata, ()) if id(q) not in own and overlap(local(q), local(t))
            ]  # fmt: skip


def copies_of(plan: PartsPlan, model: nn.Module) -> Callable[[str], PartCopies | None]:
    """Gives what copies to the host for the part of a path; None: nobody. The memory of the host is there.

    Raises
    ------
    RekindleError : the host does not have it.
    """
    if not (blocks := plan.host_blocks):
        return lambda path: None
    offloaded = {p.path: p.offloaded for p in plan.parts}
    most, order = plan.options.host_budget, CallOrder()
    device = next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    pool = pool_of(model, device)
    pool.reserve(blocks, most)
    return lambda path: PartCopies(offloaded.get(path), order, pool, most)


def part_forward(module: nn.Module, plans: Sequence[Plan], on_new_shape: str, check: bool) -> PartForward:
    """The planned forward of one part, with a plan for each kind of call."""
    first, *others = plans
    forward = PartForward(module, first, on_new_shape, Replan(plans), check)
    for p in others:
        forward.serve_too(module, p)
    return forward


def forwards_of(model: nn.Module) -> list[tuple[nn.Module, Forward]]:
    """The submodules, or stages of the forward, that are planned as parts, each with its forward."""
    root = parts_forward(model)
    stages = [] if root is None or root.staged is None else root.staged.stages
    return [(m, f) for m in (*model.modules(), *stages) if (f := forward_of(m)) is not None]


def forward_of(module: nn.Module) -> Forward | None:
    """The forward of a planned part, even if something has wrapped it since; None: the module is no planned part."""
    forward = module.__dict__.get("forward")
    found = forward if isinstance(forward, AgainForward | CompiledForward) else planned_forward(module)
    return found if isinstance(found, Forward) else None


def parts_forward(model: nn.Module) -> PartsForward | None:
    """The forward of a model whose parts are planned; None: it has no such plans."""
    forward = model.__dict__.get("forward")
    return forward if isinstance(forward, PartsForward) else None


@contextlib.contextmanager
def parts_taken_off(model: nn.Module, for_good: bool = True) -> Iterator[None]:
    """Inside, the model has no planned parts but those that it is given there. The earlier ones are back if an error leaves;
    without `for_good`, in any case."""
    root, before = parts_forward(model), list[tuple[nn.Module, Forward | PartsForward]]()
    if root is not None:
        before = [*forwards_of(model), (model, root)]
        root.give_back(model)
    try:
        yield
    except BaseException:
        for_good = False
        raise
    finally:
        if not for_good:
            if (inside := parts_forward(model)) is not None:
                inside.give_back(model)
            for m, forward in before:
                forward.take_over(m)


@contextlib.contextmanager
def parts_aside(model: nn.Module) -> Iterator[None]:
    """Inside, the parts run plain."""
    with contextlib.ExitStack() as stack:
        for _, forward in forwards_of(model):
            stack.enter_context(forward.aside())
        yield


class Replan:
    """Makes the plan of a part for another shape: a schedule of the part that is known, else one that holds as small a share
    of the plain bytes. The goal of the step is not divided again."""

    def __init__(self, plans: Sequence[Plan]):
        self._plans = list(plans)

    def __reduce__(self) -> Any:
        return _replan_from, ([p.to_text() for p in self._plans],)

    def __call__(self, traced: Trace, options: PlanOptions, known: Sequence[Plan]) -> Replanned:
        graph, finish = traced.graph, stages.finish(traced.lowered)
        for p in [*self._plans, *known]:
            schedule = carried(p.schedule, p.graph, graph)
            if schedule is not None:
                way = Way(schedule, figures(graph, schedule, options.cost))
                return Replanned(replace(as_part_plan(graph, way, options), trace=traced), CARRIED)
        share = min(_held_share(p) for p in self._plans)
        found = ways(graph, replace(options, effort="quick"), finish)
        most = share * found[0].figures.held_bytes
        few = [w for w in found if w.figures.held_bytes <= most]
        way = few[0] if few else min(found, key=lambda w: w.figures.held_bytes)
        return Replanned(replace(as_part_plan(graph, way, options), trace=traced), ANOTHER_GRAPH)


def _replan_from(texts: Sequence[str]) -> Replan:
    """The one that was pickled."""
    return Replan([from_text(t) for t in texts])


def _held_share(p: Plan) -> float:
    """Bytes that the plan holds from forward to backward, as a share of the plain step's."""
    own = figures(p.graph, p.schedule, p.cost).held_bytes
    plain = figures(p.graph, Schedule.baseline(p.graph), p.cost).held_bytes
    return own / plain if plain else 1.0
