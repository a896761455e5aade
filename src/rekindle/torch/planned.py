"""A module's forward that runs plans: one per kind of call and state of the module, the module's own forward where none
applies."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from .. import notices
from ..ask import PlanOptions
from ..budget import Goal, format_bytes
from ..errors import InfeasibleBudget, PlanMismatch, RekindleError, TraceError, UsageError
from ..graph import Graph
from ..plan import Plan
from ..simulate import simulate
from . import call as calls
from . import tree, trial, unused
from .bound import Bound, answered
from .call import Call, Key
from .changing import changed_numbers, numbers_of
from .guards import Expected, Guards
from .known import Question
from .mismatch import check_same_module, mismatch
from .numbers import Place, matches, name_of, numbers_in, read, replaced
from .trace import LOCK, Trace, known_options, trace_call

log = logging.getLogger("rekindle")
NEW_SHAPE = ("plan", "plain", "error")
MOST = 8  # plans for calls of the same shapes that ran at most TWICE each; then something varies from call to call
TWICE = 2  # a plan that ran more often is no waste: a rate that changes with each epoch may go on changing
MOST_KEPT = 16  # plans in all; the one that was used longest ago goes
MOST_TRIES = 3  # states of the module in which one call could not be planned, after which it is not tried again
Replan = Callable[[Trace, PlanOptions], Plan]
_busy = threading.local()
_FREE = contextlib.nullcontext()


class PlannedForward:
    """What `apply` puts in the place of a module's forward.

    plain : the module's own forward. plan : the plan that `apply` was given. last : what ran last.
    """

    def __init__(self, model: nn.Module, plan: Plan, on_new_shape: str, replan: Replan, check: bool = True):
        if on_new_shape not in NEW_SHAPE:
            raise UsageError(f"on_new_shape={on_new_shape!r} is unknown; choose one of {', '.join(NEW_SHAPE)}")
        self._model = weakref.ref(model)  # the module holds this object; the other way would make a cycle
        own = model.__dict__.get("forward")
        self._own: Callable[..., Any] | None = own._own if isinstance(own, PlannedForward) else own
        self.plan, self.on_new_shape, self._replan, self.check = plan, on_new_shape, replan, check
        self.options = plan.options
        # hooks that do more than compute, of which the user was warned when the plan was made
        self._accepted = set() if plan.trace is None else set(plan.trace.lowered.captured.effects)
        self.trace_options = known_options(plan)
        # by call; the plans of one call are for different states of the module, or values of its inputs
        self._bound: dict[Key, list[Bound]] = {}
        self._plain: dict[Key, list[Guards]] = {}  # calls that cannot be planned, by states of the module
        self._unlike_file: list[tuple[Key, Expected, list[Question]]] = []  # calls that a plan from a file is not for
        # places of numbers that are inputs of plans, and of those that cannot be
        self._changing: dict[tuple[Place, ...], None] = {}
        self._fixed: set[tuple[Place, ...]] = set()
        self._told: set[str] = set()
        self._used = self._off = False
        self._turn = 0
        self._pending = plan.trace is None
        self.last: Bound | None = None
        if plan.trace is not None:
            check_same_module(model, plan.trace)
            self._bind(model, plan.trace, plan)

    def serve_too(self, model: nn.Module, plan: Plan) -> None:
        """Run this plan as well, for the calls that it was made for."""
        self._bind(model, plan.trace, plan)

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

    @property
    def source(self) -> str:
        """Python source of the program that ran last, or will run first; "" while a plan from a file waits for a call."""
        bound = self.last or next(self.bounds, None)
        return "" if bound is None else bound.runner.program.source

    @property
    def bounds(self) -> Iterator[Bound]:
        """Every plan on the module, as it is bound."""
        return itertools.chain(*self._bound.values())

    @property
    def __signature__(self) -> inspect.Signature:
        """Of the module's own forward: training loops ask for it to know which columns of a batch to pass."""
        return inspect.signature(self.plain)

    @property
    def plain(self) -> Callable[..., Any]:
        model = self._model()
        assert model is not None
        return self._own if self._own is not None else type(model).forward.__get__(model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or self._off or getattr(_busy, "capturing", False):
            return self.plain(*args, **kwargs)
        model = self._model()
        caller = sys._getframe(1)
        called = caller.f_locals.get("self") if caller.f_globals is vars(torch_module) else None
        if called is not None and called is not model:  # a shallow copy of the module, which has this forward too
            return type(called).forward.__get__(called)(*args, **kwargs)
        if model is None:
            raise RekindleError("the planned module is gone; this forward is no more than what ran its plan")
        if not self._used:
            self._used = True
            unused.used(model)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            self._tell(f"{type(model).__name__} was called under a transform of torch.func: it runs plain there")
            return self.plain(*args, **kwargs)
        call = calls.bind(self.plain, args, kwargs)
        key = call.key
        with LOCK if LOCK.taken else _FREE:  # a module that another thread is looking at is in no state to be called
            bound = self._planned_for(model, key, call)
        if bound is None and model.training:
            with LOCK:
                bound = self._planned_for(model, key, call) or self._new_call(model, key, call, args, kwargs)
        if bound is None:
            return self.plain(*args, **kwargs)
        if bound.runner.rounds and any(b.runner.waits for b in self.bounds):
            self._tell(
                f"{type(model).__name__} was called again before the backward of an earlier call. Where one backward goes "
                f"through both, the gradients of {bound.runner.rounds} are added up in another order than eager's: they are "
                "equal up to rounding, not bit for bit. Call backward once for each call, or rekindle.restore(model)",
                kind="two calls",
            )  # fmt: skip
        self.last = bound
        self._turn += 1
        bound.turn = self._turn
        bound.uses += 1
        return bound(model, call)

    def _planned_for(self, model: nn.Module, key: Key, call: Call) -> Bound | None:
        for k in (key, *(self._key_with(places, call) for places in self._changing)):
            family = self._bound.get(k, [])
            for i, b in enumerate(family):
                if b.serves(model, call):
                    if i:
                        family.insert(0, family.pop(i))  # likely the next one too
                    return b
        return None

    @staticmethod
    def _key_with(places: tuple[Place, ...], call: Call) -> Key:
        """The key of the call, whatever the numbers at these places are."""
        given = numbers_in(call.spec)
        return replace(call, spec=replaced(call.spec, {p: type(given[p]) for p in places if p in given})).key

    # -- a call that no plan is for --------------------------------------------------------------------------------
    def _new_call(self, model: nn.Module, key: Key, call: Call, args: Any, kwargs: Any) -> Bound | None:
        """A plan for it; None: it runs plain."""
        begin = time.perf_counter()
        found = None
        if self._pending and not self._is_unlike_file(model, key, call):
            found, like = self._alike(model, args, kwargs, self.plan.graph_hash)
            if like is not None:
                self._pending = False
                self._check_goal(like)
                return self._bind(model, like, self.plan)
            asked = found.lowered.captured.questions
            if not asked or self.on_new_shape == "error":
                raise PlanMismatch(mismatch(self.plan.graph, found.graph))
            # The plan may be for other answers: it waits for a call that gives them.
            self._unlike_file.append((key, Expected.of(model), asked))
        failed = self._plain.get(key, ())
        if len(failed) >= MOST_TRIES or any(g.hold(model) for g in failed):
            return None
        family = list(self._bound.get(key, ()))
        what = f"{type(model).__name__} was called with inputs {call.shapes or 'without tensors'}"
        if self.on_new_shape != "plan" and not family:
            self._refused(model, key, what, "(or modes, dtypes, constants)")
            return None
        if not _trains(model, call.tensors):
            return None
        if known := self._with_changing_numbers(model, key, call, args, kwargs, what, begin):
            return known
        if varying := self._varying(key, call):
            self._leave_plain(model, None, f"{what}; {varying}")
            return None
        try:
            found = found or self._trace(model, args, kwargs)
            if effects := [x for x in found.lowered.captured.effects if x not in self._accepted]:
                raise TraceError(f"planned steps would not do what {', '.join(effects)} do beside computing")
            plan = self._plan_for(found, family, what)
            bound = None if plan is None else self._bind(model, found, plan)
        except Exception as e:  # also one that nobody foresaw: a run that has gone well so far goes on
            if self.on_new_shape == "error":
                raise
            why = str(e) if isinstance(e, RekindleError) else f"{type(e).__name__}: {e}"
            self._leave_plain(model, key, f"{what}, for which there is no plan, and none can be made: {why}")
            return None
        if bound is None:
            self._refused(model, key, what, "in another state of its attributes, hooks or inputs' values,")
            self._leave_plain(model, key, "")
            return None
        if wrong := self._tried(model, bound, call):
            self._bound[key].remove(bound)
            self._leave_plain(model, key, f"{what}; a plan for it did not give the plain step's numbers ({wrong})")
            return None
        self._say_planned(bound, family, what, model, time.perf_counter() - begin)
        return bound

    def _with_changing_numbers(
        self, model: nn.Module, key: Key, call: Call, args: Any, kwargs: Any, what: str, begin: float
    ) -> Bound | None:
        """A plan of the same graph with Python numbers among its inputs, where they are all in which this call differs from
        one that was planned; None where that cannot be."""
        found = next(filter(None, (changed_numbers(model, key, call, b) for b in self.bounds)), None)
        if found is None or found[1] in self._fixed:
            return None
        like, places = found
        numbers = read(places, call.spec, model)
        before = numbers_of(like, places)
        traced = None
        if numbers is not None and before is not None:
            with contextlib.suppress(TraceError):
                traced = self._trace(model, args, kwargs, inputs=numbers)
        if traced is None or traced.graph.hash != like.trace.graph.hash:
            self._fixed.add(places)
            return None
        held = traced.lowered.captured
        if set(held.effects) - self._accepted or not matches(
            held, like.trace.lowered.captured, held.numbers, before or {}
        ):
            self._fixed.add(places)
            return None
        bound = self._bind(model, traced, like.plan)
        if not bound.serves(model, call) or self._tried(model, bound, call):
            self._bound[traced.key].remove(bound)
            self._fixed.add(places)
            return None
        self._changing[places] = None
        names = ", ".join(name_of(p, call.spec) for p in places)
        notices.say(
            f"{what}: {names} {'is an input' if len(places) == 1 else 'are inputs'} of its plan from now on, "
            f"made in {time.perf_counter() - begin:.1f} s", aloud=self.options.progress is not False,
        )  # fmt: skip
        return bound

    def _plan_for(self, found: Trace, family: list[Bound], what: str) -> Plan | None:
        """The plan of a graph that is the same as one that was planned, else a new one; None: that was not asked for."""
        known = [b.plan for b in (*family, *self.bounds)]
        same = next((p for p in known if p.graph_hash == found.graph.hash and _keeps_goal(p, found.graph)), None)
        if same is not None or self.on_new_shape != "plan":
            return same
        options = self.options
        try:
            return self._replan(found, options)
        except InfeasibleBudget as e:
            least = self._replan(found, replace(options, goal=Goal(least_memory=True)))
            self._tell(
                f"{what}, whose step cannot stay within {format_bytes(e.budget)}: it runs by the plan of least memory, "
                f"{format_bytes(least.peak_bytes)}"
            )
            return least

    def _refused(self, model: nn.Module, key: Key, what: str, how: str) -> None:
        if self.on_new_shape == "error":
            raise PlanMismatch(
                f"{what} {how} for which there is no plan; plan for them, or apply with on_new_shape='plan' or 'plain'"
            )
        self._tell(f"{what} for which there is no plan; such calls run plain, with nothing recomputed", kind="no plan")

    def _leave_plain(self, model: nn.Module, key: Key | None, why: str) -> None:
        """Run this call plain, and its like from now on where a key is given."""
        if why:
            self._tell(f"{why}; such calls run plain, with nothing recomputed")
        if key is not None:
            self._let_go()
            self._plain.setdefault(key, []).append(Guards(model, Expected.of(model)))

    def _varying(self, key: Key, call: Call) -> str:
        """Why so many plans were made for calls of the same shapes that another one is not worth it; "" where they were not."""
        shapes, constants, _ = key
        alike = [k for k in self._bound if k[0] == shapes]
        failed = [k for k in self._plain if k[0] == shapes]
        count = sum(b.uses <= TWICE for k in alike for b in self._bound[k]) + len(failed)
        if count < MOST:
            return ""
        names = [
            str(name)
            for name, values in _by_name([k[1] for k in [*alike, *failed]] + [constants])
            if len(set(values)) > 1
        ]
        model = self._model()
        assert model is not None
        if not names:
            names = list(
                dict.fromkeys(d for b in self._bound.get(key, ()) for d in b.trace.expected.differences(model))
            )
        return f"{', '.join(names) or 'the values of its inputs'} differ from call to call: {count} plans were tried"

    def _say_planned(self, bound: Bound, family: list[Bound], what: str, model: nn.Module, seconds: float) -> None:
        why = family[0].trace.expected.differences(model) if family else []
        how = f", {' and '.join(why[:2])} having changed" if why else ""
        again = any(b.plan is bound.plan for b in self.bounds if b is not bound)
        did = "took over the plan of the same graph" if again else "planned anew"
        notices.say(
            f"{what}{how}: {did} in {seconds:.1f} s, {bound.plan.sentence}", aloud=self.options.progress is not False
        )

    def _tried(self, model: nn.Module, bound: Bound, call: Call) -> str:
        """Differences of the new plan's step from the plain one; "" where nothing differs or that was not to be checked."""
        if not self.check or bound.trace.fake or _communicates(bound.trace.graph):
            return ""
        with capturing():
            return "; ".join(trial.differences(model, self.plain, bound, call))

    # -- what both need ----------------------------------------------------------------------------------------------
    def _is_unlike_file(self, model: nn.Module, key: Key, call: Call) -> bool:
        return any(
            key == k and not expected.differences(model) and answered(asked, call.tensors)
            for k, expected, asked in self._unlike_file
        )

    def _alike(self, model: nn.Module, args: Any, kwargs: Any, graph_hash: str) -> tuple[Trace, Trace | None]:
        """The call's trace, and the one whose graph has that hash: the same, or where forward asks for values of inputs, the
        one without them, as on fake tensors; None: neither."""
        found = self._trace(model, args, kwargs)
        if found.graph.hash == graph_hash:
            return found, found
        if found.lowered.captured.questions:
            with contextlib.suppress(TraceError):
                general = self._trace(model, args, kwargs, by_values=False)
                if general.graph.hash == graph_hash:
                    return found, general
        return found, None

    def _trace(
        self, model: nn.Module, args: Any, kwargs: Any, by_values: bool = True, inputs: dict[Place, Any] | None = None
    ) -> Trace:
        with capturing():  # who has wrapped this forward may lead back here
            return trace_call(
                model, args, kwargs, self.trace_options, forward=self.plain, by_values=by_values, inputs=inputs,
                progress=self.options.progress if callable(self.options.progress) else None,
            )  # fmt: skip

    def _check_goal(self, found: Trace) -> None:
        """A file cannot know what the module at hand holds and what its operators need: say where the budget is not kept."""
        limit = self.plan.goal.budget
        if limit is None:
            return
        peak = simulate(found.graph, self.plan.schedule, self.plan.cost).peak_bytes
        if peak > limit:
            self._tell(
                f"the plan's file says that its step takes {format_bytes(self.plan.peak_bytes)}, but with what "
                f"{found.module_name} holds here it takes {format_bytes(peak)}, above its budget of {format_bytes(limit)}; "
                "make the plan again"
            )

    def _bind(self, model: nn.Module, traced: Trace, plan: Plan) -> Bound:
        dropped = tree.opaque_kinds(traced.lowered.captured.output_spec)
        if dropped:
            log.warning(
                "results of type %s hold state for later calls, not gradients; planned calls return None in their place",
                ", ".join(sorted(set(dropped))),
            )
        bound = Bound(model, traced, plan)
        if len(every := list(self.bounds)) >= MOST_KEPT:
            oldest = min(every, key=lambda b: b.turn)
            self._bound[oldest.trace.key].remove(oldest)
        self._let_go()
        self._bound = {k: family for k, family in self._bound.items() if family}
        self._bound.setdefault(traced.key, []).insert(0, bound)
        return bound

    def _let_go(self) -> None:
        """The module is in a new state: submodules and attributes of earlier ones shall not live on for their plans."""
        for b in self.bounds:
            b.let_go()
        for g in itertools.chain(*self._plain.values()):
            g.let_go()

    def _tell(self, line: str, kind: str = "") -> None:
        """A warning that is given once."""
        if (kind or line) not in self._told:
            self._told.add(kind or line)
            notices.warn(line)

    @contextlib.contextmanager
    def untold(self) -> Iterator[None]:
        """Meanwhile nothing is told: a check calls the module in ways of its own."""
        before, self._told = self._told, _Everything()
        try:
            yield
        finally:
            self._told = before

    # -- copies ------------------------------------------------------------------------------------------------------
    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedForward:
        """The copied module gets its own planned forward."""
        model = self._model()
        twin = memo.get(id(model))
        copied = object.__new__(PlannedForward)
        copied.__dict__.update(self.__dict__)
        copied._bound, copied._plain, copied._unlike_file, copied.last = {}, {}, [], None
        copied._told, copied._changing, copied._fixed = set(self._told), dict(self._changing), set(self._fixed)
        if twin is not None:
            copied._model = weakref.ref(twin)
            copied._rebind = list(self.bounds)  # type: ignore[attr-defined]
            copied.__class__ = _Copied
        return copied

    def __reduce__(self) -> Any:
        raise pickle.PicklingError(
            "a planned module cannot be pickled; call rekindle.restore(model) first, or save model.state_dict()"
        )


class _Everything(set[str]):
    """A set that has every string in it."""

    def __contains__(self, x: object) -> bool:
        return True


class _Copied(PlannedForward):
    """A planned forward right after deepcopy: the copy's submodules exist only once the copying is over."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        assert model is not None
        self.__class__ = PlannedForward  # type: ignore[assignment]
        for b in reversed(self.__dict__.pop("_rebind")):
            self._bind(model, b.trace, b.plan)
        return self(*args, **kwargs)


_PLANNED: weakref.WeakKeyDictionary[nn.Module, PlannedForward] = weakref.WeakKeyDictionary()


def planned_forward(model: nn.Module) -> PlannedForward | None:
    """The planned forward of a module, also where somebody has wrapped it since; None: the module has no plan."""
    forward = model.__dict__.get("forward")
    if isinstance(forward, PlannedForward):
        return forward
    found = _PLANNED.get(model)
    return None if found is None or found._off else found


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Meanwhile planned forwards of this thread run plain: they are being looked at."""
    before = getattr(_busy, "capturing", False)
    _busy.capturing = True
    try:
        yield
    finally:
        _busy.capturing = before


@contextlib.contextmanager
def set_aside(model: nn.Module) -> Iterator[None]:
    """Meanwhile the module runs plain also where somebody has wrapped its planned forward: another plan is made for it."""
    planned = planned_forward(model)
    if planned is None:
        yield
        return
    planned._off = True
    unused.used(model)
    try:
        yield
    finally:
        planned._off = False
        if not planned._used:
            unused.watch(model)


def _trains(model: nn.Module, tensors: list[torch.Tensor]) -> bool:
    return any(p.requires_grad for p in model.parameters()) or any(t.requires_grad for t in tensors)


def _communicates(graph: Graph) -> bool:
    """Whether a step talks to other processes, which would not answer a trial of this one alone."""
    return any("c10d" in op.name for op in graph.ops) and torch.distributed.is_available()


def _keeps_goal(plan: Plan, graph: Graph) -> bool:
    """Whether the plan's budget is kept with what the module of that graph holds during the step."""
    budget = plan.goal.budget
    return budget is None or simulate(graph, plan.schedule, plan.cost).peak_bytes <= budget


def _by_name(constants: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """(parameter of forward, what calls gave for it)."""
    tables = [dict(zip(names or (), values, strict=False)) for _, names, values, *_ in constants]
    for name in dict.fromkeys(k for t in tables for k in t):
        yield name, [t.get(name) for t in tables]
