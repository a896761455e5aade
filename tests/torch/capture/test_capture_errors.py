"""What stops a capture is said in words that help."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rekindle
from pairs import tight
from rekindle import TraceError
from steps_compared import assert_same_steps, planned_and_eager


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

    def __getattr__(self, name: str) -> Any:  # its fields may be more than they seem
        raise AttributeError(name)


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
    with pytest.raises(TraceError, match="writes to the parameter 'a.weight' at test_capture_errors.py"):
        rekindle.trace(Decays(), torch.rand(4, 8))


class DrawsItself(Net):
    def __init__(self) -> None:
        super().__init__()
        self.source = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if generator is None:
            return super().forward(x + torch.randn(x.shape, generator=self.source))  # draws from its own
        return super().forward(x + torch.randn(x.shape, generator=generator))  # draws from the caller's


@pytest.mark.parametrize(("own", "name", "line"), [(True, "self.source", "# draws from its own"),
                                                   (False, "generator", "# draws from the caller's")])  # fmt: skip
def test_a_generator_is_named_with_its_line_and_left_as_it_was(own: bool, name: str, line: str) -> None:
    model, given = DrawsItself(), torch.Generator().manual_seed(3)
    before = model.source.get_state(), given.get_state()
    with pytest.raises(TraceError) as e:
        rekindle.trace(model, {"x": torch.rand(4, 8)} | ({} if own else {"generator": given}))
    assert f"generator of its own, {name}, by aten.randn.generator" in str(e.value)
    assert line_of(line) in str(e.value)
    assert all(map(torch.equal, (model.source.get_state(), given.get_state()), before))


class MasksByNumpy(Net):
    def forward(self, x: Tensor) -> Tensor:
        kept = torch.from_numpy(np.random.rand(4) < 0.5)  # draws the mask
        x = x.clone()
        x[kept] = self.a(x)[kept]
        return super().forward(x)


def test_what_fails_because_of_numpys_numbers_names_the_line_that_draws() -> None:
    with pytest.raises(TraceError, match="NumPy's random generator") as e:
        rekindle.trace(MasksByNumpy(), torch.rand(4, 8))
    assert line_of("# draws the mask") in str(e.value)


class Distributed(Net):
    validate: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = super().forward(x)
        given = torch.distributions.Normal(h, h.exp(), validate_args=self.validate)  # checks its arguments
        return -given.log_prob(torch.ones_like(h)).mean()


def test_a_distribution_that_checks_its_arguments_is_told_from_the_models_own_branches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        torch.distributions.Distribution, "_validate_args", True
    )  # torch.compile switches it off for good
    model, x = Distributed(), torch.rand(4, 8)
    with pytest.raises(TraceError, match="torch.distributions checks the values.*validate_args=False") as e:
        rekindle.trace(model, x)
    assert line_of("# checks its arguments") in str(e.value)
    model.validate = False
    planned, eager = planned_and_eager(model, x)  # as the error advises
    assert_same_steps(planned, eager, lambda i: x + i)


class Begins(Net):
    """Sets an attribute at its first call, on which the result depends."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: Any = {}

    def forward(self, x: Tensor) -> Tensor:
        if not self.begun:
            self.begun["shift"] = torch.arange(x.shape[0])[:, None] / 10  # sets it
            x = 2 * x
        return super().forward(x + self.begun["shift"])


class MakesItsLayer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.extra: Any = None

    def forward(self, x: Tensor) -> Tensor:
        if self.extra is None:
            self.extra = nn.Linear(8, 8)  # makes it
        return super().forward(self.extra(x))


@pytest.mark.parametrize(
    ("kind", "words", "line"),
    [(Begins, "depends on begun", "# sets it"), (MakesItsLayer, "extra.weight, extra.bias", "# makes it")],
)
def test_an_attribute_that_the_first_call_sets_is_named_with_its_line(kind: type[Net], words: str, line: str) -> None:
    model, x = kind(), torch.rand(4, 8)
    with pytest.raises(TraceError) as e:
        rekindle.trace(model, x)
    assert words in str(e.value)
    assert line_of(line) in str(e.value)
    assert "call the model once before planning" in str(e.value)
    assert not getattr(model, "begun", None)
    assert getattr(model, "extra", None) is None
    model(x)
    planned, eager = planned_and_eager(model, x)  # as the error advises
    assert_same_steps(planned, eager, lambda i: x + i)


@pytest.mark.parametrize(("skips", "decided"), [(0.1, False), (1.0, True), (0.0, True)])
def test_a_random_number_may_decide_only_what_its_range_decides(skips: float, decided: bool) -> None:
    class Skips(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            if torch.rand([]) < skips or torch.rand(1)[0] >= 1.0 or torch.empty(()).uniform_() < 0.0:
                return self.b(h)
            return self.b(torch.relu(h + torch.rand_like(h)))

    if not decided:
        with pytest.raises(TraceError) as e:
            rekindle.trace(Skips(), torch.rand(4, 8))
        assert line_of("if torch.rand([]) < skips") in str(e.value)
        return
    torch.manual_seed(0)
    planned, eager = planned_and_eager(Skips(), torch.rand(4, 8))
    assert_same_steps(planned, eager, lambda i: torch.full((4, 8), i + 1.0))  # which compares the random state too
