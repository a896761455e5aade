"""Plans for calls that no plan is for, made in the middle of a run: what a file brings, the plan of the same graph, the same
plan with numbers among its inputs, a new plan. Each is tried on the call before it is in use."""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ... import notices
from ...ask import Goal, PlanOptions
from ...errors import InfeasibleBudget, PlanMismatch, RekindleError, TraceError
from ...model.graph import Graph
from ...model.judge import simulate
from ...model.plan import Plan
from ...sizes import format_bytes
from ..capture import tree
from ..capture.guards import Expected
from ..capture.module_call import Key, ModuleCall
from ..capture.number_places import name_of, read
from ..capture.numbers import Place
from ..capture.questions import Question
from ..capture.same_graph import matches
from ..trace import Trace, known_options, trace_call
from . import trial
from .bound import Bound, answered
from .changing import changed_numbers, numbers_of
from .mismatch import check_same_module, mismatch
from .plans import Plans
from .refusals import Refusals
from .told import Told

log = logging.getLogger("rekindle")
Replan = Callable[[Trace, PlanOptions], Plan]


@dataclass(frozen=True)
class NewCall:
    """A call that no plan is for.

    model, plain : the module and its own forward. key : of the call. began : when work on it began, in seconds on a clock.
    """

    model: nn.Module
    plain: Callable[..., Any]
    call: ModuleCall
    key: Key
    began: float

    @property
    def words(self) -> str:
        """The call, to be read by people."""
        given = f"with inputs {self.call.shapes}" if self.call.tensors else "without tensors"
        return f"{type(self.model).__name__} was called {given}"

    @property
    def trains(self) -> bool:
        """Whether anything requires grad."""
        return any(p.requires_grad for p in self.model.parameters()) or any(t.requires_grad for t in self.call.tensors)

    @property
    def took(self) -> float:
        """Seconds since work on it began."""
        return time.perf_counter() - self.began


