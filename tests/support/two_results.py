"""A model with a loss and another result."""

from __future__ import annotations

import torch
from torch import nn


class TwoResults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.b(self.a(x).tanh()).sin()
        return y.sum(), y
