"""Optimizers by name."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

Options = dict[str, Any]


class _Lion(Optimizer):
    """Holds the state of Lion (arXiv:2302.06675), one moving average; torch has no class for it."""

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("exp_avg", torch.zeros_like(p))


def optimizers_by_name() -> dict[str, tuple[type, Options]]:
    """(class, options that differ from its defaults) by name."""
    names: dict[str, tuple[type, Options]] = {
        k.lower(): (cls, {}) for k, cls in vars(torch.optim).items()
        if isinstance(cls, type) and issubclass(cls, Optimizer) and cls not in (Optimizer, torch.optim.SparseAdam)
    }  # fmt: skip
    return names | {"lion": (_Lion, {}), "sgd-momentum": (torch.optim.SGD, {"momentum": 0.9})}


def names() -> list[str]:
    """The names of optimizers that `optimizers.state_bytes` accepts."""
    return sorted(optimizers_by_name())
