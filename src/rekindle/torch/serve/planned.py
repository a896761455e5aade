"""The forward of a planned module: runs the plan for the call, or the module's own forward if no plan applies."""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from ...model.plan import Plan
from ...parts.plan import PartsPlan
from ...planning import plan_files
from .. import private
from ..run import shared_casts
from ..run.bound import BoundPlan
from ..run.own_forward import SwitchedForward, runs_plain_in
from ..situation import module_call as calls
from ..situation.module_call import ModuleCall
from ..tensors.lock import LOCK
from ..trace import Trace
from . import unused
from .refusals import NewCall
from .replanner import First, Replan, Replanner
from .said_once import left_over

NEW_SHAPE = ("plan", "plain", "error")
WHERE = "the plan of a pickled module"


class PlannedForward(SwitchedForward):
    """The object that `apply` puts in place of a module's forward. It holds one plan per kind of call and state of the module.

    plain : the module's own forward. plan : the plan that `apply` was given. last : the plan that ran last, as it is bound.
    is_checked : whether a check calls the module.
    """

    def __init__(
        self, model: nn.Module, plan: Plan, on_new_shape: str, replan: Replan, check: bool = True, first: First = None
    ):
        super().__init__(model)
        self._begin(Replanner(model, plan, on_new_shape, replan, check, first), in_eval=not model.training)

    def _begin(self, replanner: Replanner, in_eval: bool) -> None:
        self._replanner = replanner
        self._in_eval = in_eval  # then calls in `eval()` are planned as well
        self._steps_in_eval = unused.StepCount()
        self._used = self.is_checked = False
        self._turn = 0
        self._unbound: list[tuple[Trace, Plan]] = []  # plans of a copy, whose submodules exist only after the copying
        self.last: BoundPlan | None = None
        self.share_memory: list[weakref.ref[nn.Parameter]] = []  # parameters elsewhere that use memory of this module's

    def serve_too(self, model: nn.Module, plan: Plan) -> None:
        """Run this plan as well, for the calls that it was made for."""
        self._replanner.serve_too(model, plan)

    def join(self, other: PlannedForward, whole: PartsPlan) -> None:
        """Be a part of the same model as another one. whole : the plan of that model."""
        self._replanner.join(other._replanner, whole)

    def take_over(self, model: nn.Module) -> None:
        """Become the module's forward."""
        super().take_over(model)
        _PLANNED[model] = self
        unused.watch(model)

    def give_back(self, model: nn.Module) -> None:
        """Put the module's own forward back. If something has wrapped this one, it runs plain from now on."""
        unused.used(model)
        shared_casts.forget(model.parameters())
        _PLANNED.pop(model, None)
        super().give_back(model)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, calls run plain, even if something has wrapped this forward."""
        model = self._model()
        if model is not None:
            unused.used(model)
        try:
            with super().aside():
                yield
        finally:
            if model is not None and not self._used:
                unused.watch(model)

    @property
    def plan(self) -> Plan:
        return self._replanner.plan

    @property
    def source(self) -> str:
        """Python source of the program that ran last, or will run first; "" while a plan from a file waits for a call."""
        bound = self.last or next(self.bounds, None)
        return "" if bound is None else bound.runner.program.source

    @property
    def bounds(self) -> Iterator[BoundPlan]:
        """Every plan on the module, as it is bound."""
        return iter(self._replanner.plans)

    @private.opaque_to_compile
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if LOCK.mine:  # this thread is capturing a module, and a wrapper of this forward may call it
            return self.plain(*args, **kwargs)
        caller, model = private.caller(), self._model()
        with LOCK.call(model):  # a module that another thread plans must not be called
            called = caller.f_locals.get("self") if caller.f_globals is vars(torch_module) else None
            if called is not None and called is not model and (model is None or type(called) is type(model)):
                # called through a shallow copy of the module, which shares this forward: run the plain forward on the copy
                return (self._own or type(called).forward.__get__(called))(*args, **kwargs)
            plain = self.plain
            assert model is not None
            if not torch.is_grad_enabled() or self.is_off:
                self.tally.idle += not self.is_off
                return plain(*args, **kwargs)
            found = self._bound_for(model, plain, args, kwargs)
            if found is not None:
                share_memory = [p for ref in self.share_memory if (p := ref()) is not None]
                if self.copies is None:
                    result = found[0](model, found[1], self, share_memory)
                else:
                    run = functools.partial(found[0], model, found[1], self, share_memory)
                    result = self.copies.run(model, (args, kwargs), run)
                if found[0].had_gradient is not None:
                    self._say_of_gradients(model, found[0])
                return result
            result = plain(*args, **kwargs)
            shared_casts.join_plain(model.parameters())
            if not model.training and not self._in_eval:
                self._steps_in_eval.watch(result)
            return result

    def _bound_for(
        self, model: nn.Module, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[BoundPlan, ModuleCall] | None:
        """(the plan that runs the call, the call); None: the call runs plain."""
        if not self._used and not self.is_checked:
            self._used = True
            self._replanner.new_shapes.begin()
            unused.used(model)
        replanner, name = self._replanner, type(model).__name__
        if where := runs_plain_in():
            self._say_plain(f"{name} was called {where}: it runs plain there")
            return None
        call = calls.bind(plain, args, kwargs)
        call = replace(call, inside=True) if self.inside else call
        may_plan = model.training or self._in_eval
        if odd := call.odd:
            new = NewCall(model, plain, call, (), time.perf_counter())
            if may_plan and new.trains:
                replanner.leave_plain(new, f" and {odd}, which cannot be planned")
                self.tally.add_plain(*replanner.why)
            else:
                self.tally.idle += 1
            return None
        if self._unbound:
            self._bind_copied(model)
        key = call.key
        bound = replanner.plans.find(model, key, call)
        if bound is None and may_plan:
            if (why := replanner.refusals.hold(model, key)) is not None:
                self._say_plain(*why)
                return None
            new = NewCall(model, plain, call, key, time.perf_counter())
            if new.trains:  # without gradients there is nothing to save
                with LOCK.capturing(model):
                    bound = replanner.plans.find(model, key, call)
                    if bound is None:
                        with _own_saved_tensors():
                            bound = replanner.new_plan(new)
                if bound is None:
                    self.tally.add_plain(*replanner.why)
                    return None
        if bound is None:
            if not may_plan and self._steps_in_eval.count >= unused.CALLS_BEFORE_WARNING:
                self._say_plain(
                    f"{name} is trained in eval(), and its plan was made for train(): such steps run plain, with nothing "
                    "recomputed. Plan it while it is in eval(), or call train() first",
                    kind="eval",
                )
            else:
                self.tally.idle += 1
            return None
        if bound.plan.stays_plain:
            self.tally.add_plain(f"{name} takes no more memory without its plan, as was measured", "stays plain")
            return None
        if bound.runner.rounds and any(b.runner.waiting for b in self.bounds):
            replanner.warned.warn(
                f"{name} was called again before the backward of an earlier call. Where one backward goes "
                f"through both, the gradients of {bound.runner.rounds} are added up in another order than eager's: they are "
                "equal up to rounding, not bit for bit. Call backward once for each call, or rekindle.restore(model)",
                kind="two calls",
            )  # fmt: skip
        self.last = bound
        self.tally.ran += 1
        self._turn += 1
        bound.turn = self._turn
        bound.uses += 1
        return bound, call

    def _say_plain(self, line: str, kind: str = "") -> None:
        """Count a call that runs plain, and warn once."""
        self.tally.add_plain(line, self._replanner.warned.warn(line, kind))

    def _say_of_gradients(self, model: nn.Module, bound: BoundPlan) -> None:
        """Say once that the loop keeps or drops gradients where the plan counts on the opposite."""
        traced = bound.trace
        if bound.had_gradient and traced.options.gradients != "kept":
            self._replanner.warned.warn(
                left_over(model, traced.options.gradients, traced.gradient_bytes), kind="gradients"
            )
        saved = "" if bound.had_gradient or bound.plan.trace is None else bound.plan.trace.saved
        if saved and len(bound.runner.waiting) == 1 and not self.is_checked:  # the backward of earlier calls is over
            self._replanner.say(f"{type(model).__name__}: its loop leaves no gradients from step to step; {saved}")

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Inside, no warnings are given and calls do not count: a check calls the module in its own ways."""
        before, self.is_checked = self.is_checked, True
        uses = {b: b.uses for b in self.bounds}
        try:
            with self._replanner.warned.mute(), unused.paused(), self.tally.paused():
                yield
        finally:
            self.is_checked = before
            for b in self.bounds:
                b.uses = uses.get(b, 0)

    # -- copies ------------------------------------------------------------------------------------------------------
    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedForward:
        """The copied module gets its own planned forward."""
        copied = super().__deepcopy__(memo)
        copied._replanner, copied._steps_in_eval, copied.last = self._replanner.copied(), unused.StepCount(), None
        copied.share_memory = []
        copied._unbound = [*((b.trace, b.plan) for b in self.bounds), *self._unbound]
        twin = memo.get(id(self._model()))
        if twin is not None and not copied.is_off:
            _PLANNED[twin] = copied
        return copied

    # -- pickles -----------------------------------------------------------------------------------------------------
    def _pickled(self) -> Any:
        r = self._replanner
        return [p.to_text() for p in r.given], r.on_new_shape, r.replan, r.check, self._in_eval, self.is_off

    def _unpickle(self, pickled: Any) -> None:
        texts, on_new_shape, replan, check, in_eval, is_off = pickled
        model = self._model()
        assert model is not None
        first, *others = map(from_text, texts)
        replanner = Replanner(model, first, on_new_shape, replan, check)
        for plan in others:
            replanner.serve_too(model, plan)
        replanner.loaded.travelled = True
        self._begin(replanner, in_eval)
        self.is_off = is_off
        if not is_off:
            _PLANNED[model] = self

    def _bind_copied(self, model: nn.Module) -> None:
        with LOCK.capturing(model):
            for traced, plan in reversed(self._unbound):
                self._replanner.bind(model, traced, plan)
            self._unbound = []


