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
from collections.abc import Iterable, Iterator
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
from ..private import backward_keeps_graph, backward_number, stand_for_many, will_run
from ..situation.surroundings import shares_casts
from .halves import saved_by_eager
from .program import NamesNaN, Program
from .results import refuse_ends
from .second import Second
from .shared_casts import PlainCasts, entered
from .step import GOES_ON, TrainingStep

# captured step -> the parameters of `Runner.rounds`, for all that run the step
_ROUNDING: weakref.WeakKeyDictionary[Captured, list[str]] = weakref.WeakKeyDictionary()


class _Boundary(torch.autograd.Function):
    """Owns results; the last one in backward, whose forward runs first, owns what forward saved too. Its backward computes
    nothing: the engine holds on to the gradients it is called with until it returns, and the next stage must be able to free
    them."""

    @staticmethod
    def forward(ctx: Any, step: TrainingStep, k: int, token: torch.Tensor) -> tuple[Any, ...]:
        runner = step.runner
        saved: list[Any] = []
        if k == len(runner.boundaries) - 1:
            step.results, saved = step.forward()
        ctx.step, ctx.k = step, k
        ctx.set_materialize_grads(False)
        own = runner.boundaries[k].outputs
        results = [step.results[i] for i in own]
        if saved and k:  # a result of a later node would lead back to this one
            theirs = {id(t) for t in step.results} - {id(t) for t in results}
            saved = [t.detach() if id(t) in theirs else t for t in saved]
        if k == 0:
            step.results = []
        anchor = _token(runner.device)  # leads from second derivatives, and from the stage before, to this node
        ctx.save_for_backward(*saved, anchor)
        ctx.mark_non_differentiable(*[t for i, t in zip(own, results, strict=True) if i not in runner.differentiable])
        return *results, anchor

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        step, k, runner = ctx.step, ctx.k, ctx.step.runner
        if step.inside == backward_number() and not step.is_at(runner.boundaries[k].stage):
            return None, None, _token(runner.device)
        own = runner.boundaries[k]
        for i, place in runner.lowered.captured.ignored_outputs.items() if k == 0 else ():
            if i in own.outputs and grads[own.outputs.index(i)] is not None:
                raise RekindleError(
                    f"a gradient came back to {place}, but the plan was made for the loss alone; give loss='all' to the call "
                    "that planned (rekindle.checkpoint, rekindle.trace, …) to plan for gradients of every result"
                )
        tangents = [grads[i] for i in own.sources.values()]
        del grads
        step.check_results()
        again = step.again == backward_number()  # in this backward, gradients of other results came to plain code
        again = again or torch.is_grad_enabled() or step.second.waits or stand_for_many(tangents)
        if again or step.second.is_stale():
            step.check_versions(runner.watched_inputs)
            *_, anchor = ctx.saved_tensors
            reached = [n for n in stages_after(ctx) if will_run(n)]
            whole = step.second.waits and all(map(_takes_all, reached))
            if step.start_again(k, tangents, [n.j for n in reached], anchor, whole):
                ctx.maybe_clear_saved_tensors()
                return None, None, _token(runner.device)
        step.take(k, tangents, functools.partial(_start, ctx))
        return None, None, _token(runner.device)


def _start(ctx: Any) -> None:
    """Let the backward begin that has come to this boundary."""
    step, last = ctx.step, ctx
    step.check_versions(step.runner.watched_inputs)
    while last.k < len(step.runner.boundaries) - 1:
        last = next(n for n in _after(last) if isinstance(n, _Boundary._backward_cls))
    *saved, _ = last.saved_tensors
    # A backward that ends at a result, as `autograd.grad(loss, result)` does, leaves what lies before the result.
    ends = last is not ctx and not will_run(next(stages_after(last)))
    if ends:  # the program stays where it is: a result that it holds would lead back to it
        saved = [t.detach() if t is not None and t.grad_fn is not None else t for t in saved]
    else:
        last.maybe_clear_saved_tensors()
    step.start(saved, ends or backward_keeps_graph())


class _Stage(torch.autograd.Function):
    """One stage: does nothing in forward, and runs its piece of the program in backward."""

    @staticmethod
    def forward(ctx: Any, step: TrainingStep, j: int, token: torch.Tensor, *params: torch.Tensor) -> torch.Tensor:
        ctx.step, ctx.j, ctx.given = step, j, len(params)
        if step.shared is not None:
            step.shared.stages.append(weakref.ref(ctx))
        return _token(step.runner.device)

    @staticmethod
    def backward(ctx: Any, _: Any) -> tuple[Any, ...]:
        step, gradients = ctx.step, ctx.step.stage(ctx.j)
        # Those that are held back come first: eager hands over the gradient of the later part first.
        found = [*[None] * (ctx.given - len(gradients)), *gradients]
        if backward_keeps_graph() and step.again != backward_number() and not _takes_all(ctx):
            step.left[ctx.j] = gradients  # another backward may begin here, for weights' gradients
        return None, None, _token(step.runner.device), *found


def _takes_all(stage: Any) -> bool:
    """Whether the backward that runs takes all gradients that the stage hands over."""
    try:
        return all(n is None or will_run(n) for n, _ in stage.next_functions)
    except RuntimeError:  # in `autograd.grad` torch does not say it of leaves
        return False


def _token(device: torch.device) -> torch.Tensor:
    # Empty, so that it takes no memory. The device is named, whatever the default device is during forward and backward.
    return torch.empty(0, device=device)


