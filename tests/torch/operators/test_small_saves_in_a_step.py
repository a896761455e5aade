"""A planned step whose graph saves bits and offsets trains as the plain one does, in less memory."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx, nn

import rekindle
from marks import every, few
from rekindle.torch import trace
from rekindle.torch.capture.captured import Captured, joint_fake_mode
from rekindle.torch.lowering.duplicates import merge_duplicates
from rekindle.torch.operators import pieces
from rekindle.torch.operators.pieces import PieceSettings
from rekindle.torch.operators.pool_offsets import MAX_POOL2D_BACKWARD_BY_OFFSETS, POOL_OFFSETS
from rekindle.torch.operators.small_saves import DROPOUT_BACKWARD_BY_BITS, PACK_MASK, SIGN_BITS, ZERO_BY_BITS

aten: Any = torch.ops.aten


class Net(nn.Module):
    """A ReLU whose result a max-pool reads, and one that an addition reads: backward needs neither whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 4, 3)
        self.pool, self.drop = nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.pool(self.first(x).relu()))
        return self.last(x + self.second(x).relu()).sigmoid().mean((2, 3))


def save_little(c: Captured, distinct: Any) -> Captured:
    """The step whose backward of every ReLU, dropout and max-pool reads bits and offsets."""
    c = merge_duplicates(c, distinct)
    nodes = list(c.nodes)
    c = replace(c, nodes=nodes)
    for n in list(nodes):
        if n.target is aten.threshold_backward.default:
            g, y, _ = n.args
            _replace(c, n, ZERO_BY_BITS, g, _after(c, y, SIGN_BITS, y), list(y.meta["val"].stride()))
        elif n.target is aten.native_dropout_backward.default:
            g, mask, scale = n.args
            _replace(c, n, DROPOUT_BACKWARD_BY_BITS, g, _after(c, mask, PACK_MASK, mask),
                     list(mask.meta["val"].stride()), scale)  # fmt: skip
        elif n.target is aten.max_pool2d_with_indices_backward.default:
            g, x, *geometry, ceil_mode, indices = n.args
            size, strides = list(x.meta["val"].shape), list(n.meta["val"].stride())
            offsets = _after(c, indices, POOL_OFFSETS, indices, size, *geometry)
            _replace(c, n, MAX_POOL2D_BACKWARD_BY_OFFSETS, g, offsets, size, strides, *geometry, ceil_mode)
    return c


def _after(c: Captured, node: Any, op: Any, *args: Any) -> fx.Node:
    graph = node.graph
    with graph.inserting_after(node):
        new = graph.call_function(op, args)
    _compute(c, new)
    new.meta["partitioner_tag"] = "is_forward"
    assert isinstance(c.nodes, list)
    c.nodes.insert(c.nodes.index(node) + 1, new)
    return new


def _replace(c: Captured, n: fx.Node, op: Any, *args: Any) -> None:
    n.target, n.args = op, args
    _compute(c, n)


def _compute(c: Captured, n: fx.Node) -> None:
    mode = joint_fake_mode(c.graph_module)
    assert mode is not None
    with mode:
        args: Any = fx.node.map_arg(n.args, lambda a: a.meta["val"])
        n.meta["val"] = n.target(*args)  # type: ignore[operator]


@pytest.fixture
def saving_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "merge_duplicates", save_little)


def sample(dtype: torch.dtype, layout: torch.memory_format) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(4, 3, 64, 65).to(dtype).contiguous(memory_format=layout)


@pytest.mark.usefixtures("saving_little")
@pytest.mark.parametrize("dtype", every(2, [torch.float32, torch.float64]))
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("goal", few([{"max_overhead": 0.0}, {"minimize": "memory"}], [{"minimize": "memory"}]))
def test_the_step_is_the_same(goal: dict[str, Any], layout: torch.memory_format, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Net().to(dtype).to(memory_format=layout), sample(dtype, layout)
    plan = rekindle.plan(rekindle.trace(model, x), **goal, solver="auto", time_limit=1)
    planned = rekindle.apply(copy.deepcopy(model), plan)
    check = rekindle.verify(model, x, plan)
    assert check.ok, check
    source: str = planned.forward.source  # type: ignore[attr-defined, assignment]
    for name in (
        "sign_bits",
        "zero_by_bits",
        "pack_mask",
        "dropout_backward_by_bits",
        "pool_offsets",
        "backward_by_offsets",
    ):
        assert name in source, name
    results = []
    for m in (model, planned):
        torch.manual_seed(2)
        out = m(x)
        out.square().sum().backward()
        results.append([out, *(p.grad for p in m.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.usefixtures("cache")  # the cost of an operator is remembered whatever its pieces are
def test_it_takes_less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "SETTINGS", PieceSettings(least_bytes=2**12))  # the tensors are small
    model, x = Net(), sample(torch.float32, torch.contiguous_format)
    plain = rekindle.plan(rekindle.trace(model, x), max_overhead=0.0, time_limit=1)
    with monkeypatch.context() as patch:
        patch.setattr(trace, "merge_duplicates", save_little)
        small = rekindle.plan(rekindle.trace(model, x), max_overhead=0.0, time_limit=1)
        check = rekindle.verify(model, x, small)
    assert check.ok, check
    assert small.activation_peak_bytes < 0.7 * plain.activation_peak_bytes
    assert check.measured_peak_bytes == pytest.approx(check.predicted_peak_bytes, abs=64)
