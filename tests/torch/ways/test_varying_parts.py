"""Parts of models that read a tensor: planned in two lengths, and run again where the lengths depend on the data."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from models_in_parts import RoutedGPT, differing, train
from models_that_decide import WORDS, Words

QUICK: dict[str, Any] = {"effort": "quick", "progress": False}


class TwoLengths(Words):
    """An encoder at one length and a decoder of equal blocks at another one."""

    def __init__(self) -> None:
        super().__init__(layers=4)

    def body(self, h: torch.Tensor) -> torch.Tensor:
        for b in self.blocks[:2]:
            h = b(h)
        h = torch.cat([h, h[:, :8]], 1)
        for b in self.blocks[2:]:
            h = b(h)
        return h[:, :-8]


class Masked(Words):
    """Runs its blocks on the words that are large alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(x[x >= WORDS // 2]))).square().mean()


def words(batch: int = 4) -> tuple[torch.Tensor]:
    return (torch.randint(0, WORDS, (batch, 32)),)


@pytest.mark.parametrize("batch", [4, 1])
def test_equal_blocks_at_two_lengths_are_planned(batch: int) -> None:
    torch.manual_seed(0)
    model, sample = TwoLengths().train(), words(batch)
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, sample, minimize="memory", **QUICK)
    plan = model.forward.plan
    assert [p.path for p in plan.parts] == [f"blocks.{i}" for i in range(4)]
    assert "depend on the data" not in plan.covered
    assert differing(train(model, sample), train(twin, sample)) == 0


def test_blocks_whose_length_depends_on_the_data_run_again() -> None:
    """All have the same shape on this sample, and another one on each batch."""
    torch.manual_seed(0)
    model = Masked().train()
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, words(), minimize="memory", **QUICK)
    parts = model.forward.plan.parts
    assert parts
    assert all(p.again for p in parts)
    for _ in range(3):
        sample = words()
        assert differing(train(model, sample, 1), train(twin, sample, 1)) == 0


def test_blocks_whose_length_depends_on_the_data_run_plain_where_all_must_be_saved() -> None:
    torch.manual_seed(0)
    with pytest.raises(rekindle.TraceError, match=r"with a gain either: Masked \(test_varying_parts.py"):
        rekindle.checkpoint(Masked().train(), words(), minimize="memory", must_save=["blocks.*"], **QUICK)


def test_experts_are_not_planned_by_themselves() -> None:
    torch.manual_seed(0)
    model, sample = RoutedGPT().train(), words()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = sample[0].clone()
    rekindle.checkpoint(model, sample, minimize="memory", **QUICK)
    plan = model.forward.plan
    assert "Expert" not in [type(model.get_submodule(part.path)).__name__ for part in plan.parts]
    assert plan.covered.endswith(" and 1 more")  # Expert, whose shapes depend on the data, after Experts
    assert torch.equal(sample[0], x)
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())


def test_where_no_other_values_can_be_tried_two_lengths_count_as_varying() -> None:
    """Equal rows have no other values."""
    torch.manual_seed(0)
    model = TwoLengths().train()
    rekindle.checkpoint(model, (torch.ones(4, 32, dtype=torch.long),), minimize="memory", **QUICK)
    assert all(p.again for p in model.forward.plan.parts)


TRACKER = torch.zeros(())


class Tracked(nn.Module):
    """Runs on the words that it picks, and counts them in a global tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        picked = (x[:, 0] > 0).nonzero()[:, 0]
        TRACKER.add_(picked.numel())
        return x.index_add(0, picked, self.down(torch.relu(self.up(x[picked]))))


def test_a_part_that_writes_to_a_tensor_of_no_module_does_not_run_again() -> None:
    line = r"Tracked \(test_varying_parts.py:\d+ writes to a tensor that it has not made\)"
    with pytest.raises(rekindle.TraceError, match=line):
        rekindle.checkpoint(nn.Sequential(Tracked(), Tracked()), torch.randn(64, 32), minimize="memory", **QUICK)
    assert not TRACKER