def boundary_of(results: Iterable[torch.Tensor]) -> Any:
    """The autograd node at which the backward of a planned call with these results begins; None: the call was not planned."""
    found = [t.grad_fn for t in results if isinstance(t.grad_fn, _Boundary._backward_cls)]
    return min(found, key=lambda node: node.k, default=None)  # type: ignore[union-attr]


def _after(node: Any) -> Iterator[Any]:
    """The autograd nodes of boundaries and stages that come after one of them, in the order of backward."""
    kinds = (_Boundary._backward_cls, _Stage._backward_cls)
    while isinstance(node := node.next_functions[0][0], kinds):
        yield node


def stages_after(boundary: Any) -> Iterator[Any]:
    """The autograd nodes of the stages of that backward, in its order."""
    return (n for n in _after(boundary) if isinstance(n, _Stage._backward_cls))


def last_stage_of(boundary: Any) -> Any:
    """The autograd node at which that backward ends."""
    return [boundary, *_after(boundary)][-1]


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
        self._place = place = {p: i for i, p in enumerate(self.given)}
        self._sums, self._parts = additions(c), program.parts
        self.added_inside = {place[p] for p in program.parts}
        # A tensor whose gradient may be handed over in parts is passed once per part.
        # The result number i is passed as -1 - i.
        self.boundaries = program.boundaries
        place |= {g: -1 - b.outputs[0] for b in self.boundaries[1:] for g in b.sources}
        self.stage_inputs = [
            [place[p] for p in stage for _ in range(self._parts.get(p, 1))] for stage in program.stages
        ]
        self.last_place = {i: (j, at) for j, stage in enumerate(self.stage_inputs) for at, i in enumerate(stage)}
        self.uncut = c.goes_on.difference(*(b.outputs for b in self.boundaries[1:]))
        self.trained = [place[p] for p in c.gradients]
        self.read_by_stage = [[place[p] for p in read] for read in program.read]
        self._saved_by_eager = {place[p] for p in saved_by_eager(lowered)}
        self.watched_inputs = sorted(self._saved_by_eager.union(*self.read_by_stage))
        self._parameters = [place[p] for p in c.gradients if p in c.params]
        self.differentiable = set(c.tangents.values()) | set(c.ignored_outputs)
        self.waiting: weakref.WeakSet[TrainingStep] = weakref.WeakSet()  # calls whose backward has not begun
        self.adds_up = bool(self._sums)
        self._depends = self._dependence()
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
        step = TrainingStep(self, [*inputs], second)  # whose forward empties the list
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
        results: dict[int, torch.Tensor] = {}
        todo = self.boundaries[:]
        for j in range(len(self.stage_inputs), -1, -1):
            if j < len(self.stage_inputs):
                given = [inputs[i] if i >= 0 else results[-1 - i] for i in self.stage_inputs[j]]
                for at, i in self.casts_of_stage[j] if instead else ():
                    if i in instead:
                        given[at] = instead[i]
                        given += [instead[i]] * (self.casts[i].uses - 1)
                token = _Stage.apply(step, j, token, *held.get(j, ()), *given)
            if todo and todo[-1].stage == j:
                own = todo.pop()
                *made, token = _Boundary.apply(step, len(todo), token)
                results.update(zip(own.outputs, made, strict=True))
        for i in self.lowered.captured.retained:
            results[i].retain_grad()
        inner = {i: node for i in self.uncut if (node := results[i].grad_fn) is not None}
        return refuse_ends([results[i] for i in range(len(results))], inner, GOES_ON)

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

    def has_gradient(self, inputs: list[Any]) -> bool:
        """Whether one of the call's parameters has a gradient now."""
        return any(inputs[i].is_leaf and inputs[i].grad is not None for i in self._parameters)

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

    def direct(self, k: int) -> set[int]:
        """The stage inputs to which gradients come from boundary k, not only through another one."""
        sources = self.boundaries[k].sources.keys()
        places = (zip(s, d, strict=True) for s, d in zip(self.program.stages, self._depends, strict=True))
        return {self._place[p] for row in places for p, needs in row if needs & sources}

    def without(self, j: int, absent: frozenset[fx.Node]) -> list[int]:
        """Positions in stage j of gradients that depend on no gradient from outside: eager leaves them None."""
        return [k for k, sources in enumerate(self._depends[j]) if not sources - absent]

    def _dependence(self) -> list[list[frozenset[fx.Node]]]:
        """For each stage, the sources on which each gradient that it hands over depends."""
        c, handed = self.lowered.captured, {g: iter(b.parts) for b in self.boundaries[1:] for g in b.sources}
        found: dict[fx.Node, frozenset[fx.Node]] = {t: frozenset([t]) for t in c.tangents}
        whole: dict[fx.Node, frozenset[fx.Node]] = {}  # gradients at cuts -> the sources of all that comes to them
        for n in c.nodes:
            found[n] = frozenset().union(*(found.get(a, frozenset()) for a in n.all_input_nodes))
            if n in handed:
                whole[n], found[n] = found[n], frozenset([n])
        rows: list[list[frozenset[fx.Node]]] = []
        for stage in self.program.stages:
            made = [(p, next(handed[p]) if p in handed else c.gradients[p]) for p in stage]
            rows.append([whole[n] if n is p else found[n] for p, n in made])
        return rows
