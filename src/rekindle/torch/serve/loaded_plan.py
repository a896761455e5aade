"""A plan from a file, which waits for the first call that it fits."""

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

UNLIKE_MOST = 64  # calls that the plan does not fit, and that are remembered; older ones are captured again (a guess)


class LoadedPlan:
    """Looks at calls until one has the graph that the plan was made for.

    waits : no call has fitted the plan so far. travelled : the plan was made for this very module, which was pickled since: a
    call that it does not fit is a new shape, and no mismatch. first_is_over : the first call was left plain, since it set
    attributes that later calls find.
    """

    def __init__(self, plan: Plan, how: TraceOptions, options: PlanOptions):
        self.waits, self.travelled, self.first_is_over = plan.trace is None, False, False
        self._plan, self._how, self._options = plan, how, options
        self._unlike: list[tuple[Key, Expected, Sequence[Question]]] = []  # calls that the plan does not fit

    def copied(self) -> LoadedPlan:
        """For a copy of the module, which may be in another state."""
        twin = copy.copy(self)
        twin._unlike = []
        return twin

    def look_at(self, new: NewCall, may_wait: bool) -> tuple[Trace | None, Trace | None]:
        """(the call's trace if one was made, the trace by which the plan can run the call or None).

        may_wait : whether the plan may wait for other values of the inputs than this call's.

        Raises
        ------
        PlanMismatch : no call like this one can fit the plan.
        ParityError : as `fitting`.
        """
        if not self.waits or self._is_unlike(new):
            return None, None
        found, fits = self._alike(new)
        if fits is not None:
            self.waits = False
            return found, fits
        if self.is_for_later_calls(found):
            return found, None
        asked = found.lowered.captured.questions
        if not (asked or self.travelled) or not may_wait:
            raise PlanMismatch(mismatch(self._plan.graph, rewritten_like(found, self._plan).graph))
        # The plan may be for other answers, or for another shape: it waits for a call that it fits.
        self._unlike = [*self._unlike, (new.key, Expected.of(new.model), asked)][-UNLIKE_MOST:]
        return found, None

    def is_for_later_calls(self, found: Trace) -> bool:
        """Whether this may be the first call of a module that sets attributes then, and the plan is for the calls after it."""
        return self.may_be_for_later_calls and found.lowered.captured.settles

    @property
    def may_be_for_later_calls(self) -> bool:
        """Whether no call has fitted the plan, and no first call was left plain."""
        return self.waits and not self.first_is_over

    def exceeded(self, fits: Trace) -> str:
        """How the plan exceeds its budget with this module, as a warning; "" if it keeps the budget."""
        limit = self._plan.goal.budget
        if limit is None:
            return ""
        schedule, link = LastReads(fits.lowered).heeded(fits.graph, self._plan.schedule), self._plan.graph.link
        peak = simulate(replace(fits.graph, link=link), schedule).peak_bytes
        if peak > limit:  # by workspaces that were guessed?
            peak = simulate(replace(fits.without_guesses().graph, link=link), schedule).peak_bytes
        if peak <= limit:
            return ""
        return (
            f"the plan's file says that its step takes {format_bytes(self._plan.peak_bytes)}, but with what "
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

    def _alike(self, new: NewCall) -> tuple[Trace, Trace | None]:
        """(the call's trace, the trace that has the plan's graph or None). If forward branches on values of inputs, the trace
        in which it cannot, as on fake tensors, is tried too."""
        found = new.trace(self._how, report=self._options.report)
        if (made := fitting(found, self._plan)) is not None:
            return found, self._costed(made)
        if found.lowered.captured.questions:
            with contextlib.suppress(TraceError):
                general = new.trace(self._how, report=self._options.report, by_values=False)
                if (made := fitting(general, self._plan)) is not None:
                    return found, self._costed(made)
        return found, None
