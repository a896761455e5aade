"""A plan bound to its module: it finds the inputs of its program on the module and among the arguments, and runs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...errors import PlanMismatch, RekindleError
from ...model.plan import Plan
from ..offload.away import pool_of
from ..private import is_fake
from ..rewrite.rewritten import as_planned, proven_here
from ..situation.guards import Guards
from ..situation.module_call import ModuleCall
from ..situation.numbers import read
from ..situation.recorded_ops import Question
from ..tensors import tree
from ..tensors.sharded import own_class
from ..trace import Trace
from .execute import Runner
from .program import build
from .second import PlainAgain, Second

LOOKS_AT_USE = 3  # at this use it is looked once whether a loop that may keep gradients has set them to None
# Index of a tensor of the call; (submodule, attribute), where None is the module itself, to which no reference may be held;
# or a tensor that stands in no module.
Origin = int | tuple[nn.Module | None, str] | torch.Tensor


@dataclass(frozen=True)
class _Origins:
    """Where the inputs and results of a program come from.

    modules : ids of the submodules for which these origins were found.
    sources : one origin per input of the program.
    assigned : (attribute that is set, the output that it is set to or None, the origin of its value then).
    aliased : position among the results -> origin, for results that are inputs of the module.
    results : how many tensors the call's result and the caller's containers hold.
    """

    modules: tuple[int, ...]
    sources: list[Origin]
    assigned: list[tuple[tuple[nn.Module | None, str], int | None, Origin]]
    aliased: dict[int, Origin]
    results: int


class BoundPlan:
    """Runs one plan for the calls that it fits.

    plan, trace : the plan and the trace that it was made for, rewritten as the plan says.
    guards : tell whether the module is still as it was captured. Plans for one state may share them.
    turn : number of the module's planned call in which it ran last. uses : how often it ran, checks left out.
    checked : the last `Check` of a measured step by the plan; None: no step was measured.
    had_gradient : whether a parameter had a gradient when the call began; None: nobody looked.

    Raises
    ------
    PlanMismatch : the plan is for another step, or for a GPU that is not here. ParityError : as `rewritten.fitting`.
    RekindleError : the host does not have the memory for the plan's copies.
    """

    def __init__(self, model: nn.Module, traced: Trace, plan: Plan, guards: Guards | None = None):
        _refuse_elsewhere(model, traced)
        traced = as_planned(traced, plan)
        if traced.fake and not any(map(is_fake, [*model.parameters(), *model.buffers()])):
            traced = proven_here(traced, plan)
        program, most = build(traced.lowered, plan.schedule), plan.options.host_budget
        pool = pool_of(model, traced.lowered.captured.device) if program.host_bytes else None
        if pool is not None and not any(map(is_fake, [*model.parameters(), *model.buffers()])):
            pool.reserve([program.host_bytes], most)
        self.runner = Runner(traced.lowered, program, pool, most)
        self.plan, self.trace, self.checked = plan, traced, plan.checked
        self.turn = self.uses = 0
        self.had_gradient: bool | None = None
        self._looks = traced.options.gradients != "kept"
        self.guards = guards or Guards(model, traced.expected)
        self._again = PlainAgain(model, traced, self.runner.given, self.guards)
        self.numbers = traced.lowered.captured.numbers
        self.questions = traced.lowered.captured.questions
        self._origins: _Origins | None = None

    def serves(self, model: nn.Module, call: ModuleCall, at_a_glance: bool = False) -> bool:
        """Whether this plan may run the call. The caller has checked that the call has the trace's key.

        at_a_glance : take only a quick look, which holds if nothing changed since the plan ran last.
        """
        if self.numbers.places:
            numbers = read(self.numbers.places, call.spec, model)
            if numbers is None or not self.numbers.serve(numbers):
                return False
        look = self.guards.unchanged if at_a_glance else self.guards.hold
        casts = self.trace.lowered.captured.casts(call.tensors)
        return casts and look(model) and answered(self.questions, call.tensors, model)

    def let_go(self) -> None:
        """Hold no reference to submodules and attributes until the next call of `serves`."""
        self.guards.let_go()
        self._origins = None

    def __call__(
        self, model: nn.Module, call: ModuleCall, planned: Any = None, held_back: Iterable[torch.Tensor] = ()
    ) -> Any:
        """The module's result for a call that it serves. planned : the planned forward that is called, if one is.
        held_back : as in `Runner`."""
        tensors, origins = call.tensors, self._origins
        if origins is None or origins.modules != self.guards.modules:  # replaced by other submodules in the same state
            origins = self._origins = self._find_origins(model)

        def find(origin: Origin) -> Any:
            if isinstance(origin, tuple):  # as nearly all are
                owner, name = origin
                return getattr(model if owner is None else owner, name)
            return tensors[origin] if isinstance(origin, int) else origin

        inputs = [find(s) for s in origins.sources]
        looks = self._looks or self.uses == LOOKS_AT_USE
        self.had_gradient = self.runner.has_gradient(inputs) if looks else None
        second = Second(self._again, call, planned, inputs)
        numbers = read(self.numbers.places, call.spec, model) if self.numbers.places else None
        made = self.runner(inputs, [] if numbers is None else self.numbers.values(numbers), second, held_back)
        for (owner, leaf), output, source in origins.assigned:
            holder, value = model if owner is None else owner, find(source) if output is None else made[output]
            if leaf in holder._parameters:  # forward wrote past `nn.Module.__setattr__`, which would refuse it
                vars(holder)[leaf] = value
            else:
                setattr(holder, leaf, value)
        in_order = iter(made)
        results = [find(origins.aliased[k]) if k in origins.aliased else next(in_order) for k in range(origins.results)]
        captured, owned = self.trace.lowered.captured, [*tree.owned(call.given, call.spec)]
        if captured.fills and len({id(x.container) for x in owned}) < len(owned):
            raise RekindleError(
                f"the arguments of {type(model).__name__} hold one list, dict or object in two places, and forward changes "
                "some; pass a copy in one of them, or call rekindle.restore(model)"
            )
        containers = {x.place: x.container for x in owned}
        for spec in captured.fills:
            tree.fill(containers[spec.place or ()], results, spec, containers)
        return tree.unflatten(results, captured.output_spec, containers)

    def _find_origins(self, model: nn.Module) -> _Origins:
        c = self.trace.lowered.captured
        held: dict[Any, Any] = {**c.inputs, **c.constants}
        return _Origins(
            self.guards.modules or tuple(map(id, model.modules())),
            [held[p] if p in held else _owner(model, c.params.get(p) or c.buffers[p]) for p in self.runner.given],
            [(_owner(model, k), a.output, _origin(model, a.source)) for k, a in c.assigned.items()],
            {k: _origin(model, a) for k, a in c.aliased_inputs.items()},
            c.own + len(c.aliased_inputs),
        )


def _refuse_elsewhere(model: nn.Module, traced: Trace) -> None:
    """Raise PlanMismatch if the graph has kernels of a GPU, and the module holds real tensors."""
    kernels = traced.lowered.captured.elsewhere
    tensors = [*model.parameters(), *model.buffers()]
    if kernels and (not traced.fake if not tensors else not all(map(is_fake, tensors))):
        name = own_class(model).__name__
        raise PlanMismatch(
            f"this plan of {name} was made for the device {traced.options.attention}, with the {' and '.join(kernels)} of that "
            f"GPU in place of the CPU's: it says what fits there, and does not run here. To train {name} here, trace it "
            "without target=; to train it there, move it and its inputs to the GPU and plan it there"
        )


def answered(questions: Sequence[Question], tensors: list[torch.Tensor], model: nn.Module) -> bool:
    """Whether forward would get the same answers from these inputs, and from the model's buffers as they are now."""
    return all(q.same(tensors, model) for q in questions)


def _origin(model: nn.Module, source: int | str) -> Origin:
    return source if isinstance(source, int) else _owner(model, source)


def _owner(model: nn.Module, name: str) -> tuple[nn.Module | None, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path) if path else None, leaf