class Planner:
    """Makes plans for one module.

    plan : the one that `apply` was given. plans : where it puts them. told : by which it warns. refusals : calls that are
    known to run plain.
    """

    def __init__(self, model: nn.Module, plan: Plan, on_new_shape: str, replan: Replan, check: bool):
        self.plan, self.on_new_shape, self._replan, self._check = plan, on_new_shape, replan, check
        self._options = plan.options
        self.plans, self.told = Plans(), Told()
        self.refusals = Refusals(self.plans)
        # hooks that do more than compute, of which the user was warned when the plan was made
        self._accepted = set() if plan.trace is None else set(plan.trace.lowered.captured.effects)
        self._trace_options = known_options(plan)
        self._unlike_file: list[tuple[Key, Expected, list[Question]]] = []  # calls that the loaded plan does not fit
        self._fixed: set[tuple[Place, ...]] = set()  # places of numbers that cannot be inputs
        self._pending = plan.trace is None  # from a file: it waits for its call
        self._first_is_over = False  # the call that sets attributes which later calls find, while a loaded plan waits
        if plan.trace is not None:
            check_same_module(model, plan.trace)
            self.bind(model, plan.trace, plan)

    def copied(self) -> Planner:
        """For a copy of the module, without plans."""
        twin = copy.copy(self)
        twin.plans, twin.told, twin._unlike_file = Plans(), self.told.copied(), []
        twin.plans.changing = dict(self.plans.changing)
        twin.refusals, twin._fixed = Refusals(twin.plans), set(self._fixed)
        return twin

    def bind(self, model: nn.Module, traced: Trace, plan: Plan) -> Bound:
        """Let the plan serve the module."""
        dropped = tree.opaque_kinds(traced.lowered.captured.output_spec)
        if dropped:
            log.warning(
                "results of type %s hold state for later calls, not gradients; planned calls return None in their place",
                ", ".join(sorted(set(dropped))),
            )
        bound = Bound(model, traced, plan)
        self._let_go()
        self.plans.add(bound)
        return bound

    def new_plan(self, new: NewCall) -> Bound | None:
        """A plan for the call; None: it runs plain.

        Raises
        ------
        PlanMismatch : the call is not what the loaded plan is for, or has no plan and is to be an error.
        """
        if once := new.call.used_up:
            self.leave_plain(new, f"; {', '.join(once)} can be read only once, and planning would read it: pass a list")
            return None
        try:
            found, bound = self._from_file(new)
            if bound is None and found is not None and self._comes_first(found):
                self._first_is_over = True
                self._say(
                    f"{new.words}: it sets attributes that later calls find. It runs plain, and the loaded plan is for those"
                )
                return None
            return bound or self._planned(new, found)
        except Exception as e:  # also one that nobody foresaw: a run that has gone well so far goes on
            if self.on_new_shape == "error" or isinstance(e, PlanMismatch) and new.model.training:
                raise
            why = str(e) if isinstance(e, RekindleError) else f"{type(e).__name__}: {e}"
            self.leave_plain(new, f", for which there is no plan, and none can be made: {why}")
            self._remember(new)
            return None

    def leave_plain(self, new: NewCall, why: str, kind: str = "") -> None:
        """Say that the call runs plain.

        Raises
        ------
        PlanMismatch : such calls are to be errors.
        """
        if self.on_new_shape == "error":
            raise PlanMismatch(f"{new.words}{why}; apply with on_new_shape='plan' or 'plain' to run such calls plain")
        self.told.tell(f"{new.words}{why}; such calls run plain, with nothing recomputed", kind)

    # -- what a file brings ------------------------------------------------------------------------------------------
    def _from_file(self, new: NewCall) -> tuple[Trace | None, Bound | None]:
        """(the call's trace, the loaded plan where it is for that)"""
        if not self._pending or self._is_unlike_file(new):
            return None, None
        found, like = self._alike(new)
        if like is not None:
            self._pending = False
            self._check_goal(like)
            return found, self.bind(new.model, like, self.plan)
        if self._comes_first(found):
            return found, None
        asked = found.lowered.captured.questions
        if not asked or self.on_new_shape == "error":
            raise PlanMismatch(mismatch(self.plan.graph, found.graph))
        # The plan may be for other answers: it waits for a call that gives them.
        self._unlike_file.append((new.key, Expected.of(new.model), asked))
        return found, None

    def _comes_first(self, found: Trace) -> bool:
        """Whether the call may be the first of a module that sets attributes then, for which no plan was loaded."""
        return self._pending and not self._first_is_over and found.lowered.captured.settles

    def _is_unlike_file(self, new: NewCall) -> bool:
        return any(
            new.key == k and not expected.differences(new.model) and answered(asked, new.call.tensors)
            for k, expected, asked in self._unlike_file
        )

    def _alike(self, new: NewCall) -> tuple[Trace, Trace | None]:
        """The call's trace, and the one whose graph is the loaded plan's: the same, or where forward asks for values of inputs,
        the one without them, as on fake tensors; None: neither."""
        found, wanted = self._trace(new), self.plan.graph_hash
        if found.graph.hash == wanted:
            return found, found
        if found.lowered.captured.questions:
            with contextlib.suppress(TraceError):
                general = self._trace(new, by_values=False)
                if general.graph.hash == wanted:
                    return found, general
        return found, None

    def _check_goal(self, found: Trace) -> None:
        """Warn where the loaded plan exceeds its budget with this module."""
        limit = self.plan.goal.budget
        if limit is None:
            return
        peak = simulate(found.graph, self.plan.schedule, self.plan.cost).peak_bytes
        if peak > limit:
            self.told.tell(
                f"the plan's file says that its step takes {format_bytes(self.plan.peak_bytes)}, but with what "
                f"{found.module_name} holds here it takes {format_bytes(peak)}, above its budget of {format_bytes(limit)}; "
                "make the plan again"
            )

    # -- a plan of its own -------------------------------------------------------------------------------------------
    def _planned(self, new: NewCall, found: Trace | None) -> Bound | None:
        """found : the call's trace, where there is one already."""
        family = self.plans.family(new.key)
        if self.on_new_shape != "plan" and not family:
            self._no_plan(new, "(or modes, dtypes, constants)")
            return None
        if known := self._with_changing_numbers(new):
            return known
        if varying := self.refusals.what_varies(new.model, new.key):
            self.leave_plain(new, f"; {varying}")
            return None
        found = found or self._trace(new)
        if effects := [x for x in found.lowered.captured.effects if x not in self._accepted]:
            raise TraceError(f"planned steps would not do what {', '.join(effects)} do beside computing")
        plan = self._plan_for(new, found)
        if plan is None:
            self._no_plan(new, "in another state of its attributes, hooks or inputs' values,")
            self._remember(new)
            return None
        why = family[0].trace.expected.differences(new.model) if family else []
        bound = self.bind(new.model, found, plan)
        if wrong := self._tried(new, bound):
            self.leave_plain(new, f"; a plan for it did not give the plain step's numbers ({wrong})")
            self._remember(new)
            return None
        how = f", {' and '.join(why[:2])} having changed" if why else ""
        again = any(b.plan is plan for b in self.plans if b is not bound)
        did = "took over the plan of the same graph" if again else "planned anew"
        self._say(f"{new.words}{how}: {did} in {new.took:.1f} s, {plan.sentence}")
        return bound

    def _with_changing_numbers(self, new: NewCall) -> Bound | None:
        """A plan of the same graph with Python numbers among its inputs, where they are all in which this call differs from
        one that was planned; None where that cannot be."""
        found = next(filter(None, (changed_numbers(new.model, new.key, new.call, b) for b in self.plans)), None)
        if found is None or found[1] in self._fixed:
            return None
        like, places = found
        bound = self._with_inputs(new, like, places)
        if bound is None:
            self._fixed.add(places)
            return None
        self.plans.changing[places] = None
        names = ", ".join(name_of(p, new.call.spec) for p in places)
        are = "is an input" if len(places) == 1 else "are inputs"
        self._say(f"{new.words}: {names} {are} of its plan from now on, made in {new.took:.1f} s")
        return bound

    def _with_inputs(self, new: NewCall, like: Bound, places: tuple[Place, ...]) -> Bound | None:
        """The plan `like` with the numbers at these places as inputs; None: they cannot be."""
        numbers, before = read(places, new.call.spec, new.model), numbers_of(like, places)
        if numbers is None or before is None:
            return None
        try:
            traced = self._trace(new, inputs=numbers)
        except TraceError:
            return None
        held, was = traced.lowered.captured, like.trace.lowered.captured
        same = traced.graph.hash == like.trace.graph.hash and matches(held, was, held.numbers, before)
        if not same or set(held.effects) - self._accepted:
            return None
        bound = self.bind(new.model, traced, like.plan)
        if not bound.serves(new.model, new.call):
            self.plans.remove(bound)
            return None
        return None if self._tried(new, bound) else bound

    def _plan_for(self, new: NewCall, found: Trace) -> Plan | None:
        """The plan of a graph that is the same as one that was planned, else a new one; None: on_new_shape forbids a new
        plan."""
        known = [b.plan for b in (*self.plans.family(new.key), *self.plans)]
        same = next((p for p in known if p.graph_hash == found.graph.hash and _keeps_goal(p, found.graph)), None)
        if same is not None or self.on_new_shape != "plan":
            return same
        try:
            return self._replan(found, self._options)
        except InfeasibleBudget as e:
            least = self._replan(found, replace(self._options, goal=Goal(least_memory=True)))
            self.told.tell(
                f"{new.words}, whose step cannot stay within {format_bytes(e.budget)}: it runs by the plan of least memory, "
                f"{format_bytes(least.peak_bytes)}"
            )
            return least

    # -- helpers -----------------------------------------------------------------------------------------------------
    def _trace(self, new: NewCall, by_values: bool = True, inputs: dict[Place, Any] | None = None) -> Trace:
        args, kwargs = new.call.arguments
        progress = self._options.progress
        return trace_call(
            new.model, args, kwargs, self._trace_options, forward=new.plain, by_values=by_values, inputs=inputs,
            progress=progress if callable(progress) else None,
        )  # fmt: skip

    def _tried(self, new: NewCall, bound: Bound) -> str:
        """Differences of the new plan's step from the plain one, for which the plan is dropped; "" where nothing differs or
        that was not to be checked."""
        if not self._check or bound.trace.fake or _communicates(bound.trace.graph):
            return ""
        wrong = "the trial failed"
        try:
            wrong = "; ".join(trial.differences(new.model, new.plain, bound, new.call))
        finally:
            if wrong:
                self.plans.remove(bound)
        return wrong

    def _no_plan(self, new: NewCall, how: str) -> None:
        if self.on_new_shape == "error":
            raise PlanMismatch(
                f"{new.words} {how} for which there is no plan; plan for them, or apply with on_new_shape='plan' or 'plain'"
            )
        self.leave_plain(new, " for which there is no plan", kind="no plan")

    def _remember(self, new: NewCall) -> None:
        """Run this call plain in the module's present state from now on."""
        self._let_go()
        self.refusals.add(new.model, new.key)

    def _let_go(self) -> None:
        """The module is in a new state: submodules and attributes of earlier ones shall not live on for their plans."""
        for b in self.plans:
            b.let_go()
        self.refusals.let_go()

    def _say(self, line: str) -> None:
        notices.say(line, aloud=self._options.progress is not False)


def _communicates(graph: Graph) -> bool:
    """Whether a step talks to other processes, which would not answer a trial of this one alone."""
    return any("c10d" in op.target for op in graph.ops) and torch.distributed.is_available()


def _keeps_goal(plan: Plan, graph: Graph) -> bool:
    """Whether the plan's budget is kept with what the module of that graph holds during the step."""
    budget = plan.goal.budget
    return budget is None or simulate(graph, plan.schedule, plan.cost).peak_bytes <= budget
