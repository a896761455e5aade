"""`rekindle.largest_batch`: the largest batch that fits a device, without and with a plan; samples of other batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from torch import nn

from ...arguments import choice, flag
from ...ask import GRADIENTS, Goal, PlanOptions
from ...errors import TraceError, UsageError
from ...estimates.batches import Answer, BatchRow, LargestBatch, largest
from ...estimates.estimate import Estimate
from ...planning import accept as core_accept
from ...printed import value
from ...saying.progress import Progress, telling
from .. import accept
from ..tensors import tree
from .planned_batches import Model, PlannedBatches
from .verbs import EstimateRequest, device_of

FIRST = 8  # the batch to begin with: the line through it and its double tells where to look


def largest_batch(
    model: nn.Module,
    make_sample: Callable[[int], Any],
    budget: str | int,
    optimizer: torch.optim.Optimizer | type | str | None = "adamw",
    *,
    target: str | None = None,
    first: int = FIRST,
    plans: bool = True,
    effort: str = "normal",
    offload: bool | str = False,
    host_budget: str | int | None = None,
    gradients: str | None = None,
    progress: Progress = None,
) -> LargestBatch:
    """The largest batch whose training step fits the budget: an int, the largest one with a plan.

    Its `plain` is the largest batch without a plan, its `plan` and `overhead` belong to the largest one with a plan. Both
    are confirmed by their neighbours: the batch fits, and the next one does not.

    Parameters
    ----------
    make_sample : function from a batch to the sample of a step.
    budget : memory of the device, such as "24GiB", or an int of bytes: everything included, on a GPU also the framework's
        own memory and the allocator's rounding.
    optimizer, target : as in `rekindle.estimate`. first : the batch to begin with.
    plans : False: only the plain step is looked at, in less time.
    gradients : as in `rekindle.trace`, for both steps; None: "fresh" for the plain step and "kept" for planned ones, which is
        safe for any loop.
    effort, offload, host_budget, progress : as in `rekindle.plan`. A higher effort, or copies to the host, may give a plan for
        a larger batch. With a target, copies take the time of its link.

    Raises
    ------
    TraceError, UsageError : as `rekindle.estimate`. A model that cannot be captured whole is not planned, and `why_no_plan`
        says so.
    """
    accept.process("largest_batch")
    if not callable(make_sample):
        raise UsageError(
            f"make_sample={value(make_sample)} cannot be called; give a function from a batch to its sample, such as "
            "lambda batch: torch.randn(batch, 3, 224, 224)"
        )
    flag("plans", plans)
    if not isinstance(first, Integral) or isinstance(first, bool):
        raise UsageError(f"first={value(first)} must be a whole number, the batch to begin with")
    goal = Goal.parse(budget)
    if goal.budget is None:
        raise UsageError(f"budget={value(budget)} is a fraction; give the memory of the device, such as '24GiB'")
    host = core_accept.host_bytes(host_budget)
    options = core_accept.search(PlanOptions(goal, effort=effort, offload=offload, host_budget=host, progress=progress))
    limit = goal.budget
    if gradients is not None:
        choice("gradients", gradients, GRADIENTS)

    accept.module(model)
    accept.optimizer(optimizer)
    request = EstimateRequest(
        model, optimizer, device_of(model, target), gradients=gradients or "fresh", progress=progress
    )

    @functools.cache
    def estimated(batch: int) -> Estimate:
        return request.of(make_sample(batch))

    tried: dict[str, dict[int, int]] = {"plain": {}, "planned": {}}

    def plain_need(batch: int) -> int:
        tried["plain"][batch] = estimated(batch).peak_bytes
        return tried["plain"][batch]

    with accept.alone("largest_batch", model, progress), telling(progress):
        plain = largest(plain_need, limit, first)
        batches = PlannedBatches(
            Model(model, make_sample, optimizer, target, gradients or "kept"), limit, options, estimated
        )
        best, why = plain, "" if plans else "plans=False"
        if plans:
            try:
                best = max(plain, _with_plan(batches, limit, plain))
                for b in batches.traced(plain + 1, best):  # rows for the table, of traces that are made already
                    batches.need(b)
            except TraceError as e:
                why = str(e)
    tried["planned"] |= batches.needs
    at = {b: estimated(b).peak_bytes for b in {*tried["plain"], *batches.plans}}
    rows = tuple(
        BatchRow.of(b, at[b], limit, batches.plans.get(b), batches.needs.get(b))
        for b in sorted(at)
        if at[b] <= limit or b in batches.plans
    )
    plan = batches.plans.get(best) if best > plain else None
    return LargestBatch(best, Answer(plain, plan, limit, tried["plain"].get(plain), tried, rows, why))


def _with_plan(batches: PlannedBatches, limit: int, plain: int) -> int:
    """The largest batch with a plan; a quick search says where to look, and the search that was asked for confirms it."""
    quick: dict[int, int] = {}

    def at_least(batch: int) -> int:
        quick[batch] = batches.at_least(batch)
        return quick[batch]

    guess = largest(at_least, limit, max(1, 2 * plain))
    return largest(batches.need, limit, max(1, guess), about=quick)


class OtherBatches:
    """Samples of other batches: the examples of the given one, over and over.

    batch : of the given sample, the first dimension that its tensors share. resized : how many tensors have it. words : says
    how the batch is changed.
    """

    def __init__(self, sample: Any) -> None:
        args, kwargs = accept.sample(sample)
        self._tensors, self._spec = tree.flatten((args, kwargs))
        self._as_tensor = isinstance(sample, torch.Tensor)
        sizes = [int(t.shape[0]) for t in self._tensors if t.dim()]
        if not sizes:
            raise UsageError("no tensor of the sample has a dimension, so that no other batch can be made of it")
        self.batch = max(dict.fromkeys(sizes), key=sizes.count)
        self.resized = sizes.count(self.batch)

    @property
    def words(self) -> str:
        return (
            f"the batch is the first dimension, {self.batch}, of {self.resized} of the sample's {len(self._tensors)} tensors; "
            "for other batches its examples are repeated"
        )

    def __call__(self, batch: int) -> Any:
        """The sample with this batch."""
        made = [self._of(t, batch) if t.dim() and t.shape[0] == self.batch else t for t in self._tensors]
        args, kwargs = tree.unflatten(made, self._spec)
        if kwargs:
            return kwargs
        return args[0] if self._as_tensor else args

    def _of(self, t: torch.Tensor, batch: int) -> torch.Tensor:
        if batch == self.batch or not self.batch:
            return t
        with torch.no_grad():
            whole = t.repeat(-(-batch // self.batch), *[1] * (t.dim() - 1))[:batch].clone()
        return whole.requires_grad_(t.requires_grad)