def _own_saved_tensors() -> contextlib.AbstractContextManager[Any]:
    """Inside, hooks on saved tensors (of torch.utils.checkpoint around the call, say) do not see what steps of planning save.
    Without such hooks nothing is set, since torch.func in forward refuses to work with any."""
    if not private.saved_tensors_hooks_are_set():
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


_PLANNED: weakref.WeakKeyDictionary[nn.Module, PlannedForward] = weakref.WeakKeyDictionary()


@functools.lru_cache(maxsize=64)
def from_text(text: str) -> Plan:
    """The plan, checked as the plan of a file is. Equal layers of a model have equal plans, which are read once.

    Raises
    ------
    FormatError : the text is damaged or foreign, or claims other figures than its schedule has.
    """
    return plan_files.from_text(text, WHERE)


def planned_forward(model: nn.Module) -> PlannedForward | None:
    """The planned forward of a module, even if something has wrapped it since; None: the module has no plan."""
    forward = model.__dict__.get("forward")
    if isinstance(forward, PlannedForward):
        return forward
    found = _PLANNED.get(model)
    return None if found is None or found.is_off else found


@contextlib.contextmanager
def set_aside(model: nn.Module) -> Iterator[None]:
    """Inside, the module runs plain, so that another plan can be made for it."""
    planned = planned_forward(model)
    with contextlib.nullcontext() if planned is None else planned.aside():
        yield
