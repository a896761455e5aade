"""A plan with ops in slices that comes from a file, or was made without tensors, proves their bits where it is bound."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import rekindle
from marks import every, sweep
from rekindle.integrations.saved_plan import checkpoint_with
from rekindle.model.plan import Plan
from rekindle.model.rewriting import Rewrite
from rekindle.torch.rewrite.cuts import SUM, cuts_of
from rekindle.torch.rewrite.probe import Bits
from rekindle.torch.rewrite.region import Region
from rekindle.torch.rewrite.rewritten import rewritten
from rekindle.torch.trace import Trace
from rewritten_steps import OPTIONS, as_rewrite, plan_of, tokens, traced

ROWS = 6


class TwoLayers(nn.Module):
    """The product of the last layer, by slices of one row, takes another kernel of the CPU than the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 300), nn.Linear(300, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu()).square().sum()


def layers() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return TwoLayers(), torch.randn(ROWS, 64)


def by_rows(plain: Trace, op: str, last: bool = True) -> Rewrite:
    """The last op of this name in forward, one row a slice."""
    nodes = rewritten(plain.lowered.captured, ()).nodes
    n = [n for n in nodes if op in str(n.target) and cuts_of(n)][-1 if last else 0]
    cut = next(c for c in cuts_of(n) if c.ins[0 if len(c.ins) < 3 else 1] == 0 and SUM not in c.outs)
    return as_rewrite(nodes, Region({n: cut}, ROWS))


def file_of(plan: Plan, folder: Path) -> Path:
    plan.save(folder / "plan.json")
    return folder / "plan.json"


def other_bits(model: nn.Module, sample: Any, parity: str = "bitwise") -> Plan:
    """A plan whose slices give other bits, whatever it says."""
    plain = traced(model, sample)
    plan = plan_of(plain, [by_rows(plain, "addmm")], replace(OPTIONS, parity=parity))
    assert plan is not None
    assert plan.rewriting is not None
    assert "last.weight" in plan.rewriting.sums
    return plan


def same_bits(model: nn.Module, sample: Any) -> Plan:
    plain = traced(model, sample)
    plan = plan_of(plain, [by_rows(plain, "relu")])
    assert plan is not None
    assert plan.rewriting is not None
    assert plan.rewriting.sums == ()
    return plan


def gradients(model: nn.Module, sample: Any) -> list[torch.Tensor]:
    model.zero_grad()
    model(sample).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def equal(one: Sequence[torch.Tensor], two: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("on_new_shape", every(3, ["plan", "plain", "error"]))
def test_a_file_whose_slices_give_other_bits_here_is_refused(tmp_path: Path, on_new_shape: str) -> None:
    model, x = layers()
    loaded = rekindle.load(file_of(other_bits(model, x), tmp_path))
    rekindle.apply(model, loaded, on_new_shape)
    for _ in range(2):
        with pytest.raises(rekindle.ParityError, match=r"last \(addmm, f32.*parity='close'"):
            model(x)
    assert not list(model.forward.bounds)  # type: ignore[union-attr]
    with pytest.raises(rekindle.ParityError, match="last"):
        rekindle.verify(model, x)


def test_a_file_whose_slices_give_the_same_bits_runs(tmp_path: Path) -> None:
    model, x = layers()
    expected = gradients(copy.deepcopy(model), x)
    rekindle.apply(model, rekindle.load(file_of(same_bits(model, x), tmp_path)))
    assert equal(gradients(model, x), expected)
    (bound,) = model.forward.bounds  # type: ignore[union-attr]
    assert any(n.meta.get("rekindle_slice") for n in bound.trace.lowered.captured.nodes)


def test_where_the_probe_proves_nothing_the_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = layers()
    loaded = rekindle.load(file_of(same_bits(model, x), tmp_path))
    monkeypatch.setattr(Bits, "same_beside_sums", lambda *_: False)
    rekindle.apply(model, loaded)
    with pytest.raises(rekindle.ParityError, match="relu"):
        model(x)


def test_a_file_of_a_close_plan_runs_and_says_how_close(tmp_path: Path) -> None:
    model, x = layers()
    loaded = rekindle.load(file_of(other_bits(model, x, "close"), tmp_path))
    check = rekindle.verify(model, x, loaded)
    assert check.ok
    assert check.loss_equal is False
    assert 0 < check.close["loss"][0] <= 2e-5
    assert "loss       close (largest difference" in str(check)


def test_a_saved_plan_that_is_not_proven_here_is_made_again() -> None:
    model, x = layers()
    asked = {"minimize": "memory", "solver": "storages", "cost": "flops", "effort": "quick", "time_limit": 0.1,
             "cache": False}  # fmt: skip
    text = json.dumps(other_bits(model, x).to_json())
    assert "in slices" in checkpoint_with(text, model, x, asked)
    assert rekindle.verify(model, x).ok


def test_a_plan_made_without_tensors_is_proven_where_it_is_applied() -> None:
    model, x = layers()
    with FakeTensorMode():
        twin, y = layers()
        refused, served = other_bits_of_fake(twin, y), same_bits(twin, y)
    expected = gradients(copy.deepcopy(model), x)
    with pytest.raises(rekindle.ParityError, match="last"):
        rekindle.apply(model, refused)
    assert "forward" not in vars(model)
    rekindle.apply(model, served)
    assert equal(gradients(model, x), expected)
    assert model.forward.last.plan.rewriting == served.rewriting  # type: ignore[union-attr]


def other_bits_of_fake(model: nn.Module, sample: Any) -> Plan:
    plain = traced(model, sample)
    plan = plan_of(plain, [by_rows(plain, "addmm")])
    assert plan is not None
    return plan


def test_a_plan_of_this_process_is_bound_without_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = layers()
    plan = same_bits(model, x)
    asked: list[Any] = []
    monkeypatch.setattr(Bits, "same_beside_sums", lambda self, *given: asked.append(given) or True)
    rekindle.apply(model, plan)
    gradients(model, x)
    assert not asked


@sweep
def test_new_shapes_are_cut_alike_only_where_the_bits_are_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sample = tokens(4, 16, 256, 16)
    eager = copy.deepcopy(model)
    rekindle.checkpoint(model, sample, minimize="memory", effort="quick", cache=False, progress=False)
    assert model.forward.plan.rewriting.slices  # type: ignore[union-attr]
    longer = [t.repeat(2, 1) for t in sample]
    for m in (model, eager):
        torch.manual_seed(3)
        m(*longer).backward()
    one, two = ([p.grad for p in m.parameters()] for m in (model, eager))
    assert equal(one, two)  # type: ignore[arg-type]
    new = model.forward.last.plan  # type: ignore[union-attr]
    assert new.rewriting is not None
    assert new.rewriting.steps == model.forward.plan.rewriting.steps
    monkeypatch.setattr(Bits, "same_beside_sums", lambda *_: False)
    model(*(t.repeat(3, 1) for t in sample)).backward()
    assert model.forward.last.plan.rewriting is None  # type: ignore[union-attr]
