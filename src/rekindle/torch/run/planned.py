"""A module's forward that runs plans: one per kind of call and state of the module, the module's own forward where none
applies."""

from __future__ import annotations

import contextlib
import copy
import inspect
import pickle
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from ...errors import RekindleError
from ...model.plan import Plan
from ..capture import module_call as calls
from ..capture import private
from ..capture.lock import LOCK
from ..capture.module_call import ModuleCall
from ..capture.surroundings import shares_casts
from ..trace import Trace
from . import unused
from .bound import Bound
from .new_call import NewCall, Planner, Replan

NEW_SHAPE = ("plan", "plain", "error")


class PlannedForward:
    """What `apply` puts in the place of a module's forward.

    plain : the module's own forward. plan : the plan that `apply` was given. last : what ran last.
    """

    def __init__(self, model: nn.Module, plan: Plan, on_new_shape: str, replan: Replan, check: bool = True):
        self._model = weakref.ref(model)  # the module holds this object; the other way would make a cycle
        own = model.__dict__.get("forward")
        self._own: Callable[..., Any] | None = own._own if isinstance(own, PlannedForward) else own
        self._planner = Planner(model, plan, on_new_shape, replan, check)
        self._in_eval = not model.training  # then calls in `eval()` are planned as well
        self._steps_in_eval = unused.Steps()
        self._used = self._off = self._checked = False
        self._turn = 0
        self._unbound: list[tuple[Trace, Plan]] = []  # of a copy: its submodules exist only once the copying is over
        self.last: Bound | None = None

    def serve_too(self, model: nn.Module, plan: Plan) -> None:
        """Run this plan as well, for the calls that it was made for."""
        self._planner.bind(model, plan.trace, plan)

    def take_over(self, model: nn.Module) -> None:
        """Become the module's forward."""
        self._off = False
        model.__dict__["forward"] = self
        _PLANNED[model] = self
        unused.watch(model)

    def give_back(self, model: nn.Module) -> None:
        """Put the module's own forward back. Where somebody has wrapped this one, it runs plain from now on."""
        self._off = True
        unused.used(model)
        _PLANNED.pop(model, None)
        if model.__dict__.get("forward") is self:
            del model.__dict__["forward"]
            if self._own is not None:
                model.__dict__["forward"] = self._own

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Meanwhile calls run plain, also where somebody has wrapped this forward."""
        model, before = self._model(), self._off
        self._off = True
        if model is not None:
            unused.used(model)
        try:
            yield
        finally:
            self._off = before
            if model is not None and not self._used:
                unused.watch(model)

    @property
    def is_off(self) -> bool:
        """Whether it was given back."""
        return self._off

    @property
    def plan(self) -> Plan:
        return self._planner.plan

    @property
    def source(self) -> str:
        """Python source of the program that ran last, or will run first; "" while a plan from a file waits for a call."""
        bound = self.last or next(self.bounds, None)
        return "" if bound is None else bound.runner.program.source

    @property
    def bounds(self) -> Iterator[Bound]:
        """Every plan on the module, as it is bound."""
        return iter(self._planner.plans)

    @property
    def __signature__(self) -> inspect.Signature:
        """Of the module's own forward: training loops ask for it to know which columns of a batch to pass."""
        return inspect.signature(self.plain)

    @property
    def plain(self) -> Callable[..., Any]:
        model = self._model()
        if model is None:
            raise RekindleError("the planned module was deleted; keep it to call its forward")
        return self._own if self._own is not None else type(model).forward.__get__(model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if LOCK.mine:  # this thread looks at a module, and whoever has wrapped this forward may lead back here
            return self.plain(*args, **kwargs)
        caller = sys._getframe(1)
        with LOCK.calls:  # a module that another thread looks at is in no state to be called
            model = self._model()
            called = caller.f_locals.get("self") if caller.f_globals is vars(torch_module) else None
            if called is not None and called is not model and (model is None or type(called) is type(model)):
                # a shallow copy of the module, which has this forward too; one of its own it would share plain as well
                return (self._own or type(called).forward.__get__(called))(*args, **kwargs)
            plain = self.plain
            assert model is not None
            if not torch.is_grad_enabled() or self._off:
                return plain(*args, **kwargs)
            found = self._bound_for(model, plain, args, kwargs)
            if found is not None:
                return found[0](model, found[1])
            result = plain(*args, **kwargs)
            if not model.training and not self._in_eval:
                self._steps_in_eval.watch(result)
            return result

    def _bound_for(
        self, model: nn.Module, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Bound, ModuleCall] | None:
        """The plan that the call is to run by, and the call; None: it runs plain."""
        if not self._used and not self._checked:
            self._used = True
            unused.used(model)
        planner, name = self._planner, type(model).__name__
        if where := _runs_plain_in():
            planner.told.tell(f"{name} was called {where}: it runs plain there")
            return None
        call = calls.bind(plain, args, kwargs)
        plans = model.training or self._in_eval  # whether a call without a plan gets one
        if odd := call.odd:
            new = NewCall(model, plain, call, (), time.perf_counter())
            if plans and new.trains:
                planner.leave_plain(new, f" and {odd}, which cannot be planned")
            return None
        if self._unbound:
            self._bind_copied(model)
        key = call.key
        bound = planner.plans.find(model, key, call)
        if bound is None and plans and not planner.refusals.hold(model, key):
            new = NewCall(model, plain, call, key, time.perf_counter())
            if new.trains:  # else there is nothing to save
                with LOCK:
                    bound = planner.plans.find(model, key, call)
                    if bound is None:
                        with _own_saved_tensors():
                            bound = planner.new_plan(new)
        if bound is None:
            if not plans and self._steps_in_eval.count >= unused.FEW:
                planner.told.tell(
                    f"{name} is trained in eval(), and its plan was made for train(): such steps run plain, with nothing "
                    "recomputed. Plan it while it is in eval(), or call train() first",
                    kind="eval",
                )
            return None
        shared = shares_casts()
        if (shared or bound.runner.rounds) and any(b.runner.waits for b in self.bounds):
            which = "parameters that autocast casts once for both" if shared else bound.runner.rounds
            planner.told.tell(
                f"{name} was called again before the backward of an earlier call. Where one backward goes "
                f"through both, the gradients of {which} are added up in another order than eager's: they are "
                "equal up to rounding, not bit for bit. Call backward once for each call, or rekindle.restore(model)",
                kind="two calls",
            )  # fmt: skip
        self.last = bound
        self._turn += 1
        bound.turn = self._turn
        bound.uses += 1
        return bound, call

    @contextlib.contextmanager
    def untold(self) -> Iterator[None]:
        """Meanwhile nothing is told, and calls do not count: a check calls the module in ways of its own."""
        before, self._checked = self._checked, True
        try:
            with self._planner.told.mute(), unused.paused():
                yield
        finally:
            self._checked = before

    # -- copies ------------------------------------------------------------------------------------------------------
    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedForward:
        """The copied module gets its own planned forward."""
        twin = memo.get(id(self._model()))
        copied = object.__new__(PlannedForward)
        copied.__dict__.update(self.__dict__)
        copied._planner, copied._steps_in_eval, copied.last = self._planner.copied(), unused.Steps(), None
        copied._unbound = [*((b.trace, b.plan) for b in self.bounds), *self._unbound]
        if twin is not None:
            copied._model = weakref.ref(twin)
            copied._own = copy.deepcopy(self._own, memo)  # a bound method of the module becomes the copy's
            if not copied._off:
                _PLANNED[twin] = copied
        return copied

    def _bind_copied(self, model: nn.Module) -> None:
        with LOCK:
            for traced, plan in reversed(self._unbound):
                self._planner.bind(model, traced, plan)
            self._unbound = []

    def __reduce__(self) -> Any:
        raise pickle.PicklingError(
            "a planned module cannot be pickled; call rekindle.restore(model) first, or save model.state_dict()"
        )


def _own_saved_tensors() -> contextlib.AbstractContextManager[Any]:
    """Meanwhile hooks on saved tensors (of torch.utils.checkpoint around the call, say) see nothing that steps of planning
    save. Where there are none none are set: torch.func, in forward, refuses to work with any."""
    if not private.saved_tensors_hooks_are_set():
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_itself, _itself)


def _itself(t: torch.Tensor) -> torch.Tensor:
    return t


def _runs_plain_in() -> str:
    """Where the call is made, in words, if planned steps do not serve that; "" elsewhere."""
    if private.in_func_transform():
        return "under a transform of torch.func"
    if private.in_forward_ad():
        return "in forward-mode automatic differentiation"
    if private.parametrizations_are_cached():
        return "under parametrize.cached(), which keeps values from call to call"
    return ""


_PLANNED: weakref.WeakKeyDictionary[nn.Module, PlannedForward] = weakref.WeakKeyDictionary()


def planned_forward(model: nn.Module) -> PlannedForward | None:
    """The planned forward of a module, also where somebody has wrapped it since; None: the module has no plan."""
    forward = model.__dict__.get("forward")
    if isinstance(forward, PlannedForward):
        return forward
    found = _PLANNED.get(model)
    return None if found is None or found.is_off else found


@contextlib.contextmanager
def set_aside(model: nn.Module) -> Iterator[None]:
    """Meanwhile the module runs plain: another plan is made for it."""
    planned = planned_forward(model)
    with contextlib.nullcontext() if planned is None else planned.aside():
        yield
