"""Settings of CUDA that code reads also where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import rekindle
from rekindle.torch.capture.random_state import only_draws
from rekindle.torch.costs.devices import get
from rekindle.torch.costs.operator_calls import roofline
from rekindle.torch.tensors import precision

aten = torch.ops.aten


@pytest.fixture
def new_settings() -> Iterator[None]:
    """float32 products are rounded, as it is set since torch 2.9: the older settings can no longer be read."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError, match="legacy"):
            torch.get_float32_matmul_precision()
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.usefixtures("new_settings")
def test_the_newer_settings_of_float32() -> None:
    model, x = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1)), torch.rand(8, 16)
    plan = rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="every")
    assert rekindle.verify(model, x, plan).ok
    rekindle.apply(model, plan, on_new_shape="error")(x).sum().backward()
    assert precision.rounds(precision.of_products())


def test_float32_takes_the_time_of_its_rounding() -> None:
    device, tensors = get("h100"), [torch.empty(1)]

    def seconds(op: object) -> float:
        return roofline(op, 10**12, 0, tensors, device)

    exact = seconds(aten.mm.default)
    torch.set_float32_matmul_precision("high")
    try:
        assert seconds(aten.mm.default) < exact / 5
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seconds(aten.mm.default) == exact
    assert seconds(aten.convolution.default) < exact / 5  # torch's default
    torch.backends.cudnn.allow_tf32 = False
    try:
        assert seconds(aten.convolution.default) == exact
    finally:
        torch.backends.cudnn.allow_tf32 = True


def test_generators_of_gpus_that_forward_makes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA is begun by its first use, which may be in forward."""
    monkeypatch.setattr(torch.cuda, "default_generators", ())
    with only_draws():
        torch.cuda.default_generators = ("made",)  # type: ignore[assignment]
    assert torch.cuda.default_generators == ("made",)
