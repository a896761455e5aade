"""Runs a program inside autograd: one Function per stage, chained by a token, so that gradients arrive early.

Forward runs once, whole. Each stage's Function takes the token of the stage that comes after it in backward and the
parameters whose gradients it finishes; the engine calls the stages in order and hands each one's gradients to `.grad`
and its hooks before the next stage runs. Real values pass between stages inside one suspended generator.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ...errors import RekindleError
from ...printed import listed
from ..capture.captured import Captured
from ..lowering.gradient_additions import additions, casts
from ..lowering.lowered import Lowered
from ..offload.away import Away, HostPool
from ..operators.node_tensors import overlap
from ..private import backward_keeps_graph, backward_number, disable_autocast, stand_for_many, will_run
from ..situation.surroundings import shares_casts
from .anomaly import NamesNaN
from .halves import saved_by_eager
from .program import Program
from .results import no_views
from .second import Second
from .shared_casts import CallInBlock, PlainCasts, entered

# captured step -> the parameters of `Runner.rounds`, for all that run the step
_ROUNDING: weakref.WeakKeyDictionary[Captured, list[str]] = weakref.WeakKeyDictionary()


@dataclass(eq=False)
class TrainingStep:
    """One training step in progress: a forward call and what its backward needs."""

    runner: Runner
    inputs: list[Any]
    second: Second
    rng: dict[int | str, Any] = field(default_factory=dict)
    generator: Iterator[None] | None = None
    out: list[Any] = field(default_factory=list)
    absent: tuple[int, ...] = ()
    trained: frozenset[int] = frozenset()  # ids of the tensors that gradients come to
    versions: dict[int, tuple[Callable[[], Any], int]] = field(default_factory=dict)  # of inputs, as forward left them
    shared: CallInBlock | None = None  # under autocast, what it must know of other calls
    apart: bool = False  # backward leaves sums of gradients apart
    instead: frozenset[int] = frozenset()  # inputs in whose place another tensor gets the gradients of their casts
    differentiated: dict[int, list[Any]] = field(default_factory=dict)  # stage -> its gradients, if `second` made them

    def forward(self) -> tuple[list[Any], list[Any]]:
        inputs, self.inputs = self.inputs, []
        self.trained = self.runner.trained(inputs)
        known = {id(t) for t in inputs}
        watched = {i: inputs[i] for i in self.runner.watched_inputs}
        with disable_autocast():
            results, saved = self.runner.program.forward(inputs, self.rng)
            if "away" in self.rng:
                self.rng["away"].settle()
        self.versions = {i: (weakref.ref(t), t._version) for i, t in watched.items() if not t.is_inference()}
        for i, t in enumerate(results):
            if id(t) in known:  # autograd would treat two results, or a result and a parameter, as one tensor
                results[i] = t.detach()
            known.add(id(t))
        if any(t._is_view() for t in results):
            results = no_views(results, [*inputs, *saved])
        return results, saved

    def check_versions(self, which: Iterable[int]) -> None:
        """Raise an error if one of these inputs was written to since forward."""
        for i in which:
            if (noted := self.versions.get(i)) and (t := noted[0]()) is not None and t._version != noted[1]:
                raise self.runner.written_to(i, t, noted[1])

    def start(self, saved: list[Any], tangents: list[Any]) -> None:
        """Begin a backward. An earlier backward that was left unfinished (autograd.grad on a subset) is dropped."""
        self.runner.waiting.discard(self)
        self.out.clear()
        self.differentiated.clear()
        apart = _given_before(self.trained, self.runner.may_part) or self.runner.adds_up_inside(self.instead)
        if self.shared is not None:
            self.shared.begun, apart = backward_number(), apart or bool(self.shared.left)
        self.apart = apart
        self.absent = tuple(i for i, t in enumerate(tangents) if t is None)
        for i in self.absent:
            tangents[i] = self.runner.zero_tangent(i)
        retain = backward_keeps_graph()
        self.generator = self.runner.program.backward(saved, tangents, self.rng, self.out, retain, apart)

    def start_again(self, tangents: list[Any], boundary: Any, anchor: torch.Tensor) -> None:
        """Begin a backward by the module's own forward. Gradients of stages that it does not reach would live on."""
        self.runner.waiting.discard(self)
        if self.shared is not None:
            self.shared.begun = backward_number()
        given = dict(zip(self.runner.lowered.captured.tangents.values(), tangents, strict=True))
        reached = {n.j: self.runner.stage_inputs[n.j] for n in stages_after(boundary) if will_run(n)}
        casts = [(j, at) for j in reached for at, _ in self.runner.casts_of_stage[j]] if self.shared else []
        self.differentiated = self.second.gradients(given, reached, casts, anchor)

    def stage(self, j: int) -> list[Any]:
        """Run stage j and take its gradients."""
        if j in self.differentiated:
            return self._handed_over(j, self.differentiated.pop(j))
        if self.generator is None:
            raise RekindleError("this part of the backward was run already; call backward with retain_graph=True")
        try:
            self.check_versions(self.runner.read_by_stage[j])
            with disable_autocast(), self.runner.watched():
                next(self.generator)
        except BaseException:
            self.generator = None  # its tensors must not outlive the error
            self.out.clear()
            raise
        gradients = self.out[:]
        self.out.clear()
        if j == len(self.runner.program.stages) - 1:
            self.generator.close()  # type: ignore[attr-defined]
            self.generator = None
        for k in self.runner.without(j, self.absent) if self.absent else ():
            gradients[k] = None
        return self._handed_over(j, self.runner.in_parts(j, gradients))

    def _handed_over(self, j: int, gradients: list[Any]) -> list[Any]:
        """The gradients of stage j, with those that it hands over for casts where eager has them."""
        shared = self.shared
        if shared is None or not (self.apart or self.instead):
            return gradients
        for at, i in self.runner.casts_of_stage[j]:
            g, leaf, cast = gradients[at], shared.leaves.get(i, 0), self.runner.casts[i]
            if i in self.instead or leaf in shared.left or isinstance(g, list):
                low = [x.to(cast.dtype) for x in (g if isinstance(g, list) else [g]) if x is not None]
                low = shared.with_left(leaf, low)
                if i in self.instead:
                    gradients[at], *more = [*low, *[None] * (cast.uses - len(low))]  # type: ignore[misc]
                    gradients += more
                else:
                    gradients[at] = functools.reduce(torch.add, low).float() if low else None
        return gradients


