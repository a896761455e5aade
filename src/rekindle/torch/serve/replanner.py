"""Plans for new calls, made in the middle of a run.

In this order: the plan from a file; the same plan with Python numbers among its inputs; the plan of the same graph; a new plan.
Each is tried on the call before it is used.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from ... import allowance
from ...ask import LeastMemory, PlanOptions
from ...errors import InfeasibleBudget, ParityError, PlanMismatch, RekindleError, TraceError, UsageError
from ...model.plan import Plan
from ...parts.plan import PartsPlan
from ...planning.carrying import ANOTHER_GRAPH, CARRIED, RECEIVED, SEARCHED, Replanned
from ...saying import notices
from ...saying.progress import announce, telling
from ...saying.sizes import format_bytes
from ..measure import trial
from ..measure.memory import old_objects_aside
from ..measure.variation import communicates
from ..measure.witness import Witness
from ..rewrite.rewritten import fitting, with_sums_here
from ..run.bound import BoundPlan
from ..situation.guards import Guards
from ..situation.module_call import Key
from ..situation.numbers import Place, name_of, read
from ..tensors import tree
from ..tensors.sharded import order_that_works, own_class, sharded_parameter
from ..trace import Trace, known_options
from .bound_plans import BoundPlans, changed_numbers, is_for_graph, matches, numbers_of
from .lengths import Lengths, covers
from .loaded_plan import LoadedPlans, check_same_module
from .refusals import NewCall, Refusals, fits_plain
from .said_once import NewShapes, WarnOnce

log = logging.getLogger("rekindle")
QUIET_S = 10.0  # before a line of progress: a training loop shows its own. A guess
FIXED_MOST = 64  # sets of numbers that cannot be inputs and are remembered; a guess
SAME = "of the same graph"
DID = {
    SAME: "took over the plan of the same graph",
    CARRIED: "carried over the plan of another shape",
    SEARCHED: "no known schedule keeps the goal, so planned anew, by a quick search,",
    RECEIVED: "took the plan of another process",
    ANOTHER_GRAPH: "another graph than those known, so planned anew, by a quick search,",
}  # how a plan was made -> words for it
First = Plan | PartsPlan | None  # the plan of a first call that another call may follow
Replan = Callable[[Trace, PlanOptions, Sequence[Plan]], Replanned]


class Replanner:
    """Makes plans for the new calls of one module, all with the options of the first plan.

    plan : the plan that `apply` was given. given : with the plans for other kinds of calls. first : the plan of a first call
    after which `plan` serves; `plan` itself: that call runs plain. on_new_shape, replan, check : how further plans are made.
    plans : the plans on the module. loaded : those that wait for a call. refusals : calls that are known to run plain.
    warned : the warnings that were given. why : why the last call without a plan runs plain, and the kind of that reason.
    """

    why = "", ""

    def __init__(
        self, model: nn.Module, plan: Plan, on_new_shape: str, replan: Replan, check: bool, first: First = None
    ):
        self.plan, self.on_new_shape, self.replan, self.check = plan, on_new_shape, replan, check
        self.given: tuple[Plan, ...] = (plan,)
        self._options = plan.options
        self.plans, self.warned = BoundPlans(), WarnOnce()
        self.refusals = Refusals(self.plans)
        self._lengths = Lengths()
        self.new_shapes = NewShapes(0.0 if plan.trace is None else plan.solve_seconds)
        self._whole: PartsPlan | None = None  # of the model whose part this module is
        self._left_out: set[str] = set()  # kinds of results that planned calls leave out, of which the log was told
        # hooks that do more than compute: the user was warned of them when the plan was made
        self._accepted = Counter(() if plan.trace is None else plan.trace.lowered.captured.effects)
        self._trace_options = known_options(plan)
        self.loaded = LoadedPlans(plan, self._trace_options, self._options)
        self._fixed: set[tuple[Place, ...]] = set()  # places of numbers that cannot be inputs
        self._too_large: list[Key] = []  # calls that cannot stay within the budget: larger ones are not searched for it
        self.first_is_plain = first is plan  # where it finds the module in another state than the plan's
        if plan.trace is not None:
            if first is None:  # the first call may delete modules
                check_same_module(model, plan.trace)
            self._lengths.add(plan.trace)
            self.bind(model, plan.trace, plan)
        if first is not None and first is not plan and first.kind == "step":
            self.serve_too(model, first)

    def serve_too(self, model: nn.Module, plan: Plan) -> None:
        """Run this plan as well, for the calls that it was made for."""
        if plan.trace is None:
            self.loaded.waiting.append(plan)
        else:
            self.bind(model, plan.trace, plan)
        self.given += (plan,)

    def copied(self) -> Replanner:
        """A replanner for a copy of the module; it has no plans yet."""
        twin = copy.copy(self)
        twin.plans, twin.warned, twin.loaded = BoundPlans(), copy.copy(self.warned), self.loaded.copied()
        twin.plans.changing = dict(self.plans.changing)
        twin._lengths, twin.new_shapes, twin._left_out = Lengths(), copy.copy(self.new_shapes), set(self._left_out)
        twin.refusals, twin._fixed = Refusals(twin.plans), set(self._fixed)
        return twin

    def join(self, other: Replanner, whole: PartsPlan) -> None:
        """Give warnings, and count the time that planning takes, together with another part of the same model."""
        self.new_shapes, self.warned, self._whole = other.new_shapes, other.warned, whole
        if self is other and self.plan.trace is not None:
            self.new_shapes.first_s = whole.solve_seconds

    def bind(self, model: nn.Module, traced: Trace, plan: Plan) -> BoundPlan:
        """Let the plan serve the module."""
        dropped = set(tree.opaque_kinds(traced.lowered.captured.output_spec)) - self._left_out
        if dropped:
            self._left_out |= dropped
            log.warning(
                "results of type %s hold state for later calls, not gradients; planned calls return None in their place",
                ", ".join(sorted(dropped)),
            )
        bound = BoundPlan(model, traced, plan, self.plans.guards(model, traced.expected))
        self._let_go(bound.guards)
        self.plans.add(bound)
        return bound

    def new_plan(self, new: NewCall) -> BoundPlan | None:
        """A plan for the call; None: the call runs plain.

        Raises
        ------
        PlanMismatch : the loaded plan does not fit the call, or calls without a plan are errors (on_new_shape="error").
        ParityError : the loaded plan runs an op in slices that are not proven to give the same bits on this device.
        UsageError : the module was sharded after it was planned, such that no plan can run.
        """
        first, self.first_is_plain = self.first_is_plain and not any(b.uses for b in self.plans), False
        if first and self.plan.trace is not None and self.plan.trace.expected.differences(new.model):
            self._first_plain(
                f"{new.words}: it sets state that later calls find. It runs plain; the plan is for later calls"
            )
            return None
        if (name := sharded_parameter(new.model)) is not None:
            self._sharded(new, name)
            return None
        if unplanned := new.unplanned:
            self.leave_plain(new, *unplanned)
            return None
        try:
            with telling(self._options.progress, QUIET_S), allowance.shared(self._options.progress):
                announce(self._options.progress, f"capturing {type(new.model).__name__} for a new call")
                return self._made(new)
        except Exception as e:  # any error at all: a run that has gone well so far goes on
            if self.on_new_shape == "error" or isinstance(e, PlanMismatch | ParityError) and new.model.training:
                raise
            why = str(e) if isinstance(e, RekindleError) else f"{type(e).__name__}: {e}"
            self.leave_plain(new, f", for which there is no plan, and none can be made: {why}")
            self._remember(new)
            return None

    def _made(self, new: NewCall) -> BoundPlan | None:
        """The plan from a file if it fits the call, else a plan of its own; None: the call runs plain."""
        found, fits, is_first = self.loaded.look_at(new, may_wait=self.on_new_shape != "error")
        if is_first:
            self._first_plain(
                f"{new.words}: it sets attributes, or keeps results of functions, that later calls find. It runs plain; "
                "the loaded plan is for the later calls"
            )
            return None
        if fits is not None:
            traced, plan = fits
            if exceeded := self.loaded.exceeded(traced, plan):
                self.warned.warn(exceeded)
            self._lengths.add(traced)
            return self.bind(new.model, traced, with_sums_here(plan, traced))
        with self.new_shapes.timed(), old_objects_aside(collect=False):
            return self._planned(new, found)

    def _first_plain(self, line: str) -> None:
        self.why = line, ""
        self.say(line)

    def leave_plain(self, new: NewCall, why: str, kind: str = "") -> None:
        """Warn that the call runs plain.

        Raises
        ------
        PlanMismatch : such calls are errors (on_new_shape="error").
        """
        if self.on_new_shape == "error":
            raise PlanMismatch(f"{new.words}{why}; apply with on_new_shape='plan' or 'plain' to run such calls plain")
        line = f"{new.words}{why}; such calls run plain, with nothing recomputed"
        self.why = line, self.warned.warn(line, kind)

    def _sharded(self, new: NewCall, name: str) -> None:
        """The call runs plain if the user said that calls without a plan do.

        Raises
        ------
        UsageError : the user did not say so.
        """
        why = f"was planned, but its parameter {name!r} has been sharded since; {order_that_works(new.model)}"
        if self.on_new_shape != "plain":
            raise UsageError(f"{own_class(new.model).__name__} {why}")
        self.leave_plain(new, f", and {why}", kind="sharded")

    # -- a plan of its own -------------------------------------------------------------------------------------------
    def _planned(self, new: NewCall, found: Trace | None) -> BoundPlan | None:
        """A plan for the call; None: the call runs plain. found : the call's trace, if it was made already."""
        family = self.plans.family(new.key)
        if self.on_new_shape != "plan" and not family:
            self._no_plan(new, "(or modes, dtypes, constants)")
            return None
        why = family[0].trace.expected.differences(new.model) if family else []
        how = f", {' and '.join(why[:2])} having changed" if why else ""
        if found is None and self.on_new_shape == "plan" and (late := self.new_shapes.take_too_long(how)):
            plain = [(b.trace.key, (self._whole or b.plan).baseline_peak_bytes) for b in self.plans]
            if fits_plain(new, (self._whole or self._options).goal.budget, plain):
                self.leave_plain(new, f", for which there is no plan{late}", kind="too long")
                return None
            self.say(f"{new.words}, which is planned at once: its plain step may not fit{late}", kind="may not fit")
        if known := self._with_changing_numbers(new):
            return known
        if varying := self.refusals.what_varies(new.model, new.key):
            self.leave_plain(new, f"; {varying}", kind=varying)
            return None
        found = found or self._lengths.captured_for(new.model, new.call, new.key)
        if found is None and (followed := self._following(new)) is not None:
            return followed
        found = found or new.trace(self._trace_options, report=self._options.report)
        if effects := Counter(found.lowered.captured.effects) - self._accepted:
            raise TraceError(f"planned steps would not do what {', '.join(effects)} do beside computing")
        made = self._plan_for(new, found)
        if made is None:
            self._no_plan(new, "in another state of its attributes, hooks or inputs' values,")
            self._remember(new)
            return None
        bound, witness = self.bind(new.model, found, made.plan), Witness()
        if wrong := self._tried(new, bound, witness):
            self.leave_plain(new, f"; a plan for it did not give the plain step's numbers ({wrong})")
            self._remember(new)
            return None
        self._lengths.add(found, witness.values or None)
        self._tell(new, made, how)
        return bound

    def _following(self, new: NewCall) -> BoundPlan | None:
        """A plan for a call whose step follows from the steps of other lengths. None: it does not, or the plain step runs
        other ops than were expected; then the call is captured."""
        if not self.check or self.on_new_shape != "plan":
            return None
        steps, bound = self._lengths.follow(new.model, new.call, new.key, self.plans), None
        while True:
            why = ""
            try:
                step = next(steps, None)
                if step is None or communicates(step.trace.graph):
                    return None
                if (made := self._plan_for(new, step.trace)) is None:
                    return None
                bound, witness = self.bind(new.model, step.trace, made.plan), Witness()
                wrong = self._tried(new, bound, witness)
                if not wrong and step.agrees(new.model, witness) and bound.serves(new.model, new.call):
                    self._tell(new, made)
                    return bound
            except Exception as e:  # a conjecture that fails is no error: another one is tried, or the call is captured
                why = f" ({e!r})"
            log.info("%s: its step does not follow from those of other lengths%s", new.words, why)
            if bound is not None:
                self.plans.remove(bound)

    def _with_changing_numbers(self, new: NewCall) -> BoundPlan | None:
        """A plan of the same graph that takes Python numbers as inputs; None: this call differs from every planned call in
        more than such numbers, or they cannot be inputs."""
        found = next(filter(None, (changed_numbers(new.model, new.key, new.call, b) for b in self.plans)), None)
        if found is None or found[1] in self._fixed:
            return None
        like, places = found
        bound = self._with_inputs(new, like, places)
        if bound is None:
            self._fixed = {*list(self._fixed)[-FIXED_MOST:], places}
            return None
        self.plans.note_changing(places)
        names = ", ".join(name_of(p, new.call.spec) for p in places)
        are = "is an input" if len(places) == 1 else "are inputs"
        self.say(f"{new.words}: {names} {are} of its plan from now on, made in {new.took:.1f} s")
        return bound

    def _with_inputs(self, new: NewCall, like: BoundPlan, places: tuple[Place, ...]) -> BoundPlan | None:
        """The plan `like` with the numbers at these places as inputs; None: they cannot be."""
        numbers, before = read(places, new.call.spec, new.model), numbers_of(like, places)
        if numbers is None or before is None:
            return None
        try:
            traced = new.trace(self._trace_options, report=self._options.report, inputs=numbers)
        except TraceError:
            return None
        before_it = like.trace.as_captured
        held, was = traced.lowered.captured, before_it.lowered.captured
        same = traced.graph.hash == before_it.graph.hash and matches(held, was, before)
        if not same or Counter(held.effects) - self._accepted:
            return None
        bound = self.bind(new.model, traced, like.plan)
        if not bound.serves(new.model, new.call):
            self.plans.remove(bound)
            return None
        return None if self._tried(new, bound) else bound

    def _plan_for(self, new: NewCall, found: Trace) -> Replanned | None:
        """The plan of the same graph if there is one, else one carried over or searched; None: on_new_shape forbids it."""
        bound = (*self.plans.family(new.key), *self.plans)
        known = [*{id(p): p for p in (*(b.plan for b in bound), self.plan)}.values()]
        # Of equal graphs, views may differ, which a rewriting counts.
        same = next((p for p in known if is_for_graph(p, found.graph) and fitting(found, p) is not None), None)
        if same is not None:
            return Replanned(same, SAME)
        if self.on_new_shape != "plan":
            return None
        budget = self._options.goal.budget
        if budget is None or not any(covers(new.key, k) for k in self._too_large):
            try:
                return self.replan(found, self._options, known)
            except InfeasibleBudget as e:
                budget = e.budget
                self._too_large.append(new.key)
        least_known = [p for p in known if p.goal.least_memory]
        least = self.replan(found, replace(self._options, goal=LeastMemory()), least_known)
        self.warned.warn(
            f"{new.words}, whose step cannot stay within {format_bytes(budget)}: it runs by the plan of least memory, "
            f"{format_bytes(least.plan.peak_bytes)}"
        )
        return least

    # -- helpers -----------------------------------------------------------------------------------------------------
    def _tried(self, new: NewCall, bound: BoundPlan, witness: Witness | None = None) -> str:
        """How the new plan's step differs from the plain step, in words; then the plan is dropped. "" if nothing differs, or if
        no check was asked for. witness : watches the plain step."""
        if not self.check or bound.trace.fake or communicates(bound.trace.graph):
            return ""
        wrong = "the trial failed"
        try:
            wrong = "; ".join(trial.differences(new.model, new.plain, bound, new.call, witness))
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
        """From now on run this call plain in the module's present state."""
        self._let_go()
        self.refusals.add(new.model, new.key, self.why)

    def _let_go(self, now: Guards | None = None) -> None:
        """Plans for other states than this one must not keep submodules and attributes alive."""
        for b in self.plans:
            if b.guards is not now:
                b.let_go()
        self.refusals.let_go()

    def _tell(self, new: NewCall, made: Replanned, how: str = "") -> None:
        """One line for a new plan: of new shapes, for the first of them. how : the cause, if the module changed."""
        line = f"{new.words}{how}: {DID[made.how]} in {new.took:.1f} s, {made.plan.sentence}"
        log.debug(line)
        if how:
            self.say(line, kind=how)
        elif told := self.new_shapes.news(new.key[0], line):
            self.say(told if told is line else f"{type(new.model).__name__}: {told}")

    def say(self, line: str, kind: str = "") -> None:
        """One line of news, on stderr unless the user asked for silence; the first of its kind (default: of such a line)."""
        if self.warned.is_first(kind or line):
            notices.say(line, aloud=self._options.progress is not False)
