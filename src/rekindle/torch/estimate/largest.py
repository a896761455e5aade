"""`rekindle.largest_batch`: the largest batch that fits a device, without and with a plan; samples of other batches."""

from __future__ import annotations

import time
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
from .verbs import EstimateRequest

MOST_S = 35.0  # after which the command line begins with no other batch; the last one takes up to 20 s of one core
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
    options = search_options(budget, effort, offload, host_budget, progress)
    if gradients is not None:
        choice("gradients", gradients, GRADIENTS)
    request = EstimateRequest.of_user(model, optimizer, target, gradients=gradients or "fresh", progress=progress)
    return BatchSearch(request, make_sample, options, gradients or "kept").largest(max(1, int(first)), plans)


def search_options(
    budget: str | int, effort: str, offload: bool | str, host_budget: str | int | None, progress: Progress = None
) -> PlanOptions:
    """The options of the plans of a search for the largest batch, checked.

    Raises
    ------
    UsageError : an argument makes no sense.
    """
    goal = Goal.parse(budget)
    if goal.budget is None:
        raise UsageError(f"budget={value(budget)} is a fraction; give the memory of the device, such as '24GiB'")
    host = core_accept.host_bytes(host_budget)
    return core_accept.search(PlanOptions(goal, effort=effort, offload=offload, host_budget=host, progress=progress))


class BatchSearch:
    """One search for the largest batch.

    request : of the plain step. gradients : of planned ones. told : gets each row as soon as it is known; where the plan of a
        batch is bettered, a second one.
    known : the estimates by batch. most_s : seconds after which plans of no other batch are looked for.
    """

    def __init__(
        self,
        request: EstimateRequest,
        make_sample: Callable[[int], Any],
        options: PlanOptions,
        gradients: str,
        told: Callable[[BatchRow], None] = lambda _: None,
        most_s: float = float("inf"),
    ) -> None:
        assert options.goal.budget is not None
        self._request, self._make, self._told, self._limit = request, make_sample, told, options.goal.budget
        planned = Model(request.model, make_sample, request.optimizer, request.target, gradients)
        self._batches = PlannedBatches(planned, self._limit, options, self.estimated)
        self._rows: dict[int, BatchRow] = {}
        self._until = time.monotonic() + most_s
        self.known: dict[int, Estimate] = {}

    def estimated(self, batch: int) -> Estimate:
        """The estimate of the plain step."""
        if batch not in self.known:
            self.known[batch] = self._request.of(self._make(batch))
        return self.known[batch]

    def largest(self, first: int, plans: bool = True) -> LargestBatch:
        """The largest batch, and the rows of the batches that were looked at."""
        progress = self._request.progress
        with accept.alone("largest_batch", self._request.model, progress), telling(progress):
            tried: dict[str, dict[int, int]] = {"plain": {}, "planned": self._batches.needs}

            def plain_need(batch: int) -> int:
                tried["plain"][batch] = size = self.estimated(batch).peak_bytes
                if size <= self._limit:
                    self._row(batch)
                return size

            e = self.estimated(first)
            empty = e.parameter_bytes + e.buffer_bytes + e.optimizer_bytes + e.overhead_bytes
            best = plain = largest(plain_need, self._limit, first, empty=empty)
            why, more = "" if plans else "plans=False", False
            if plans:
                try:
                    best = max(plain, self._with_plan(plain))
                    for b in self._batches.traced(plain + 1, best - 1):  # rows of traces that are made already
                        if b in self._batches.plans or time.monotonic() < self._until:
                            self._batches.settle(b)
                            self._row(b)
                except TraceError as e:
                    why = str(e)
                except TimeoutError:
                    best, more = max([plain, *(b for b, p in self._batches.plans.items() if p is not None)]), True
        plan = self._batches.plans.get(best) if best > plain else None
        rows = tuple(self._rows[b] for b in sorted(self._rows))
        return LargestBatch(best, Answer(plain, plan, self._limit, tried["plain"].get(plain), tried, rows, why, more))

    def _with_plan(self, plain: int) -> int:
        """The largest batch with a plan: the smallest plans say where to look, the search that was asked for confirms it."""
        batches, limit, first = self._batches, self._limit, max(1, 2 * plain)
        empty = batches.empty(first)
        guess = largest(batches.at_least, limit, first, empty=empty)
        return largest(self._need, limit, max(1, guess), exact=False, empty=empty)

    def _need(self, batch: int) -> int:
        if self._batches.plans and time.monotonic() > self._until:
            raise TimeoutError
        size = self._batches.need(batch)
        self._row(batch)
        return size

    def _row(self, batch: int) -> None:
        b = self._batches
        row = BatchRow.of(
            batch,
            self.estimated(batch).peak_bytes,
            self._limit,
            b.plans.get(batch),
            b.needs.get(batch),
            batch in b.proven,
        )
        if self._rows.get(batch) != row:
            self._rows[batch] = row
            self._told(row)


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