# The engine's number of a backward call -> ids of the tensors to which that call has brought gradients so far.
_given: dict[int, frozenset[int]] = {}
_BACKWARDS_MOST = 8  # backward calls that run at the same time: in several threads, or one inside another


def _given_before(tensors: frozenset[int], ask: bool) -> bool:
    """Whether the running backward call has already brought gradients to one of the tensors; False unless `ask`."""
    number = backward_number()
    before = _given.pop(number, frozenset())
    _given[number] = before | tensors if before else tensors
    while len(_given) > _BACKWARDS_MOST:
        _given.pop(next(iter(_given)), None)
    return ask and not before.isdisjoint(tensors)


class _Boundary(torch.autograd.Function):
    """Owns the results and what forward saved. Its backward computes nothing: the engine holds on to the gradients it is
    called with until it returns, and the first stage must be able to free them."""

    @staticmethod
    def forward(ctx: Any, step: TrainingStep, token: torch.Tensor) -> tuple[Any, ...]:
        results, saved = step.forward()
        ctx.step = step
        if step.shared is not None:
            step.shared.boundary = weakref.ref(ctx)
        ctx.set_materialize_grads(False)
        runner = step.runner
        anchor = _token(runner.device)  # leads from second derivatives to this node
        ctx.save_for_backward(*saved, anchor)
        ctx.mark_non_differentiable(*[t for i, t in enumerate(results) if i not in runner.differentiable])
        return *results, anchor

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        step, runner = ctx.step, ctx.step.runner
        for i, place in runner.lowered.captured.ignored_outputs.items():
            if grads[i] is not None:
                raise RekindleError(
                    f"a gradient came back to {place}, but the plan was made for the loss alone; give loss='all' to the call "
                    "that planned (rekindle.checkpoint, rekindle.trace, …) to plan for gradients of every result"
                )
        step.check_versions(runner.watched_inputs)
        *saved, anchor = ctx.saved_tensors
        ctx.maybe_clear_saved_tensors()
        tangents = [grads[i] for i in runner.lowered.captured.tangents.values()]
        del grads
        if torch.is_grad_enabled() or step.second.waits or stand_for_many(tangents):
            step.start_again(tangents, ctx, anchor)
        else:
            step.start(saved, tangents)
        return None, _token(runner.device)


