"""Plans of a model for one batch after another, within one budget."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...ask import Budget, LeastMemory, PlanOptions
from ...errors import InfeasibleBudget, UsageError
from ...estimates.estimate import Estimate
from ...model.graph import OPERATOR, Graph
from ...model.held import held_peak
from ...model.plan import Plan
from ...planning.carrying import carried_plan
from ...planning.planner import plan_graph
from ...planning.variants import cheaper
from ...saying.progress import announce
from ...saying.sizes import format_bytes
from .. import accept
from ..operators.record import workspace_bytes
from ..private import is_fake
from ..run import stages
from ..serve.plan_trace import bookkeeping, plan_rewritten, rewritten_alike, with_link
from ..tensors import tree
from ..tensors.op_tensors import tensors_in
from ..trace import Trace, trace
from .kernel_memory import kernel_call, may_take_memory
from .twin import twin
from .watch import OPTIMIZER


@dataclass(frozen=True)
class Model:
    """A model whose batches are planned. optimizer, target, gradients : as in `rekindle.estimate`."""

    model: nn.Module
    make_sample: Callable[[int], Any]
    optimizer: Any
    target: str | None
    gradients: str


class PlannedBatches:
    """Traces and plans of batches, each made once. estimate : the estimate of a batch. proven : the batches that no plan fits,
    as bounds show."""

    def __init__(self, model: Model, limit: int, options: PlanOptions, estimate: Callable[[int], Estimate]) -> None:
        self._model, self._limit, self._options, self._estimate = model, limit, options, estimate
        self._traces: dict[int, Trace] = {}
        self._smallest: list[Plan] = []
        self.plans: dict[int, Plan | None] = {}
        self.needs: dict[int, int] = {}
        self.proven: set[int] = set()

    def empty(self, batch: int) -> int:
        """About the bytes of a planned step without examples, by the trace of this batch."""
        return self.trace(batch).graph.with_resident(self._limit - self.budget(batch))

    def at_least(self, batch: int) -> int:
        """Bytes that the smallest plan of a quick search takes at this batch, or that the optimizer's step takes.

        The schedule of another batch serves if it is about as small here.
        """
        t, options = self.trace(batch), replace(self._options, goal=LeastMemory(), effort="quick")
        announce(options.progress, f"looking for the smallest plan at batch {batch}")
        graph, how = self._asked(t, options)
        found = carried_plan(graph, options, self._smallest, **how)
        if found is None:
            found = plan_graph(graph, options, **how, proves=False)
            self._smallest.append(found)
        return max(self._held(found, batch), self._beside_steps(batch))

    def need(self, batch: int) -> int:
        """At most the limit if a plan for this batch fits; else the bytes of the smallest budget that is known to be kept."""
        if batch not in self.needs:
            self.needs[batch] = max(self._within(batch), self._beside_steps(batch))
            if self._beside_steps(batch) > self._limit:
                self.proven.add(batch)
        return self.needs[batch]

    def settle(self, batch: int) -> None:
        """Find the plan of a batch, or better it by schedules that were found since."""
        if (plan := self.plans.get(batch)) is None:
            self.need(batch)
            return
        better = cheaper(plan, self._carried(batch, self.budget(batch)))
        if better is not None and better is not plan:
            self.plans[batch] = better
            self.needs[batch] = max(self._held(better, batch), self._beside_steps(batch))

    def traced(self, least: int, most: int) -> list[int]:
        """The batches from `least` to `most` that were traced, the largest first."""
        return [b for b in sorted(self._traces, reverse=True) if least <= b <= most]

    def _within(self, batch: int) -> int:
        budget = self.budget(batch)
        if budget <= 0:
            self.plans[batch] = None
            self.proven.add(batch)
            return self._limit + 1
        refused, found = None, self._carried(batch, budget)
        try:
            found = cheaper(self._plan(batch, budget), found)
        except InfeasibleBudget as e:
            refused = e
        self.plans[batch] = found
        if found is None:
            assert refused is not None
            if refused.bound_bytes > budget:
                self.proven.add(batch)
            return refused.smallest_peak + self._limit - budget
        return self._held(found, batch)

    def _held(self, plan: Plan, batch: int) -> int:
        """Bytes of a planned step whose results are held, with all that the device takes beside."""
        return held_peak(plan.graph, plan.schedule) + bookkeeping(self.trace(batch)) + self._limit - self.budget(batch)

    def _carried(self, batch: int, budget: int) -> Plan | None:
        """The cheapest plan of a larger batch whose schedule keeps the budget here too; None: none does."""
        options, best = replace(self._options, goal=Budget(budget)), None
        for known in (p for b, p in self.plans.items() if p is not None and b > batch):

            def make(traced: Trace, options: PlanOptions, known: Plan = known) -> Plan:
                graph, how = self._asked(traced, options)
                found = carried_plan(graph, options, [known], **how)
                if found is None:
                    raise UsageError("the schedule does not keep the budget")
                return replace(found, trace=traced.with_graph(found.graph))

            with contextlib.suppress(UsageError):
                best = cheaper(best, rewritten_alike(self.trace(batch), options, [known], make))
        return best

    def budget(self, batch: int) -> int:
        """Bytes that a plan may hold: the limit, minus rounding, the framework and workspaces of a GPU."""
        e = self._estimate(batch)
        products = e.workspace_bytes if e.overhead_bytes and e.phase != OPTIMIZER else 0
        return self._limit - e.rounding_bytes - e.overhead_bytes - products

    def _beside_steps(self, batch: int) -> int:
        """Bytes of the optimizer's step, which no plan makes smaller."""
        return dict(self._estimate(batch).phases).get(OPTIMIZER, 0)

    def _plan(self, batch: int, budget: int) -> Plan:
        t = self.trace(batch)
        options = replace(self._options, goal=Budget(budget))
        announce(options.progress, f"planning batch {batch} within {format_bytes(self._limit)}")

        def make(traced: Trace, options: PlanOptions) -> Plan:
            graph, how = self._asked(traced, options)
            made = traced.with_graph(graph).planned(lambda graph: plan_graph(graph, options, **how))
            return replace(made, trace=traced.with_graph(made.graph))

        # Of a rewritten step of fake tensors it is not known what its kernels take beside their results.
        return make(t, options) if t.fake else plan_rewritten(t, options, make)

    @staticmethod
    def _asked(traced: Trace, options: PlanOptions) -> tuple[Graph, dict[str, Any]]:
        """(the graph of the trace with its link to the host, the other arguments of `plan_graph` and `carried_plan`)."""
        return with_link(traced, options), {"finish": stages.finish(traced.lowered), "bookkeeping": bookkeeping(traced)}

    def trace(self, batch: int) -> Trace:
        """The trace of a batch. Seconds are modelled for models on the meta device and for fake ones."""
        if batch not in self._traces:
            m, sample = self._model, self._model.make_sample(batch)
            announce(self._options.progress, f"tracing batch {batch}")
            args, kwargs = accept.sample(sample)
            tensors = tree.flatten((args, kwargs))[0]
            model = m.model
            if any(t.is_meta and not is_fake(t) for t in [*model.parameters(), *tensors]):
                t = twin(model, args, kwargs)
                model, sample = t.model, t.kwargs or t.args
            made = trace(
                model, sample, optimizer=m.optimizer, target=m.target, gradients=m.gradients,
                progress=self._options.progress,
            )  # fmt: skip
            self._traces[batch] = with_usual_workspace(made) if made.fake and m.target is None else made
        return self._traces[batch]


def with_usual_workspace(trace: Trace) -> Trace:
    """A trace of fake tensors on the CPU, with the memory that its kernels usually take."""
    sizes = []
    for call in trace.lowered.calls:
        node, size = call.node, 0
        if call.kind == OPERATOR and node is not None:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
            own = workspace_bytes(node.target, args, kwargs)
            if own is not None:
                size = own
            elif may_take_memory(node.target):
                out = tensors_in(node.meta.get("val"))
                found = kernel_call(node.target, args, kwargs, out, lambda _: None, 0.0)
                size = 0 if found is None else found.usual
        sizes.append(size)
    graph = trace.graph
    return trace.with_graph(graph.with_costs([op.seconds for op in graph.ops], sizes))
