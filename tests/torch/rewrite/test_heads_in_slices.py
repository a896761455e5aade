"""The head of a language model, whose logits set the floor of every schedule, runs in slices of tokens."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rekindle
from marks import every, sweep
from rekindle.planning.planner import plan_graph
from rekindle.torch.serve.plan_trace import plan_trace

TOKENS, WORDS = 256, 4000


class Head(nn.Module):
    """A language model of one layer. tied : the head's weight is the embedding's."""

    def __init__(self, tied: bool, smoothing: float = 0.0):
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.layer = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight
        self.smoothing = smoothing

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.layer(self.words(ids)))
        loss = nn.functional.cross_entropy(logits, labels, label_smoothing=self.smoothing)
        return {"loss": loss, "logits": logits}


def sample() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    labels = torch.randint(0, WORDS, (TOKENS,))
    labels[::7] = -100  # ignored
    return {"ids": torch.randint(0, WORDS, (TOKENS,)), "labels": labels}


@pytest.mark.parametrize("parity", every(2, ["bitwise", "close"]))
@pytest.mark.parametrize(("tied", "smoothing"), [(True, 0.0), (False, 0.0), (True, 0.1)])
def test_the_head_goes_below_its_floor(tied: bool, smoothing: float, parity: str) -> None:
    torch.manual_seed(0)
    model = Head(tied, smoothing)
    trace = rekindle.trace(model, sample(), unused=["logits"], progress=False)
    plan = rekindle.plan(trace, minimize="memory", cost="flops", parity=parity, cache=False, progress=False)
    without = plan_trace(trace, plan.options, plan_graph)
    assert plan.rewriting is not None
    assert plan.rewriting.slices
    assert plan.peak_bytes < without.peak_bytes
    check = rekindle.verify(model, sample(), plan)
    assert check.ok, check.differences
    assert check.loss_equal
    assert abs(check.peak_error) < 0.01
    if parity == "bitwise":
        assert plan.rewriting.sums == ()
        assert check.gradients_equal


def test_logits_that_are_returned_stay_whole() -> None:
    torch.manual_seed(0)
    model = Head(True)
    plan = rekindle.plan(
        rekindle.trace(model, sample(), progress=False), minimize="memory", cost="flops", cache=False, progress=False
    )
    check = rekindle.verify(model, sample(), plan)
    assert check.ok, check.differences


@sweep
def test_the_ignored_target_may_be_a_class() -> None:
    """Padding is often class 0."""

    class Padded(Head):
        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.head(self.layer(self.words(ids)))
            return {"loss": nn.functional.cross_entropy(logits, labels.clamp(min=0), ignore_index=0)}

    torch.manual_seed(0)
    model = Padded(True)
    plan = rekindle.plan(
        rekindle.trace(model, sample(), progress=False), minimize="memory", cost="flops", cache=False, progress=False
    )
    assert plan.rewriting is not None
    assert plan.rewriting.ops_of("picked")
    check = rekindle.verify(model, sample(), plan)
    assert check.ok, check.differences
