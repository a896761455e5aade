"""Parts that are given a Python object which they change: a key-value cache, a list of losses."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import sweep
from models_in_parts import differing, m2m100, opt, train
from models_that_decide import WORDS, Words
from rekindle import PartsPlan
from rekindle.torch.measure.caches import matter
from rekindle.torch.serve.verify import subject

QUICK: dict[str, Any] = {"effort": "quick", "progress": False}


def test_layers_that_would_fill_a_cache_are_planned(caplog: pytest.LogCaptureFixture) -> None:
    """`use_cache` is True by default, and a layer that is given a cache does more than compute."""
    torch.manual_seed(0)
    model, sample = opt(use_cache=True)
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, sample, max_overhead=0.15, **QUICK)
    plan = model.forward.plan
    assert isinstance(plan, PartsPlan)
    assert [p.path for p in plan.parts] == ["model.decoder.layers.0", "model.decoder.layers.1"]
    assert model.config.use_cache
    assert rekindle.verify(model, sample).ok
    with caplog.at_level(logging.WARNING, "rekindle"):
        assert differing(train(model, sample), train(twin, sample)) == 0
    assert [r.message for r in caplog.records if "makes no cache" in r.message] == [
        "config.use_cache of OPTForCausalLM is True, but a step with planned parts makes no cache: past_key_values is None"
    ]
    with torch.no_grad():
        assert model.eval()(**sample).past_key_values is not None


@sweep
@pytest.mark.parametrize("use_cache", [True, False])
def test_a_cache_without_which_the_step_has_other_bits_is_kept(use_cache: bool, tmp_path: Path) -> None:
    """M2M100's attention rounds otherwise where a cache has laid keys and values out anew."""
    torch.manual_seed(0)
    model, sample = m2m100(use_cache)
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, sample, minimize="memory", **QUICK)
    plan = model.forward.plan
    assert plan.keeps_caches == (use_cache and matter(subject(copy.deepcopy(twin), sample)))
    assert ("config.use_cache=False" in plan.covered) == plan.keeps_caches
    plan.save(tmp_path / "plan.json")
    assert rekindle.load(tmp_path / "plan.json").keeps_caches == plan.keeps_caches
    assert rekindle.verify(model, sample).ok
    assert differing(train(model, sample), train(twin, sample)) == 0


class Collects(nn.Module):
    def __init__(self, inner: nn.Module, width: int):
        super().__init__()
        self.inner, self.gate = inner, nn.Linear(width, 4)

    def forward(self, h: torch.Tensor, losses: list[torch.Tensor]) -> torch.Tensor:
        losses.append(torch.softmax(self.gate(h), -1).square().mean())
        return self.inner(h)


class Routed(Words):
    """Its blocks add to a list that they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Collects(b, 48) for b in self.blocks)

    def body(self, h: torch.Tensor) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        for b in self.blocks:
            h = b(h, losses)
        assert len(losses) == len(self.blocks)
        return h * (1 + sum(losses))


def test_parts_add_to_a_list_that_they_are_given() -> None:
    torch.manual_seed(0)
    model, sample = Routed().train(), (torch.randint(0, WORDS, (4, 32)),)
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, sample, max_overhead=0.15, **QUICK)
    assert {p.path for p in model.forward.plan.parts} & {f"blocks.{i}" for i in range(len(model.blocks))}
    assert differing(train(model, sample), train(twin, sample)) == 0
