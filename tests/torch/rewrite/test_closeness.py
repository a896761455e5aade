"""Plans with parity="close": what may round is compared by closeness, all else bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import sweep
from rekindle.torch.measure import trial
from rekindle.torch.rewrite.closeness import NOTHING, Loose, difference, least_scale, loose
from rekindle.torch.serve import verify as check_module
from rewritten_steps import tokens

CLOSE: dict[str, Any] = {
    "minimize": "memory", "effort": "quick", "cache": False, "parity": "close", "progress": False
}  # fmt: skip


def close_model() -> tuple[nn.Module, Any]:
    model, sample = tokens(4, 16, 256, 16)
    return rekindle.checkpoint(model, sample, **CLOSE), sample


def test_the_plan_of_checkpoint_has_the_measured_difference() -> None:
    model, sample = close_model()
    rewriting = model.forward.plan.rewriting  # type: ignore[union-attr]
    check = rekindle.verify(model, sample)
    off, name = check.close["gradients"]
    assert check.ok
    assert check.gradients_equal is False
    assert rewriting.sums_error == off == check.largest_difference
    assert 0 < off <= 2e-5
    assert name in rewriting.sums
    assert f"gradients  close (largest difference {off:.1e}: {name})" in str(check).splitlines()


def test_only_the_parameters_that_the_plan_names_differ() -> None:
    model, sample = close_model()
    eager = copy.deepcopy(rekindle.restore(copy.deepcopy(model)))
    for m in (model, eager):
        torch.manual_seed(1)
        m(*sample).backward()
    pairs = zip(model.named_parameters(), eager.parameters(), strict=True)
    apart = {k for (k, p), q in pairs if not torch.equal(p.grad, q.grad)}  # type: ignore[arg-type]
    assert apart
    assert apart <= set(model.forward.plan.rewriting.sums)


def broken(name: str, factor: float) -> Any:
    """`run` of a measured step that changes one gradient of the planned step."""
    real = check_module.run

    def run(s: Any, forward: Any, which: str, *rest: Any) -> Any:
        made = real(s, forward, which, *rest)
        if which == "planned":
            made.gradients[name] = made.gradients[name] * factor
        return made

    return run


def test_a_gradient_that_is_not_close_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sample = close_model()
    plan = model.forward.plan  # type: ignore[union-attr]
    rekindle.restore(model)
    monkeypatch.setattr(check_module, "run", broken("head.weight", 1.0001))
    check = rekindle.verify(model, sample, plan)
    assert not check.ok
    assert "head.weight by 1" in check.differences[0]
    assert "gradients" not in check.close
    assert "gradients  DIFFERS" in str(check)
    with pytest.raises(rekindle.ParityError, match=r"head\.weight"):
        rekindle.checkpoint(model, sample, **CLOSE)


def test_a_gradient_that_must_be_bitwise_may_not_be_close(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sample = close_model()
    plan = model.forward.plan  # type: ignore[union-attr]
    rekindle.restore(model)
    monkeypatch.setattr(check_module, "loose", lambda c: replace(loose(c), parameters=frozenset()))
    assert "gradients differ, first" in rekindle.verify(model, sample, plan).differences[0]


@sweep
def test_a_plan_for_a_new_shape_is_tried_by_closeness(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sample = close_model()
    longer = [t.repeat(2, 1) for t in sample]
    model(*longer).backward()
    assert len(list(model.forward.bounds)) == 2  # type: ignore[union-attr]
    monkeypatch.setattr(trial, "loose", lambda c: NOTHING)
    with pytest.warns(rekindle.RekindleWarning, match="did not give the plain step's numbers"):
        model(*(t.repeat(3, 1) for t in sample)).backward()
    assert len(list(model.forward.bounds)) == 2  # type: ignore[union-attr]


def test_nothing_is_loose_in_a_step_that_is_not_rewritten() -> None:
    model, sample = tokens(2, 4, 16, 8)
    assert loose(rekindle.trace(model, sample).lowered.captured) == NOTHING == Loose()


@pytest.mark.parametrize(
    ("one", "other", "off"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([float("nan"), 1.0], [float("nan"), 1.0], 0.0),
        ([float("inf"), 1.0], [float("inf"), 2.0], 0.5),
        ([float("nan"), 1.0], [0.0, 1.0], float("inf")),
        ([float("inf"), 1.0], [0.0, 1.0], float("inf")),
        ([1e-30], [0.0], float("inf")),
        ([-0.0], [0.0], 0.0),
        ([], [], 0.0),
    ],
)
def test_difference(one: list[float], other: list[float], off: float) -> None:
    assert difference(torch.tensor(one), torch.tensor(other)) == off


def test_tensors_of_unlike_shape_or_type_are_not_close() -> None:
    assert difference(torch.ones(2), torch.ones(3)) == difference(torch.ones(2), torch.ones(2).double()) == float("inf")


def test_small_gradients_are_measured_by_the_largest_one() -> None:
    noise, large = torch.tensor([1e-9, -2e-9]), torch.tensor([0.5, 1.0])
    least = least_scale([noise, None, large])
    assert least == 0.01
    assert difference(-noise, noise) == 2.0
    assert difference(-noise, noise, least) == pytest.approx(4e-7)
    assert difference(large * 1.5, large, least) == 0.5
