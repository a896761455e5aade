"""Compiled parts in half precision: rounding of eager's leaves none plain, and a wrong way is refused all the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from compiled_steps import lose_half_of_a_gradient
from marks import sweep
from rekindle import RekindleError
from rekindle.compiling import Compiled, CompileOptions
from rekindle.torch.compiled.stage import compiled_forward


class Coarse(nn.Module):
    """Eager bfloat16 rounds numbers near 64 to halves; fused code does not round them at all."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(((self.up(x) + 64.0) - 64.0).relu())


def planned(**how: Any) -> str:
    """The plan's sentence, or why there is none."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), *(Coarse() for _ in range(4)), nn.Linear(32, 1))
    how |= {"compile": True, "effort": "quick"}
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rekindle.checkpoint(model, torch.randn(64, 32), minimize="memory", cache=False, progress=False, **how)
    except RekindleError as e:
        return str(e)
    return str(model.forward.plan.sentence)


@sweep
@pytest.mark.filterwarnings("ignore:the step through torch.compile is")
def test_rounding_of_eagers_leaves_no_part_plain() -> None:
    assert "Coarse" in (said := planned(parts=["1", "2"]))
    assert "away" not in said


@sweep
@pytest.mark.filterwarnings("ignore:the step through torch.compile is")
def test_a_wrong_way_is_refused_however_coarse_eager_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lose_half_of_a_gradient(monkeypatch)
    assert 'in its way "inputs" (its numbers are' in planned()


class Modulated(nn.Module):
    """A scaled norm between two residuals, as in a diffusion transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.first, self.last = nn.Linear(64, 128), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        scale, gate = self.scale(given)[:, None].chunk(2, -1)
        x = x + self.first(x)
        return x + gate * self.last(torch.layer_norm(x, [64]) * (1 + scale))


@sweep
def test_code_for_cpus_loses_no_rows_of_a_transposed_input() -> None:
    torch.manual_seed(0)
    block, given, gradient = Modulated(), torch.randn(8, 64), torch.randn(8, 64, 64).mT
    x = torch.randn(8, 64, 64).mT.requires_grad_()

    def step(run: Any, halves: bool) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=halves):
            return torch.autograd.grad(run(x, given), x, gradient)[0]

    right = step(block, False)
    ours = step(compiled_forward(block, Compiled(), CompileOptions(), ""), True)
    assert float((ours - right).abs().max() / right.abs().max()) < 1e-2
