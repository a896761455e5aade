"""How `checkpoint` makes a plan: the module runs once, is planned whole or in parts, and a measured step checks the plan."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from torch import nn

from . import allowance
from .arguments import choice, flag
from .ask import GRADIENTS, LOSSES, WITH_STATE, Goal, PlanOptions, TraceOptions
from .errors import InfeasibleBudget, TraceError, UsageError
from .model.plan import Plan
from .parts.plan import PartsPlan
from .planning import accept
from .planning.infeasible import or_least
from .saying import notices
from .saying.progress import announce, telling
from .saying.sizes import format_bytes
from .torch import accept as torch_accept
from .torch.costs.resident import resident_bytes
from .torch.measure.measured_step import Outcome
from .torch.measure.memory import old_objects_aside
from .torch.measure.probe import probe
from .torch.measure.trial import for_later_calls
from .torch.offload.optimizer_state import StateOnHost, bring_back, held_on_host
from .torch.parts.applied import parts_taken_off
from .torch.parts.planning import PartsRequest, parts_for_all
from .torch.serve.confirm import confirm, measured_plain
from .torch.serve.planned import NEW_SHAPE, set_aside
from .torch.situation.module_call import bind
from .torch.trace import Trace, plain_forward, trace_with

log = logging.getLogger("rekindle")
T = TypeVar("T")
_GOALS = ("budget", "max_overhead", "minimize")
_SEARCH = tuple(f.name for f in fields(PlanOptions) if f.name != "goal")
FIRST_CALLS_SHARE = 0.25  # of the allowance, for the plan of a first call that another plan follows; a guess


@dataclass(frozen=True)
class Asked:
    """The arguments of one call of `checkpoint`, checked.

    parts : paths of the submodules that the user names; None: none are named.
    holds_state : whether the host holds the optimizer's state.
    """

    options: PlanOptions
    captured: TraceOptions
    parts: tuple[str, ...] | None
    strict: bool
    check: bool
    on_new_shape: str
    holds_state: bool = False

    @classmethod
    def of(cls, model: nn.Module, given: Mapping[str, Any]) -> Asked:
        """The arguments by their names, defaults included.

        Raises
        ------
        UsageError : one of them is invalid, or two exclude each other.
        """
        goal = Goal.parse(*(given[k] for k in _GOALS))
        host = accept.host_bytes(given["host_budget"])
        holds_state = isinstance(given["offload"], str) and given["offload"] == WITH_STATE
        moved = {"host_budget": host, "offload": "auto" if holds_state else given["offload"]}
        options = accept.search(PlanOptions(goal, **{k: given[k] for k in _SEARCH} | moved))
        choice("on_new_shape", given["on_new_shape"], NEW_SHAPE)
        flag("check", given["check"])
        choice("loss", given["loss"], LOSSES)
        choice("gradients", given["gradients"], GRADIENTS)
        torch_accept.module(model)
        torch_accept.optimizer(given["optimizer"])
        must_save = torch_accept.must_save(model, given["must_save"])
        flag("strict", given["strict"])
        parts = None if given["parts"] is None else torch_accept.parts(model, given["parts"])
        unused = accept.unused(given["unused"])
        if unused and parts is not None:
            raise UsageError(
                f"unused={list(unused)} is for a plan of the whole model; with parts=, the model itself makes its results. "
                "Leave out one of the two"
            )
        if holds_state and given["gradients"] == "consumed":
            raise UsageError(
                'offload="optimizer" is for an optimizer that steps after backward, and gradients="consumed" for one that '
                "steps inside it; leave out one of the two"
            )
        captured = TraceOptions(
            given["loss"],
            optimizer=given["optimizer"],
            must_save=must_save,
            state_bytes=0 if holds_state else None,
            unused=unused,
            gradients="kept" if goal.fraction is not None else given["gradients"],  # a fraction leaves them out
            compile=accept.compiled(given["compile"], options, given["strict"], must_save),
        )
        return cls(options, captured, parts, given["strict"], bool(given["check"]), given["on_new_shape"], holds_state)

    def trace(self, model: nn.Module, sample: Any) -> Trace:
        """The step of the model, captured as was asked."""
        return trace_with(model, sample, self.captured, self.options.progress)


@contextlib.contextmanager
def state_held(model: nn.Module, asked: Asked) -> Iterator[None]:
    """Where that is asked for, the host holds the optimizer's state inside, and from then on if nothing fails there.

    Raises
    ------
    UsageError : this optimizer's state cannot be moved. RekindleError : the host has no room for it.
    InfeasibleBudget : the optimizer's step does not fit.
    """
    if not asked.holds_state:
        yield
        bring_back(model)
        return
    with held_on_host(model, asked.captured.optimizer) as held:
        _check_step(model, asked.options, held)
        yield
    notices.say(f"{type(model).__name__}: {held.words}", aloud=asked.options.progress is not False)


def _check_step(model: nn.Module, options: PlanOptions, held: StateOnHost) -> None:
    """Check that the step of an optimizer whose state the host holds fits."""
    budget, needed = options.goal.budget, resident_bytes(model, []) + held.most_bytes
    if budget is None or needed <= budget:
        return
    name = type(held.optimizer).__name__
    words = (
        f"budget={format_bytes(budget)}: while {name} steps, parameters and gradients and at most "
        f"{format_bytes(held.most_bytes)} of its state are on the device, {format_bytes(needed)} in all; give at least so "
        "much, or train fewer parameters"
    )
    if not options.or_least:
        raise InfeasibleBudget(words, budget=budget, smallest_peak=needed, bound_bytes=needed, op=f"{name}.step")
    notices.warn(words)


@dataclass(frozen=True)
class Checkpointing:
    """One call of `checkpoint`. plan_for : makes the plan of a trace for these options."""

    model: nn.Module
    sample: Any
    asked: Asked
    plan_for: Callable[[Trace, PlanOptions], Plan]

    def planned(self) -> tuple[Plan | PartsPlan, Plan | PartsPlan | None]:
        """(the plan, the plan of later calls).

        The second is None where all calls can run by the first. Both are the same plan where the first call cannot be planned
        and runs plain. The model is as it was.
        """
        model, asked, progress = self.model, self.asked, self.asked.options.progress
        alone = torch_accept.alone("checkpoint", model, progress)
        with (
            alone, telling(progress), allowance.shared(progress), old_objects_aside(), parts_taken_off(model), set_aside(model),
        ):  # fmt: skip
            sharded = torch_accept.fully_sharded(model, asked.captured.compile, asked.strict)
            first = self._first_call() if asked.check and sharded is None else (False, False)
            request = PartsRequest(model, self.sample, asked.options, asked.captured, asked.check, asked.parts, sharded)
            found, later = self._whole_or_parts(request, *first)
            if found.kind == "step" and later is None and found.trace.lowered.captured.settles and not found.trace.fake:
                # The first call sets attributes that every later call finds: the plan should be for those later calls.
                later = self._for_later_calls(None, self._whole)
            if found.kind == "parts":
                self._say_parts(found)
        if found.offer is not None or found.options.missed(found.goal) is not None:
            self._say(found.sentence)
        return found, later

    def _first_call(self) -> tuple[bool, bool]:
        """The answers of `probe`."""
        announce(self.asked.options.progress, "running the module once, unplanned")
        torch_accept.measurable(self.model, *(arguments := torch_accept.sample(self.sample)))
        with torch_accept.gradients_on():
            return probe(self.model, *arguments)

    def _whole_or_parts(self, request: PartsRequest, moves: bool = False, sets_up: bool = False) -> tuple[Any, Any]:
        """As `planned`. moves, sets_up : the answers of `probe`."""
        if moves and (later := self._for_later_calls(None, lambda: self._whole_or_parts(request)[0])) is not None:
            return later, later
        later = None
        if request.named is None and request.error is None and self.asked.captured.compile is None:
            try:
                return self._whole(), None
            except TraceError as e:
                later = None if moves else self._for_later_calls(e, self._whole)
                if later is None and self.asked.strict:
                    raise
                request = replace(request, error=e)
        if later is None and sets_up and not moves:
            later = self._for_later_calls(None, lambda: parts_for_all(request))
        return later or parts_for_all(request), later

    def _for_later_calls(self, error: TraceError | None, make: Callable[[], T]) -> T | None:
        call = bind(plain_forward(self.model), *torch_accept.sample(self.sample))
        return for_later_calls(self.model, call, make, error)

    def _whole(self) -> Plan:
        """The plan of the whole model, as it is now."""
        traced, plain = self.asked.trace(self.model, self.sample), None
        if self.asked.check and self.asked.options.goal.fraction is not None and not traced.fake:
            announce(self.asked.options.progress, "measuring a plain step")
            measured, plain = measured_plain(self.model, self.sample, traced)
            traced = replace(traced, plain_bytes=measured)
        allowance.of_step(float(traced.graph.weights("seconds").sum()))
        # Where the first call sets attributes that later calls find, a plan for these follows.
        with allowance.part(FIRST_CALLS_SHARE if traced.lowered.captured.settles else 1.0):
            return or_least(self.asked.options, lambda options: self._confirmed(traced, options, plain))

    def _confirmed(self, traced: Trace, options: PlanOptions, plain: Outcome | None) -> Plan:
        found = self.plan_for(traced, options)
        if self.asked.check and not traced.fake:
            announce(options.progress, "checking the plan by a measured step")
            found = confirm(
                self.model, self.sample, found, lambda g: self.plan_for(traced, replace(options, goal=g)), plain
            )
            log.info("%s; measured within %+.2f %%", found.sentence, 100 * found.checked.peak_error)
        return found

    def _say_parts(self, found: PartsPlan) -> None:
        unused = self.asked.captured.unused
        makes = f"; it makes all results, {', '.join(unused)} too" if unused and not found.stages else ""
        vain = f"; {found.in_vain}" if found.in_vain else ""
        self._say(f"{found.covered}{makes}{vain}")
        log.info(found.sentence)

    def _say(self, words: str) -> None:
        notices.say(f"{type(self.model).__name__}: {words}", aloud=self.asked.options.progress is not False)
