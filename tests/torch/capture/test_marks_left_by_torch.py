"""Marks that torch's tracing leaves behind do not reach a later capture."""

from __future__ import annotations

import pytest
import torch
import torch.fx.traceback
from torch import Tensor, nn

import rekindle
from rekindle.torch.lowering.gradient_additions import additions


class UsedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).tanh() @ self.weight


def test_a_backward_that_was_traced_and_ended_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mark stayed, and sums of gradients were taken for the model's own: later checks of parity failed."""
    monkeypatch.setattr(torch.fx.traceback, "current_meta", {"autograd_backward": True})
    assert additions(rekindle.trace(UsedTwice(), torch.rand(2, 4)).lowered.captured)
    assert torch.fx.traceback.current_meta == {"autograd_backward": True}  # as it was
