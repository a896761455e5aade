"""What stops a capture is said in words that help."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rekindle
from pairs import tight
from rekindle import TraceError


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"{Path(__file__).name}:{next(i for i, line in enumerate(lines, 1) if text in line)}"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        return self.b(torch.relu(self.a(x)))


class Indexes(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(h[h > 0])  # boolean indexing


class Nonzero(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(h[torch.nonzero(h.sum(1) > 0)[:, 0]])  # the indices of what is not zero


@pytest.mark.parametrize(
    ("model", "line"), [(Indexes(), "# boolean indexing"), (Nonzero(), "# the indices of what is")]
)
def test_a_shape_that_depends_on_values(model: nn.Module, line: str) -> None:
    with pytest.raises(TraceError) as e:
        rekindle.trace(model, torch.rand(4, 8))
    assert "the shape of the result of aten.nonzero.default depends on tensor values" in str(e.value)
    assert line_of(line) in str(e.value)
    assert "torch.where" in str(e.value)
    assert "Check that the call" not in str(e.value)


class Body(nn.Module):
    def __init__(self, layerdrop: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.layerdrop = layerdrop

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            skipped = self.training and torch.rand([]) < self.layerdrop
            if not skipped:  # leaves it out
                x = x + layer(x)
        return x


def test_layers_left_out_at_random_name_the_attribute() -> None:
    model = nn.Sequential(Net(), nn.Linear(4, 8), Body(0.2))
    with pytest.raises(TraceError) as e:
        rekindle.trace(model, torch.rand(4, 8))
    assert line_of("# leaves it out") in str(e.value)
    assert "set model.2.layerdrop = 0 (it is 0.2)" in str(e.value)


class Answer:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


def test_a_result_that_cannot_be_taken_apart_is_named() -> None:
    class Wraps(Net):
        def forward(self, x: Tensor) -> Answer:
            return Answer(super().forward(x))

    with pytest.raises(TraceError, match="object of type Answer.*dataclasses"):
        rekindle.trace(Wraps(), torch.rand(4, 8))


class Mask(nn.Module):
    """Looks whether a mask that depends on floats masks anything, unless it is being compiled."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and (x > 0).all():  # asks first
            return x
        return x * (x > 0)


class AsksLater(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.mask, self.b = nn.Linear(8, 8), Mask(), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.b(self.mask(self.a(x)))
        if h.sum() > 0:  # asks later
            return h
        return -h


def test_the_blocker_is_reported_and_not_the_first_attempt() -> None:
    with pytest.raises(TraceError, match="asks later"):
        rekindle.trace(AsksLater(), torch.rand(4, 8))


class Root(torch.autograd.Function):
    """Gives a NaN in backward where it is given a zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * x / x


class Rooted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Root.apply(x) + x.norm(dim=1, keepdim=True)  # whose backward masks a NaN away


@pytest.mark.parametrize("solver", ["none", "feng"])
def test_anomaly_mode_names_the_op_and_the_module(solver: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), Rooted(), nn.Linear(8, 4))
    x = torch.rand(4, 8)
    rekindle.apply(model, rekindle.plan(rekindle.trace(model, x), minimize="memory", solver=solver))
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError) as e:
        model(x).sum().backward()
    assert "aten.div.Tensor returned nan values in the backward of 2" in str(e.value)
    assert " = div" in str(e.value)


def test_anomaly_mode_says_nothing_where_eager_does_not() -> None:
    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.a(x) - 100)  # all zero
            return self.b(h + h.norm(dim=1, keepdim=True))

    plain, x = Norms(), torch.rand(4, 8)
    planned = copy.deepcopy(plain)
    rekindle.apply(planned, tight(rekindle.trace(planned, x)))
    with torch.autograd.detect_anomaly():
        for m in (plain, planned):
            m(x).square().sum().backward()
    for p, q in zip(plain.parameters(), planned.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)  # type: ignore[arg-type]


def test_a_library_whose_name_begins_like_torchs_is_no_part_of_it() -> None:
    source = """
from torch import nn
class Branches(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x
"""
    file = os.path.dirname(torch.__file__) + "vision/models/branches.py"
    scope: dict[str, Any] = {"__name__": "torchvision.models.branches"}
    exec(compile(source, file, "exec"), scope)
    with pytest.raises(TraceError, match="torchvision/models/branches.py:5, in forward"):
        rekindle.trace(nn.Sequential(nn.Linear(4, 4), scope["Branches"]()), torch.rand(4, 4))


class Decays(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.a.weight.mul_(0.9)
        return super().forward(x)


def test_a_trained_parameter_that_forward_writes_is_named() -> None:
    with pytest.raises(TraceError, match="writes to the parameter 'a.weight', which requires grad"):
        rekindle.trace(Decays(), torch.rand(4, 8))
