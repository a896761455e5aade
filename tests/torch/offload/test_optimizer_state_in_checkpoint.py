"""`checkpoint` with offload="optimizer": the plan, the budget, the errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import rekindle
from held_state import Counts, hold, net, same
from rekindle import InfeasibleBudget, RekindleError, TraceError, UsageError
from rekindle.torch.costs.resident import state_bytes
from rekindle.torch.offload import away
from rekindle.torch.offload.optimizer_state import bring_back


def test_what_cannot_be_done_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    for optimizer, words in (
        ("adamw", "give it as optimizer="),
        (None, "give it as optimizer="),
        (torch.optim.LBFGS(model.parameters()), "runs the model while it steps"),
    ):
        with pytest.raises(UsageError, match=words):
            rekindle.checkpoint(
                model, torch.rand(8, 16), budget=0.9, optimizer=optimizer, offload="optimizer", progress=False
            )
    with pytest.raises(UsageError, match='gradients="consumed" for one that steps'):
        rekindle.checkpoint(
            model, torch.rand(8, 16), budget="1MiB", gradients="consumed", offload="optimizer", progress=False,
            optimizer=torch.optim.AdamW(model.parameters()),
        )  # fmt: skip
    with pytest.raises(UsageError, match=r"is for rekindle.checkpoint"):
        rekindle.plan(rekindle.trace(model, torch.rand(8, 16)), budget=0.9, offload="optimizer")
    theirs = Counts(model.parameters())
    hold(model, theirs)
    with pytest.raises(RekindleError, match="call step\\(\\) without a closure"):
        theirs.step(lambda: torch.zeros(()))
    with pytest.raises(RekindleError, match="steps by another function"):
        type(theirs).step(theirs)
    bring_back(model)
    type(theirs).step(theirs)
    monkeypatch.setattr(away, "host_room", lambda: 100)
    with pytest.raises(RekindleError, match="the host has 100 B left for it"):
        hold(model, torch.optim.AdamW(model.parameters()))


@pytest.fixture
def big() -> tuple[nn.Module, torch.Tensor, Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)) for _ in range(4)])
    return model, torch.rand(64, 128), torch.optim.AdamW(model.parameters())


def test_checkpoint_leaves_the_state_out_of_the_step(
    big: tuple[nn.Module, torch.Tensor, Optimizer], capsys: pytest.CaptureFixture[str], small_parts: None
) -> None:
    model, x, optimizer = big
    twin = copy.deepcopy(model)
    theirs = torch.optim.AdamW(twin.parameters())
    counted = rekindle.trace(model, x, optimizer=optimizer).graph.resident_bytes
    rekindle.checkpoint(model, x, budget="4MiB", optimizer=optimizer, offload="optimizer")
    plan: Any = model.forward.plan  # type: ignore[union-attr]
    assert plan.graph.resident_bytes == counted - state_bytes(optimizer, model)
    said = capsys.readouterr().err
    assert "the host holds the state of AdamW (2.0 MiB)" in said
    assert 'the optimizer\'s state (2.0 MiB), which offload="optimizer" holds on the host' in plan.sentence
    for _ in range(3):
        for m, o in ((twin, theirs), (model, optimizer)):
            o.zero_grad()
            m(x).square().mean().backward()
            o.step()
    assert same((twin, theirs), (model, optimizer))
    rekindle.checkpoint(model, x, budget="8MiB", optimizer=optimizer, progress=False)  # not held any more
    assert "step" not in vars(optimizer)
    assert model.forward.plan.graph.resident_bytes == counted  # type: ignore[union-attr]


def test_a_checkpoint_that_fails_leaves_the_optimizer_as_it_was(
    big: tuple[nn.Module, torch.Tensor, Optimizer],
) -> None:
    model, x, optimizer = big
    model(x).square().mean().backward()
    optimizer.step()
    before = {id(t) for s in optimizer.state.values() for t in s.values()}
    sizes = len(optimizer._optimizer_step_pre_hooks)
    with pytest.raises(InfeasibleBudget, match="while AdamW steps"):
        rekindle.checkpoint(model, x, budget="2MiB", optimizer=optimizer, offload="optimizer", progress=False)
    with pytest.raises(TraceError):
        rekindle.checkpoint(model, x[:, 1:], budget="6MiB", optimizer=optimizer, offload="optimizer", progress=False)
    assert "step" not in vars(optimizer)
    assert len(optimizer._optimizer_step_pre_hooks) == sizes
    assert len(before) == sum(map(len, optimizer.state.values()))


def test_the_optimizer_of_parts_is_held_too(big: tuple[nn.Module, torch.Tensor, Optimizer], small_parts: None) -> None:
    model, x, optimizer = big
    rekindle.checkpoint(model, x, budget="8MiB", parts="*", optimizer=optimizer, offload="optimizer", progress=False)
    plan: Any = model.forward.plan  # type: ignore[union-attr]
    assert 'which offload="optimizer" holds on the host' in plan.sentence
    rekindle.restore(model)
    assert "step" not in vars(optimizer)
