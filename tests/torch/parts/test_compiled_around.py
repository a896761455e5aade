"""torch.compile around planned modules: each is one opaque call, and its plan runs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import sweep
from models_in_parts import differing, routed
from pairs import Net
from steps_compared import QUICK


class Graphs:
    """A backend of torch.compile that runs graphs as they are, and notes what they call."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, graph: Any, example: Any) -> Any:
        self.calls.append([str(n.target) for n in graph.graph.nodes if n.op.startswith("call")])
        return graph


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def sample() -> torch.Tensor:
    return torch.rand(8, 16, generator=torch.Generator().manual_seed(0))


class Around(nn.Module):
    """Computes before and after the planned module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net((x * 2).relu()).square().mean()


pytestmark = pytest.mark.filterwarnings("ignore:.*global hooks on modules")


def assert_same(model: nn.Module, twin: nn.Module, graphs: Graphs) -> None:
    """Three steps of the compiled model and of a plain one are equal."""
    compiled = torch.compile(model, backend=graphs)
    for seed in range(3):
        found = []
        for called, owner in ((compiled, model), (twin, twin)):
            torch.manual_seed(seed)
            owner.zero_grad()
            out = called(sample())
            out.square().mean().backward()
            found.append([out.detach(), *(p.grad for p in owner.parameters()), torch.get_rng_state()])
        assert all(map(torch.equal, *found))


def test_a_planned_module_is_one_call_between_two_graphs() -> None:
    model = Around(Net())
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model.net, sample(), **QUICK, progress=False)
    graphs = Graphs()
    assert_same(model, twin, graphs)
    assert len(graphs.calls) == 2
    assert model.net.forward.last.uses == 3


def test_nothing_of_a_planned_module_is_compiled() -> None:
    model = Net()
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, sample(), **QUICK, progress=False)
    graphs = Graphs()
    assert_same(model, twin, graphs)
    assert graphs.calls == []
    assert model.forward.last.uses == 3


@sweep
def test_a_new_shape_is_planned_inside_a_compiled_function() -> None:
    model = Net()
    rekindle.checkpoint(model, sample(), **QUICK, progress=False)
    compiled = torch.compile(Around(model), backend=Graphs())
    compiled(sample()).backward()
    compiled(sample()[:3]).backward()
    assert len(list(model.forward.bounds)) == 2


def test_planned_parts_are_calls_between_graphs() -> None:
    """Of a model whose loss is read and whose tokens are routed: torch.compile breaks there too."""
    torch.manual_seed(0)
    model, batch = routed()
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, batch, minimize="memory", effort="quick", progress=False)
    graphs = Graphs()
    compiled = torch.compile(model, backend=graphs)
    found = []
    for called, owner in ((compiled, model), (twin, twin)):
        torch.manual_seed(1)
        loss = called(*batch)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in owner.parameters())])
    assert differing(*found) == 0
    assert graphs.calls
    planned = [m for m in model.modules() if hasattr(m.forward, "bounds")]
    assert planned
    assert all(m.forward.last is not None for m in planned)