class _Stage(torch.autograd.Function):
    """One stage: does nothing in forward, and runs its piece of the program in backward."""

    @staticmethod
    def forward(ctx: Any, step: TrainingStep, j: int, token: torch.Tensor, *params: torch.Tensor) -> torch.Tensor:
        ctx.step, ctx.j, ctx.given = step, j, len(params)
        return _token(step.runner.device)

    @staticmethod
    def backward(ctx: Any, _: Any) -> tuple[Any, ...]:
        gradients = ctx.step.stage(ctx.j)
        # Those that are held back come first: eager hands over the gradient of the later part first.
        return None, None, _token(ctx.step.runner.device), *[None] * (ctx.given - len(gradients)), *gradients


def _token(device: torch.device) -> torch.Tensor:
    # Empty, so that it takes no memory. The device is named, whatever the default device is during forward and backward.
    return torch.empty(0, device=device)


def boundary_of(results: Iterable[torch.Tensor]) -> Any:
    """The autograd node at which the backward of a planned call with these results begins; None: the call was not planned."""
    return next((t.grad_fn for t in results if isinstance(t.grad_fn, _Boundary._backward_cls)), None)


def stages_after(boundary: Any) -> Iterator[Any]:
    """The autograd nodes of the stages of that backward, in its order."""
    node = boundary
    while node := next((n for n, _ in node.next_functions if isinstance(n, _Stage._backward_cls)), None):
        yield node


def last_stage_of(boundary: Any) -> Any:
    """The autograd node at which that backward ends."""
    return [boundary, *stages_after(boundary)][-1]


