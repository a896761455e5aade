"""Ops that compute other bits on slices with gaps are given copies of their slices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

import rekindle
from rekindle.model.rewriting import SLICES, Rewrite
from rekindle.torch.capture.captured import Captured
from rekindle.torch.operators.memory_order import has_gaps
from rekindle.torch.operators.rules import runnable
from rekindle.torch.operators.table import wants_dense
from rekindle.torch.rewrite.cuts import SUM, cuts_of, tensor_arguments
from rekindle.torch.rewrite.rewritten import rewritten

aten: Any = torch.ops.aten


def results(c: Captured, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """The step's results and gradients, its inputs and parameters in order of their placeholders."""
    graph = c.nodes[0].graph
    values: dict[fx.Node, Any] = dict(zip((n for n in graph.nodes if n.op == "placeholder"), given, strict=True))
    for n in c.nodes:
        if n.op == "call_function":
            args, kwargs = fx.node.map_arg((n.args, n.kwargs), values.__getitem__)
            values[n] = runnable(n.target)(*args, **kwargs)
    return [values[n] for n in [*c.outputs, *c.gradients.values()] if isinstance(n, fx.Node)]


def random_inputs(c: Captured) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = []
    for n in c.nodes[0].graph.nodes:
        if n.op == "placeholder":
            like = n.meta["val"]
            made.append(torch.rand(like.shape).to(like.dtype).as_strided(like.shape, like.stride()) + 1)
    return made


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norms_by_channel_keep_their_bits(layout: torch.memory_format) -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.Conv2d(32, 2, 3)).to(memory_format=layout)
    x = torch.randn(4, 3, 12, 12).contiguous(memory_format=layout)
    plain = rekindle.trace(model, x)
    nodes = rewritten(plain.lowered.captured, ()).nodes
    norms = [(i, n) for i, n in enumerate(nodes) if "batch_norm" in str(n.target)]
    assert len(norms) == 2
    chosen = [next(c for c in cuts_of(n) if c.ins[0] == 1 and SUM not in c.outs) for _, n in norms]
    step = Rewrite(SLICES, tuple(i for i, _ in norms), 2, tuple((c.ins, c.outs) for c in chosen))
    sliced = rewritten(plain.lowered.captured, [step])
    found = [n for n in sliced.nodes if wants_dense(n.target)]
    assert len(found) == 4
    assert not any(has_gaps(a.meta["val"]) for n in found for a in tensor_arguments(n))
    assert sum(n.target is aten.clone.default and has_gaps(n.args[0].meta["val"]) for n in sliced.nodes) == 6  # type: ignore[union-attr]
    given = random_inputs(plain.lowered.captured)
    for a, b in zip(results(plain.lowered.captured, given), results(sliced, given), strict=True):
        assert torch.equal(a, b)
