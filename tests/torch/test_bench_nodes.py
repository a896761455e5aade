"""Nodes of the captured graph that a schedule runs."""

from __future__ import annotations

import more_models
import pytest
import torch
from small_copies import small
from torch import fx, nn

from marks import few
from rekindle import Schedule, api, trace
from rekindle.bench.cases import node_runs


class Transposed(nn.Module):
    """One result that is read through two views, the second made of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x).exp().t()
        return (h.sin() + h.view(2, 2, 4).cos().view(4, 4)).sum()


@pytest.mark.parametrize(
    "name", few(["gpt2_small", "llama_1b", "unet", "swin_b", "moe", "mamba"], ["gpt2_small", "unet"])
)
def test_run_once_it_is_every_node_that_something_reads(name: str) -> None:
    traced = trace(*more_models.load(name, **small(name)))
    low = traced.lowered
    c = low.captured
    wanted: set[fx.Node] = set()
    stack: list[fx.Node] = [*c.outputs, *c.gradients.values(), *c.mutations.values(), *c.writing]
    while stack:
        n = stack.pop()
        if n not in wanted:
            wanted.add(n)
            stack += n.all_input_nodes
    runs = Schedule.baseline(low.graph).runs
    wanted |= {call.node for i in runs if (call := low.calls[i]).kind == "aten" and call.node is not None}
    assert node_runs(low, runs) == len(wanted & set(c.nodes))


def test_a_second_run_takes_its_views_again_where_they_are_read() -> None:
    traced = trace(Transposed(), torch.rand(4, 4))
    low = traced.lowered
    runs = Schedule.baseline(low.graph).runs
    exp = next(i for i, call in enumerate(low.calls) if "exp" in str(call.node))
    boundary = runs.index(next(i for i, call in enumerate(low.calls) if call.kind == "boundary"))
    once = node_runs(low, runs)
    # backward reads exp's result for its own gradient, and transposed for those of sin and, through a view, of cos
    assert node_runs(low, [*runs[: boundary + 1], exp, *runs[boundary + 1 :]]) == once + 1 + 2
    assert node_runs(low, [*runs, exp]) == once + 1


def test_a_plan_that_runs_everything_once_runs_no_node_again() -> None:
    traced = trace(*more_models.load("unet", **small("unet")))
    once, none, every = (
        node_runs(traced.lowered, s.runs)
        for s in (
            Schedule.baseline(traced.graph),
            *(api.plan(traced, minimize="memory", solver=s, cost="unit").schedule for s in ("none", "every")),
        )
    )
    assert none == once
    assert 1.1 * once < every < 2 * once
