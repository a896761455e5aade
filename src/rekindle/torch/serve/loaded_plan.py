"""Plans from a file, one for each kind of call, which wait for the first call that they fit."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from dataclasses import replace

from ...ask import PlanOptions, TraceOptions
from ...errors import PlanMismatch, TraceError
from ...model.judge import simulate
from ...model.plan import Plan
from ...saying.sizes import format_bytes
from ..rewrite.rewritten import fitting, rewritten_like
from ..run.bound import answered
from ..run.stages import LastReads
from ..situation.guards import Expected
from ..situation.module_call import Key
from ..situation.recorded_ops import Question
from ..trace import Trace
from .mismatch import mismatch
from .new_call import NewCall

UNLIKE_MOST = 64  # calls that no plan fits, and that are remembered; older ones are captured again (a guess)
OTHERS_MOST = 8  # once a plan is in use, calls that are captured for the others; a guess


class LoadedPlans:
    """Looks at calls until each plan has met one with the graph that it was made for.

    waiting : plans that no call has fitted so far. none_fits : so are all of them. travelled : they were made for this very
    module, which was pickled since: a call that they do not fit is a new shape, and no mismatch. first_is_over : the first call
    was left plain, since it set attributes that later calls find.
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

    def look_at(self, new: NewCall, may_wait: bool) -> tuple[Trace | None, tuple[Trace, Plan] | None]:
        """(the call's trace if one was made, (the trace by which a plan can run the call, that plan) or None).

        may_wait : whether the plans may wait for other values of the inputs than this call's.

        Raises
        ------
        PlanMismatch : no call like this one can fit a plan, and none is in use.
        ParityError : as `fitting`.
        """
        if not self.waiting or self._is_unlike(new):
            return None, None
        found, fits = self._alike(new)
        if fits is not None:
            self.waiting = [p for p in self.waiting if p is not fits[1]]
            self.none_fits, self._unlike = False, []
            return found, fits
        if self.is_for_later_calls(found):
            return found, None
        asked = found.lowered.captured.questions
        if self.none_fits and (not (asked or self.travelled) or not may_wait):
            raise PlanMismatch(mismatch(self.waiting[0].graph, rewritten_like(found, self.waiting[0]).graph))
        # The plans may be for other answers, or for other shapes: they wait for a call that they fit.
        self._unlike = [*self._unlike, (new.key, Expected.of(new.model), asked)][-UNLIKE_MOST:]
        if not self.none_fits and len(self._unlike) >= OTHERS_MOST:
            self.waiting = []  # each call of a new shape would be captured for plans that nobody needs
        return found, None

    def is_for_later_calls(self, found: Trace) -> bool:
        """Whether this may be the first call of a module that sets attributes then, and the plans are for calls after it."""
        return self.may_be_for_later_calls and found.lowered.captured.settles

    @property
    def may_be_for_later_calls(self) -> bool:
        """Whether no call has fitted a plan, and no first call was left plain."""
        return self.none_fits and not self.first_is_over

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

    def _costed(self, fits: Trace) -> Trace:
        """The trace with costs; one that the plan rewrites has none yet."""
        return fits if fits.origin is None else fits.costed(self._how.target, self._options.report, measure=False)

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
                return self._costed(made), plan
        return None
