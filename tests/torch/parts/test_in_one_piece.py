"""A model of unlike blocks, compiled in one piece: its ways have the model's numbers, and its plans travel as others do."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import rekindle
from marks import sweep
from rekindle.compiling import OF_WHOLE, Compiled, CompileOptions
from rekindle.torch.compiled.whole_graph import WHOLE, StagedForward
from rekindle.torch.parts import planning


class Levels(nn.Module):
    """Blocks of three widths, two of which hand their results across, as in a U-Net."""

    def __init__(self, drops: float = 0.0) -> None:
        super().__init__()
        sizes = [(4, 8), (8, 16), (24, 8)]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.Tanh(), nn.Dropout(drops))
            for a, b in sizes
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.blocks[0](x)
        second = self.blocks[1](nn.functional.avg_pool2d(first, 2))
        return (
            self.blocks[2](torch.cat([nn.functional.interpolate(second, scale_factor=2.0), first], 1)).square().mean()
        )


def sample() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(4, 4, 16, 16)


def numbers(model: nn.Module, call: object) -> list[torch.Tensor]:
    model.zero_grad()
    loss = call(sample())  # type: ignore[operator]
    loss.backward()
    return [
        loss.detach(),
        *(p.grad.clone() for p in model.parameters() if p.grad is not None),
        *map(torch.clone, model.buffers()),
    ]


@pytest.mark.parametrize("saves", OF_WHOLE)
def test_each_way_has_the_models_numbers(saves: str) -> None:
    torch.manual_seed(0)
    model = Levels()
    other = copy.deepcopy(model)
    forward = StagedForward(model, CompileOptions(), None, in_one=True)
    forward.run_by({WHOLE: Compiled(saves)})
    ours, theirs = numbers(model, forward), numbers(other, other)
    assert [s.path for s in forward.stages] == [WHOLE]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.fixture
def in_one(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The model in one piece is taken, whichever is faster. Gives how many plans there were to choose from."""
    count: list[int] = []

    def second(tried: list[planning.Dividing], begin: float) -> object:
        count.append(len(tried))
        return tried[-1].plan(begin)

    monkeypatch.setattr(planning, "_better", second)
    return count


def test_a_plan_in_one_piece_travels(in_one: list[int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Levels()
    other, fresh = copy.deepcopy(model), copy.deepcopy(model)
    rekindle.checkpoint(model, sample(), budget=0.9, or_least=True, compile=True, progress=False)
    plan = model.forward.plan
    assert in_one == [2]
    assert plan.stages == (WHOLE,)
    assert rekindle.verify(model, sample()).ok
    plan.save(tmp_path / "plan.json")
    rekindle.apply(fresh, rekindle.load(tmp_path / "plan.json"))
    theirs = numbers(other, other)
    for ours in (numbers(model, model), numbers(fresh, fresh)):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@sweep
def test_where_masks_are_drawn_no_budget_of_torchs_is_tried(in_one: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    from rekindle.torch.ways.compiled_ways import _Trial

    compiled = _Trial._compiled
    monkeypatch.setattr(_Trial, "_compiled", lambda t, how, *a: (tried.append(how.saves), compiled(t, how, *a))[1])
    rekindle.checkpoint(Levels(0.5), sample(), budget=0.9, or_least=True, compile=True, progress=False)
    assert in_one == [2]
    assert "blocks" in tried
    assert "half" not in tried


class Equal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            x = x + b(x)
        return x.square().mean()


@sweep
def test_equal_blocks_are_not_compiled_in_one_piece(in_one: list[int]) -> None:
    rekindle.checkpoint(Equal(), torch.randn(64, 8), budget=0.9, or_least=True, compile=True, progress=False)
    assert not in_one


def test_a_later_call_that_draws_is_not_cut_by_torchs_budget() -> None:
    """The way was chosen where nothing was drawn; masks that backward draws anew would be others."""
    torch.manual_seed(0)
    model = Levels(0.5)
    gradients = []
    for saves in ("min-cut", "half"):
        forward = StagedForward(model, CompileOptions(), None, in_one=True)
        forward.run_by({WHOLE: Compiled(saves)})
        torch.manual_seed(3)
        gradients.append(numbers(model, forward)[: 1 + len(list(model.parameters()))])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@sweep
def test_a_plan_in_stages_outlives_a_failure_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planning.Dividing.plan

    def fails(dividing: planning.Dividing, begin: float) -> object:
        if dividing.found.stages == (WHOLE,):
            raise torch.OutOfMemoryError("the step does not fit")
        return plan(dividing, begin)

    monkeypatch.setattr(planning.Dividing, "plan", fails)
    model = Levels()
    rekindle.checkpoint(model, sample(), budget=0.9, or_least=True, compile=True, progress=False)
    assert len(model.forward.plan.stages) > 1