class Runner:
    """Runs a program as part of the user's autograd graph.

    pool : of the memory of the host to which steps copy; None: they copy nothing. host_budget : bytes that the copies of all
    steps in progress may take of it; None: what they need.
    """

    def __init__(
        self, lowered: Lowered, program: Program, pool: HostPool | None = None, host_budget: int | None = None
    ):
        self.lowered, self.program, self.pool, self.host_budget = lowered, program, pool, host_budget
        c = lowered.captured
        self.device = c.device
        self.given = [p for p in c.placeholders if p.op == "placeholder"]
        place = {p: i for i, p in enumerate(self.given)}
        self._sums, self._parts = additions(c), program.parts
        self._added_inside = {place[p] for p in program.parts}
        # A tensor whose gradient may be handed over in parts is passed once per part.
        self.stage_inputs = [
            [place[p] for p in stage for _ in range(self._parts.get(p, 1))] for stage in program.stages
        ]
        self._trained = [place[p] for p in c.gradients]
        self.read_by_stage = [[place[p] for p in read] for read in program.read]
        self._saved_by_eager = {place[p] for p in saved_by_eager(lowered)}
        self.watched_inputs = sorted(self._saved_by_eager.union(*self.read_by_stage))
        self._parameters = [place[p] for p in c.gradients if p in c.params]
        self.differentiable = set(c.tangents.values()) | set(c.ignored_outputs)
        self._tangents = list(c.tangents)
        self.waiting: weakref.WeakSet[TrainingStep] = weakref.WeakSet()  # calls whose backward has not begun
        self.adds_up = bool(self._sums)
        self._depends = self._tangent_dependence()
        self.casts = {place[p]: cast for p, cast in casts(c).items()}
        self.casts_of_stage, self._stage_of_cast = self._find_casts()
        self._plain_casts = PlainCasts()

    def __call__(
        self, inputs: list[torch.Tensor], numbers: list[Any], second: Second, held_back: Iterable[torch.Tensor] = ()
    ) -> list[torch.Tensor]:
        """The module's results for one tensor per placeholder of the graph, and its numbers, in order of their markers.

        second : makes the gradients of a backward with create_graph=True. held_back : other tensors, whose gradients autograd
        holds back until the last stage that reads their memory is over.
        """
        step = TrainingStep(self, inputs, second)
        self.waiting.add(step)
        if numbers:
            step.rng["numbers"] = numbers
        if self.pool is not None:
            step.rng["away"] = Away(self.program.host_bytes, self.pool, self.host_budget)
        instead: dict[int, torch.Tensor] = {}
        if self.casts and shares_casts():
            step.shared, instead = entered(inputs, self.casts, self._stage_of_cast, self._plain_casts)
            step.instead = frozenset(instead)
        token = _token(self.device).requires_grad_()
        held: dict[int, list[torch.Tensor]] = {}
        for t in held_back:
            reads = [j for j, read in enumerate(self.read_by_stage) if any(overlap(t, inputs[i]) for i in read)]
            held.setdefault(reads[-1] if reads else -1, []).append(t)
        for j in range(len(self.stage_inputs) - 1, -1, -1):
            given = [inputs[i] for i in self.stage_inputs[j]]
            for at, i in self.casts_of_stage[j] if instead else ():
                if i in instead:
                    given[at] = instead[i]
                    given += [instead[i]] * (self.casts[i].uses - 1)
            token = _Stage.apply(step, j, token, *held.get(j, ()), *given)
        return list(_Boundary.apply(step, token))[:-1]

    def _find_casts(self) -> tuple[list[list[tuple[int, int]]], dict[int, int]]:
        """(per stage, the (place among its `stage_inputs`, number of the input) at which it hands over the gradient of a cast;
        number of an input -> that stage)."""
        seen: Counter[int] = Counter()
        found, stage_of = [], {}  # type: ignore[var-annotated]
        for j, stage in enumerate(self.stage_inputs):
            found.append([])
            for at, i in enumerate(stage):
                if i in self.casts and seen[i] == self.casts[i].part:
                    found[j].append((at, i))
                    stage_of[i] = j
                seen[i] += 1
        return found, stage_of

    def adds_up_inside(self, some: Iterable[int]) -> bool:
        """Whether the program adds up the gradient of one of these inputs, or of its cast."""
        return any(i in self._added_inside or self.casts[i].adds for i in some)

    def watched(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which a stage runs: in autograd's anomaly mode, one that names the op that made a NaN."""
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
            return NamesNaN(self.lowered, self.program)
        return contextlib.nullcontext()

    def written_to(self, i: int, t: torch.Tensor, before: int) -> Exception:
        """The error of a backward that needs input i as it was in forward. before : its version then."""
        c, p = self.lowered.captured, self.given[i]
        name = c.params.get(p) or c.buffers.get(p) or f"input {c.inputs.get(p, i)}"
        if i in self._saved_by_eager:
            return RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{name} [{t.type()} {list(t.shape)}] is at version {t._version}; expected version {before} instead"
            )
        return RekindleError(
            f"{name} was written to in place after forward, and the planned backward reads it again, to recompute results of "
            "forward. Eager does not need it there. Write to it after backward, or call rekindle.restore(model) for such steps"
        )

    @property
    def may_part(self) -> bool:
        """Whether the program adds up a gradient inside that it can also hand over in parts."""
        return bool(self._parts)

    def has_gradient(self, inputs: list[Any]) -> bool:
        """Whether one of the call's parameters has a gradient now."""
        return any(inputs[i].is_leaf and inputs[i].grad is not None for i in self._parameters)

    def trained(self, inputs: list[Any]) -> frozenset[int]:
        """ids of a call's input tensors to which gradients come."""
        return frozenset([id(inputs[i]) for i in self._trained])

    def in_parts(self, j: int, gradients: list[Any]) -> list[Any]:
        """The gradients of stage j, one for each of its `stage_inputs`."""
        if not self._parts:
            return gradients
        found: list[Any] = []
        for p, g in zip(self.program.stages[j], gradients, strict=True):
            parts = g if isinstance(g, tuple) else (g,)
            found += [*parts, *[None] * (self._parts.get(p, 1) - len(parts))]
        return found

    @property
    def rounds(self) -> str:
        """Names of the parameters whose gradients differ from eager's by rounding if one backward goes through two calls."""
        return listed(_ROUNDING.get(self.lowered.captured, []), 2)

    def let_round(self) -> None:
        """Note that gradients added up from several uses differ from eager's by rounding."""
        params = self.lowered.captured.params
        _ROUNDING[self.lowered.captured] = [params[p] for p in self._sums if params.get(p)] or ["an input"]

    @property
    def waits(self) -> bool:
        """Whether the backward of an earlier call has not begun yet."""
        return len(self.waiting) > 0

    def zero_tangent(self, i: int) -> torch.Tensor:
        """A zero gradient, for a result on which the loss does not depend."""
        t = self._tangents[i].meta["val"]
        return torch.zeros(t.shape, dtype=t.dtype, device=t.device)

    def without(self, j: int, absent: tuple[int, ...]) -> list[int]:
        """Positions in stage j of gradients that depend on no gradient from the loss: eager leaves them None."""
        return [
            k for k, p in enumerate(self.program.stages[j])
            if not self._depends[self.lowered.captured.gradients[p]] - set(absent)
        ]  # fmt: skip

    def _tangent_dependence(self) -> dict[fx.Node, frozenset[int]]:
        c = self.lowered.captured
        found: dict[fx.Node, frozenset[int]] = {t: frozenset([i]) for i, t in enumerate(c.tangents)}
        for n in c.nodes:
            found[n] = frozenset().union(*(found.get(a, frozenset()) for a in n.all_input_nodes))
        return found
