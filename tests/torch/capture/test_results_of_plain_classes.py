"""Results that are objects of plain classes come back as such objects."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rekindle
from marks import every
from rekindle import TraceError
from steps_compared import QUICK


class Answer:
    scale = 2.0

    def __init__(self, logits: Tensor, more: Any = None) -> None:
        self.logits, self.more = logits, more

    @property
    def scaled(self) -> Tensor:
        return self.logits * self.scale


class Narrow:
    __slots__ = ("logits", "unset")

    def __init__(self, logits: Tensor, more: Any = None) -> None:
        self.logits = logits


class Child(Answer):
    def __init__(self, logits: Tensor, more: Any = None) -> None:
        super().__init__(logits, {"all": [more, logits, 3, "words"]})


def spaced(y: Tensor, h: Tensor) -> SimpleNamespace:
    return SimpleNamespace(logits=y, hidden=[h], name="words")


class Net(nn.Module):
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.a, self.b, self.answer = nn.Linear(8, 8), nn.Linear(8, 4), answer

    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.a(x))
        return self.answer(self.b(h), h)


@pytest.mark.parametrize("kind", [Answer, Narrow, Child, spaced, lambda y, h: (y, Answer(h, Narrow(y)))])
def test_an_object_of_a_plain_class_comes_back_with_its_tensors(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model, x = Net(kind), torch.rand(16, 8)
    expected = model(x)
    with caplog.at_level(logging.WARNING, "rekindle"):
        rekindle.checkpoint(model, x, **QUICK)
        first, second = model(x), model(x)
    assert not caplog.records
    same(expected, first)
    assert first is not second
    y = first[1].more.logits if isinstance(first, tuple) else first.logits
    y.square().sum().backward()
    assert model.a.weight.grad is not None


def same(one: Any, two: Any) -> None:
    assert type(one) is type(two)
    if isinstance(one, Tensor):
        assert torch.equal(one, two)
        assert one.requires_grad == two.requires_grad
    elif isinstance(one, tuple | list):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            same(a, b)
    elif isinstance(one, Narrow):
        same(one.logits, two.logits)
        assert not hasattr(two, "unset")
    elif isinstance(one, Answer | SimpleNamespace | dict):
        held, ours = (one, two) if isinstance(one, dict) else (vars(one), vars(two))
        assert held.keys() == ours.keys()
        for k in held:
            same(held[k], ours[k])
    else:
        assert one == two


def test_an_object_that_holds_itself_is_no_endless_walk() -> None:
    def circle(y: Tensor, h: Tensor) -> Answer:
        made = Answer(y)
        made.more = made
        return made

    model, x = Net(circle), torch.rand(16, 8)
    rekindle.checkpoint(model, x, **QUICK)
    assert model(x).more is None  # and the log says so, as of a cache


def test_a_loss_in_an_object_is_found() -> None:
    class Trained:
        def __init__(self, y: Tensor, h: Tensor) -> None:
            self.hidden, self.loss = h, y.square().mean()

    model, x = Net(Trained), torch.rand(16, 8)
    trace = rekindle.trace(model, x)
    assert trace.lowered.captured.ignored_outputs == {0: "output['hidden']"}
    assert rekindle.verify(model, x, rekindle.plan(trace, **QUICK)).ok


@pytest.mark.parametrize(
    "made", every(4, [lambda: Net.forward, lambda: lambda t: t * 2, lambda: Answer, lambda: [1].index])
)
def test_a_function_among_the_results_is_refused_and_the_loop_still_gets_it(made: Any) -> None:
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(*(Net(lambda y, h: h) for _ in range(3)))

        def forward(self, x: Tensor) -> Any:
            return {"y": self.net(x), "use": made()}

    model, x = Returns(), torch.rand(16, 8)
    with pytest.raises(TraceError, match="forward returns a .*, which a planned step cannot make anew.*unused"):
        rekindle.trace(model, x)
    rekindle.trace(model, x, unused=["use"])
    rekindle.checkpoint(model, x, **QUICK)  # by parts
    assert callable(model(x)["use"])
