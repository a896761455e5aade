"""Plans from a file, one for each kind of call, which wait for a call that they fit; and how plans differ from modules."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from ...ask import PlanOptions, TraceOptions
from ...errors import PlanMismatch, TraceError
from ...model.graph import Graph
from ...model.judge import simulate
from ...model.op_names import op_words
from ...model.plan import Plan
from ...printed import name as printed
from ...saying.sizes import format_bytes
from ..capture.trace_errors import OF_FIRST_CALLS
from ..rewrite.rewritten import fitting, rewritten_like
from ..run.bound import answered
from ..run.stages import LastReads
from ..situation.guards import Expected
from ..situation.module_call import Key
from ..situation.recorded_ops import Question
from ..trace import Trace, module_kinds
from .refusals import NewCall

UNLIKE_MOST = 64  # calls that no plan fits, and that are remembered; older ones are captured again (a guess)
OTHERS_MOST = 8  # once a plan is in use, calls that are captured for the others; a guess


class LoadedPlans:
    """Looks at calls until each plan has met one with the graph that it was made for.

    waiting : plans that no call has fitted so far. none_fits : no call has fitted any plan. travelled : the plans were made for
    this very module, which was pickled since: a call that they do not fit is a new shape, and no mismatch. first_is_over : the
    first call was left plain, since it set attributes that later calls find.
    """

    def __init__(self, plan: Plan, how: TraceOptions, options: PlanOptions):
        self.waiting = [plan] if plan.trace is None else []
        self.none_fits, self.travelled, self.first_is_over = plan.trace is None, False, False
        self._how, self._options = how, options
        self._unlike: list[tuple[Key, Expected, Sequence[Question]]] = []  # calls that no waiting plan fits

    def copied(self) -> LoadedPlans:
        """For a copy of the module, which may be in another state."""
        twin = copy.copy(self)
        twin._unlike, twin.waiting = [], [*self.waiting]
        return twin

    def look_at(self, new: NewCall, may_wait: bool) -> tuple[Trace | None, tuple[Trace, Plan] | None, bool]:
        """(the call's trace if one was made, (the trace by which a plan can run the call, that plan) or None, whether this is a
        first call that sets what later calls find, for which the plans may be).

        may_wait : whether the plans may wait for other values of the inputs than this call's.

        Raises
        ------
        PlanMismatch : no call like this one can fit a plan, and none is in use.
        ParityError : as `fitting`.
        """
        if not self.waiting or self._is_unlike(new):
            return None, None, False
        may_be_first = self.none_fits and not self.first_is_over
        try:
            found, fits = self._alike(new)
        except TraceError as e:
            if not may_be_first or e.reason not in OF_FIRST_CALLS:
                raise
            self.first_is_over = True
            return None, None, True
        if fits is not None:
            self.waiting = [p for p in self.waiting if p is not fits[1]]
            self.none_fits, self._unlike = False, []
            return found, fits, False
        if may_be_first and found.lowered.captured.settles:
            self.first_is_over = True
            return found, None, True
        asked = found.lowered.captured.questions
        if self.none_fits and (not (asked or self.travelled) or not may_wait):
            raise PlanMismatch(mismatch(self.waiting[0].graph, rewritten_like(found, self.waiting[0]).graph))
        # The plans may be for other answers, or for other shapes: they wait for a call that they fit.
        self._unlike = [*self._unlike, (new.key, Expected.of(new.model), asked)][-UNLIKE_MOST:]
        if not self.none_fits and len(self._unlike) >= OTHERS_MOST:
            self.waiting = []  # each call of a new shape would be captured for plans that nobody needs
        return found, None, False

    @staticmethod
    def exceeded(fits: Trace, plan: Plan) -> str:
        """How the plan exceeds its budget with this module, as a warning; "" if it keeps the budget."""
        limit = plan.goal.budget
        if limit is None:
            return ""
        schedule, link = LastReads(fits.lowered).heeded(fits.graph, plan.schedule), plan.graph.link
        peak = simulate(replace(fits.graph, link=link), schedule).peak_bytes
        if peak > limit:  # by workspaces that were guessed?
            peak = simulate(replace(fits.without_guesses().graph, link=link), schedule).peak_bytes
        if peak <= limit:
            return ""
        return (
            f"the plan's file says that its step takes {format_bytes(plan.peak_bytes)}, but with what "
            f"{fits.module_name} holds here it takes {format_bytes(peak)}, above its budget of {format_bytes(limit)}; "
            "make the plan again"
        )

    def _is_unlike(self, new: NewCall) -> bool:
        return any(
            new.key == k and not expected.differences(new.model) and answered(asked, new.call.tensors, new.model)
            for k, expected, asked in self._unlike
        )

    def _alike(self, new: NewCall) -> tuple[Trace, tuple[Trace, Plan] | None]:
        """(the call's trace, (the trace that has a plan's graph, that plan) or None). If forward branches on values of inputs,
        the trace in which it cannot, as on fake tensors, is tried too."""
        found = new.trace(self._how, report=self._options.report)
        fits = self._fitted(found)
        if fits is None and found.lowered.captured.questions:
            with contextlib.suppress(TraceError):
                fits = self._fitted(new.trace(self._how, report=self._options.report, by_values=False))
        return found, fits

    def _fitted(self, found: Trace) -> tuple[Trace, Plan] | None:
        for plan in self.waiting:
            if (made := fitting(found, plan)) is not None:
                rewritten = made.origin is not None  # which has no costs yet
                return made.costed(self._how.target, self._options.report, measure=False) if rewritten else made, plan
        return None


def check_same_module(model: nn.Module, traced: Trace) -> None:
    """Check that the plan's trace fits the module.

    Raises
    ------
    PlanMismatch : the module lacks a parameter of the one that was traced, or has other submodules.
    """
    c = traced.lowered.captured
    state = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    for p, name in c.params.items():
        t = state.get(name)
        if t is None or t.shape != p.meta["val"].shape:
            has = "lacks it" if t is None else f"has {list(t.shape)}"
            raise PlanMismatch(
                f"the plan was made for {traced.module_name} (graph {traced.graph.hash[:12]}), whose parameter {name} is "
                f"{list(p.meta['val'].shape)}; this {type(model).__name__} {has}. Plan this module itself"
            )
    planned, now = dict(traced.module_kinds), dict(module_kinds(model))
    if [*planned.items()] != [*now.items()]:
        name = next((k for k in {**planned, **now} if planned.get(k) != now.get(k)), "")
        own, has = planned.get(name), f"has {now.get(name, 'none')} there"
        which = f"whose submodule {name!r} is {own}" if own else f"which has no submodule {name!r}"
        if not name:
            which, has = f"a module of class {own}", f"is of class {now['']}, or has its submodules in another order"
        raise PlanMismatch(
            f"the plan was made for {traced.module_name} (graph {traced.graph.hash[:12]}), {which}; this "
            f"{type(model).__name__} {has}. Plan this module itself"
        )


def mismatch(planned: Graph, found: Graph) -> str:
    """The message of a PlanMismatch: both fingerprints and the first difference."""
    for i, (a, b) in enumerate(zip(planned.ops, found.ops, strict=False)):
        if a.name != b.name:
            one, other = op_words(b), op_words(a)
            if one == other:  # words leave out the overload, say
                one, other = printed(b.name), printed(a.name)
            where = f"op {i} is '{one}', the plan has '{other}'"
            break
        if (a.inputs, a.outputs) != (b.inputs, b.outputs):
            where = f"op {i}, {op_words(a)}, reads or makes other values"
            break
    else:
        sizes = [i for i, (a, b) in enumerate(zip(planned.values, found.values, strict=False)) if a != b]
        where = (
            f"the model has {len(found.ops)} ops, the plan {len(planned.ops)}" if len(found.ops) != len(planned.ops)
            else f"value {sizes[0]} has {found.values[sizes[0]].bytes} bytes, in the plan {planned.values[sizes[0]].bytes}"
            if sizes else "the ops may be run again or kept under other rules"
        )  # fmt: skip
    return (
        f"the plan is for graph {planned.hash[:12]}, but this call gives graph {found.hash[:12]}; first difference: {where}. "
        "Call the model with what it was planned for (batch size, shapes, dtypes, modes, masks), or make a new plan. Where the "
        "same call gives another graph in each process, the model's code may loop over a set: set PYTHONHASHSEED=0 for both"
    )
