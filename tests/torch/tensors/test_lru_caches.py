"""Models whose functions keep their results by `functools.lru_cache`, as MaskFormer keeps its position embeddings."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import rekindle
from steps_compared import QUICK


@functools.lru_cache(maxsize=1)
def positions(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float32).cumsum(0).sin()


@functools.cache
def waves(n: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    x = torch.arange(n, dtype=torch.float32)
    return x.sin(), {"cos": x.cos()}


@functools.lru_cache(maxsize=1)
def drawn(n: int) -> torch.Tensor:
    return torch.randn(n)


class Embedded(nn.Module):
    """Adds positions that a function keeps."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.kept = kept
        self.layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.GELU())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept == "positions":
            x = x + positions(x.shape[-1])
        elif self.kept == "waves":
            x = x * waves(x.shape[-1])[0] + waves(x.shape[-1])[1]["cos"]
        else:
            x = x + drawn(x.shape[-1])
        return self.layers(x)


@pytest.fixture(autouse=True, params=["positions", "waves", "drawn"])
def kept(request: pytest.FixtureRequest) -> Iterator[str]:
    forget()
    yield request.param
    forget()


def forget() -> None:
    """Empty the functions, as they are in a new process."""
    for f in (positions, waves, drawn):
        f.cache_clear()


def model(kept: str) -> nn.Module:
    torch.manual_seed(0)
    return Embedded(kept)


def test_a_plain_step_runs_after_a_capture(kept: str) -> None:
    m, x = model(kept), torch.randn(8, 16)
    rekindle.trace(m, x)
    m(x).sum().backward()


def test_a_function_that_is_defined_later(kept: str) -> None:
    """As in a cell of a notebook, which is run between two plans."""
    x = torch.randn(8, 16)
    rekindle.trace(model(kept), x)

    class Later(nn.Module):
        @functools.lru_cache(maxsize=1)  # noqa: B019
        def turned(self, n: int) -> torch.Tensor:
            return torch.arange(float(n)).cos()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.turned(x.shape[-1]) + globals()["rope"](x.shape[-1])).sum()

    globals()["rope"] = functools.lru_cache(maxsize=1)(lambda n: torch.arange(float(n)).sin())
    try:
        later, x = Later(), x.requires_grad_()
        rekindle.trace(later, x)
        later(x).backward()
    finally:
        del globals()["rope"]


def test_a_plan_from_a_file_serves_the_second_call_of_a_new_process(kept: str, tmp_path: Path) -> None:
    m, x = model(kept), torch.randn(8, 16)
    twin = copy.deepcopy(m)
    rekindle.checkpoint(m, x, **QUICK, progress=False)
    m.forward.plan.save(tmp_path / "plan.json")  # type: ignore[union-attr]
    forget()
    loaded = rekindle.apply(copy.deepcopy(twin), rekindle.load(tmp_path / "plan.json"))
    grads = []
    for one in (loaded, twin):
        forget()
        torch.manual_seed(1)
        for _ in range(3):
            one.zero_grad()
            one(x).square().mean().backward()
        grads.append([p.grad for p in one.parameters()])
    assert all(map(torch.equal, *grads))
    assert sum(b.uses for b in loaded.forward.bounds) == 2  # type: ignore[union-attr]
