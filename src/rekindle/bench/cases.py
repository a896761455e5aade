"""A model with its training step and the instruments that measure it; plain steps, comparators and plans all use it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from ..model.graph import OPERATOR
from ..torch.costs.operator_calls import FlopCount, ModelledTime
from ..torch.lowering.lowered import Lowered
from ..torch.tensors.op_tensors import Instrument, Together
from .methods import TARGET, Within

# How often steps are timed for a ratio of wall times; guesses that gave stable ratios on the suite cpu.
ROUNDS = 5  # each times the plain step and the other step; the result is the median over rounds
STEPS_PER_ROUND = 3  # of each kind, after one step of warm-up; the fastest counts
PeakOf = Callable[[Callable[[], None], Sequence[Instrument]], int]


@dataclass(frozen=True)
class Measured:
    """Measurements of one step.

    peak : bytes above the memory that the step finds and leaves. flops, seconds : sums over every operator that ran;
    seconds follow from the target's roofline.
    """

    peak: int
    flops: int
    seconds: float


@dataclass(frozen=True)
class Case:
    """A model and how to measure one step of it.

    mode : context in which its steps run.
    step : one training step, forward and backward, by the model's present forward.
    peak_of : instrument for the peak bytes of a step; further instruments may watch the same step.
    extra_bytes : bytes that the instrument counts on top of a plan's activation peak.
    parity : whether the model's step gives the plain step's bits; None where that is unknown.
    fake : whether steps run on tensors without data.
    unused : results that the training loop does not read; see `rekindle.trace`.
    twin : makes the case of a small copy of the model on real tensors; None where there is none.
    """

    model: nn.Module
    sample: Any
    batch: int
    mode: AbstractContextManager[Any]
    step: Callable[[], None]
    peak_of: PeakOf
    extra_bytes: int
    parity: Callable[[], bool | None]
    fake: bool
    unused: tuple[str, ...] = ()
    twin: Callable[[], Case] | None = None

    def once(self) -> None:
        """Run one step without measuring it."""
        with self.mode:
            self.step()

    def measure(self, target: str = TARGET) -> Measured:
        """Measure one step.

        On real tensors, one step gives the peak and a second step the rest, because counting operators comes between the
        model and its kernels.
        """
        flops, time = FlopCount(), ModelledTime(target)
        with self.mode:
            if self.fake:
                peak = self.peak_of(self.step, (flops, time))
            else:
                peak = self.peak_of(self.step, ())
                with Together(flops, time):
                    self.step()
        return Measured(peak, flops.total, time.total)


def wall_ratio(step: Callable[[], None], within: Callable[[], AbstractContextManager[object]]) -> float:
    """Seconds of `step` inside the context divided by its seconds outside.

    The median of several rounds. Each round times both, so that other load on the machine slows both.
    """
    ratios = []
    for _ in range(ROUNDS):
        plain = _fastest(step)
        with within():
            ratios.append(_fastest(step) / plain)
    return statistics.median(ratios)


def _fastest(step: Callable[[], None]) -> float:
    step()
    found = []
    for _ in range(STEPS_PER_ROUND):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return min(found)


@dataclass(frozen=True)
class Distance:
    """How far a step that sums in another order is from the plain one; both start from the same random state.

    Largest differences of a step from the plain one: of the loss relative to the loss, and of any entry of any gradient
    relative to the largest entry of all gradients. (A gradient that is zero but for rounding has no scale of its own.)
    """

    loss: float
    gradients: float

    def __str__(self) -> str:
        return f"loss off by {self.loss:.1e}, gradients by {self.gradients:.1e} of the largest"


def difference(case: Case, within: Within) -> Distance:
    """Run the plain step and the step inside the context, on real tensors. Gradients that the model has stay."""
    loss, gradients = _step(case)
    with within():
        other, others = _step(case)
    if [g is None for g in gradients] != [g is None for g in others]:
        raise AssertionError("a parameter has a gradient in one of the two steps and none in the other")
    pairs = [(a, b) for a, b in zip(gradients, others, strict=True) if a is not None and b is not None]
    largest = max(float(a.abs().max()) for a, _ in pairs)
    off = max(float((a - b).abs().max()) for a, b in pairs)
    return Distance(abs(other - loss) / abs(loss), off / largest)


def _step(case: Case) -> tuple[float, list[torch.Tensor | None]]:
    """The loss of one step and the gradients of all parameters."""
    from ..torch.tensors.loss import default_loss

    found: list[float] = []

    def keep(model: Any, args: Any, result: Any) -> None:
        found.append(default_loss(result).item())

    parameters = list(case.model.parameters())
    before = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    hook = case.model.register_forward_hook(keep)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            case.once()
        return found[0], [p.grad for p in parameters]
    finally:
        hook.remove()
        for p, g in zip(parameters, before, strict=True):
            p.grad = g


def node_runs(low: Lowered, runs: Iterable[int]) -> int:
    """Number of nodes of the graph that run when ops run in this order: every ATen call, and each view of a result that a later
    op reads, once for every time that the result is computed.

    By our reading FastSA counts so (Imanishi, Xu, Takagi, Wang, Castillo, A fast heuristic to optimize time-space tradeoff for
    large models, NeurIPS 2023): its graphs come from torch.fx, in which views and the members of an op's result are nodes too.
    """
    views = low.views
    made_by = {c.node: i for i, c in enumerate(low.calls) if c.kind == OPERATOR and c.node is not None}
    below: dict[fx.Node, tuple[int, ...]] = {}  # view -> ops whose results it is of
    for n in low.captured.nodes:
        if n in views:
            ops = [
                o for a in n.all_input_nodes for o in (below[a] if a in views else [made_by[a]] if a in made_by else [])
            ]
            below[n] = tuple(dict.fromkeys(ops))
    times = [0] * len(low.calls)
    taken: set[tuple[fx.Node, tuple[int, ...]]] = set()
    count = 0
    for i in runs:
        call = low.calls[i]
        waiting = list(_operands(low, i))
        while waiting:
            n = waiting.pop()
            if n in views and (key := (n, tuple(times[o] for o in below[n]))) not in taken:
                taken.add(key)
                waiting += n.all_input_nodes
        times[i] += 1
        count += call.kind == OPERATOR
    return count + len(taken)


def _operands(low: Lowered, i: int) -> Iterable[fx.Node]:
    """The nodes that op i reads."""
    call = low.calls[i]
    if call.kind == "boundary":
        return [n for n in low.captured.outputs if isinstance(n, fx.Node)]
    if call.node is None:
        return []
    if call.kind == OPERATOR:
        return call.node.all_input_nodes
    handed_over = {"accumulate": low.captured.gradients, "copy_": low.captured.mutations}.get(call.kind, {})
    return [handed_over[call.node]] if call.node in handed_over else []
