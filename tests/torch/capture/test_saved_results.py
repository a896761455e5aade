"""Parts that run again and save the results of matrix products: no numbers change, and less is recomputed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rekindle
from marks import every
from models_in_parts import differing, routed, train
from rekindle import FormatError
from rekindle.parts.plan import SaveRule
from rekindle.torch.compiled.saving import Prices, price
from rekindle.torch.ways import trial_steps
from rekindle.torch.ways.again import AgainForward

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        (aten.mm.default, (torch.ones(2, 64), torch.ones(64, 3)), 32.0),
        (aten.addmm.default, (torch.ones(3), torch.ones(2, 64), torch.ones(64, 3)), 32.0),
        (aten.bmm.default, (torch.ones(1, 2, 64).bfloat16(), torch.ones(1, 64, 3).bfloat16()), 64.0),
        (aten.convolution.default, (torch.ones(1, 4, 8, 8), torch.ones(2, 4, 3, 3)), 18.0),
        (aten.gelu.default, (torch.ones(2, 64),), 0.0),
    ],
)
def test_the_price_of_a_result_is_flops_by_bytes(op: Any, args: Any, expected: float) -> None:
    assert price(op, args, {}) == expected


def test_attention_that_draws_random_numbers_always_runs_again() -> None:
    """If it did not, a later dropout would draw other numbers than before."""
    op, x = aten._scaled_dot_product_flash_attention.default, torch.ones(1, 2, 16, 8)
    assert price(op, (x, x, x), {}) == 16.0  # two products
    assert price(op, (x, x, x, 0.1), {}) == 0.0
    assert price(op, (x, x, x), {"dropout_p": 0.1}) == 0.0


@pytest.mark.parametrize("least", [1.0, 40.0, 100.0])
def test_every_rule_gives_the_bits_of_the_plain_step(least: float) -> None:
    torch.manual_seed(0)
    model, sample = routed()
    twin = copy.deepcopy(model)
    for block in model.blocks:
        AgainForward(block, SaveRule(least)).take_over(block)
    assert differing(train(model, sample), train(twin, sample)) == 0


@pytest.mark.parametrize("rule", [None, SaveRule(1.0)])
def test_backward_goes_through_a_part_twice(rule: SaveRule | None) -> None:
    torch.manual_seed(0)
    model, sample = routed()
    twin = copy.deepcopy(model)
    for block in model.blocks:
        AgainForward(block, rule).take_over(block)
    for net in (model, twin):
        torch.manual_seed(1)
        loss = net(*sample)
        loss.backward(retain_graph=True)
        loss.backward()
    assert differing([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()]) == 0


def test_fewer_results_are_made_again_by_a_lower_threshold() -> None:
    counts = []
    for rule in (None, SaveRule(100.0), SaveRule(1.0)):
        torch.manual_seed(0)
        model, sample = routed()
        for block in model.blocks:
            AgainForward(block, rule).take_over(block)
        loss = model(*sample)
        with torch.utils.flop_counter.FlopCounterMode(display=False) as flops:
            loss.backward()
        counts.append(flops.get_total_flops())
    torch.manual_seed(0)
    model, sample = routed()
    loss = model(*sample)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as flops:
        loss.backward()
    assert counts[0] > counts[1] > counts[2] == flops.get_total_flops()


def test_plans_choose_rules_and_their_files_carry_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, sample = routed()
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, sample, 0.6, cost="flops", effort="quick", progress=False)
    plan = model.forward.plan
    assert any(p.rule is not None for p in plan.parts)
    check = rekindle.verify(model, sample, count_flops=True)
    assert check.ok
    assert check.flops_overhead <= plan.overhead + 0.002
    monkeypatch.setattr(trial_steps, "RULES_MOST", 0)
    whole = rekindle.checkpoint(copy.deepcopy(twin), sample, 0.6, cost="flops", effort="quick", progress=False)
    assert plan.overhead < 0.9 * whole.forward.plan.overhead
    plan.save(tmp_path / "plan.json")
    loaded = rekindle.load(tmp_path / "plan.json")
    assert [p.rule for p in loaded.parts] == [p.rule for p in plan.parts]
    other = rekindle.apply(copy.deepcopy(twin), loaded)
    assert differing(train(other, sample), train(twin, sample)) == 0


@pytest.mark.parametrize("saves", every(5, [{"least": 0}, {"least": -1.0}, {"least": "much"}, {"most": 1.0}, 3]))
def test_a_file_with_a_wrong_rule_is_refused(tmp_path: Path, saves: Any) -> None:
    torch.manual_seed(0)
    model, sample = routed()
    rekindle.checkpoint(model, sample, minimize="memory", cost="flops", effort="quick", progress=False)
    doc = model.forward.plan.to_json()
    next(p for p in doc["parts"] if p.get("again"))["saves"] = saves
    (tmp_path / "plan.json").write_text(json.dumps(doc))
    with pytest.raises(FormatError):
        rekindle.load(tmp_path / "plan.json")


def test_prices_are_noted() -> None:
    with Prices() as seen:
        torch.ones(2, 64) @ torch.ones(64, 3)
    assert 32.0 in seen.found
