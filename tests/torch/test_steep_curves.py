"""Where the curve of a model is steep, `checkpoint` says on stderr which budget costs far less."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from rekindle.planning import planner

PARTS: dict[str, Any] = {"parts": "blocks.*"}


class Blocks(nn.Module):
    """Transformers' feed-forward blocks."""

    def __init__(self, depth: int, width: int = 32):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.mark.parametrize(("depth", "budget", "more"), [(4, 0.35, {}), (8, 0.5, PARTS)])
def test_the_offer_is_said_and_holds(
    depth: int, budget: float, more: dict[str, Any], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(planner, "STEEP_OVERHEAD", 0.01)
    asked: dict[str, Any] = {"cost": "flops", **more}
    x = torch.randn(8, 32, 32)
    plan = rekindle.checkpoint(Blocks(depth), x, budget, **asked).forward.plan
    said = re.search(r"the curve is steep here: budget=(0\.\d+) costs about", capsys.readouterr().err)
    assert said is not None
    better = rekindle.checkpoint(Blocks(depth), x, float(said[1]), **asked).forward.plan
    assert plan.offer is not None
    assert better.peak_bytes <= plan.offer[0] * 1.001
    assert better.overhead <= plan.offer[1] + 0.005 < plan.overhead
