"""Smaller saves in regions that run in slices, by batch and by channel: a planned step trains as the plain one does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn

import rekindle
from marks import every
from rekindle.model.rewriting import CONVOLUTIONS, SAVES, SLICES, Rewrite, Rewriting
from rekindle.planning.own_terms import beside_captured, plain_figures
from rekindle.torch.capture.captured import Captured
from rekindle.torch.operators.pool_offsets import MAX_POOL2D_BACKWARD_BY_OFFSETS, POOL_OFFSETS
from rekindle.torch.operators.small_saves import DROPOUT_BACKWARD_BY_BITS, PACK_MASK, SIGN_BITS, ZERO_BY_BITS
from rekindle.torch.rewrite.cuts import cuts_of
from rekindle.torch.rewrite.region import adds_up, grown, is_slice
from rekindle.torch.rewrite.rewritten import rewritten, with_rewrites
from rekindle.torch.rewrite.unsliced import may_split, saves

aten: Any = torch.ops.aten
SAVING = (SIGN_BITS, ZERO_BY_BITS, PACK_MASK, DROPOUT_BACKWARD_BY_BITS, POOL_OFFSETS, MAX_POOL2D_BACKWARD_BY_OFFSETS)
CONVOLVING = (aten.convolution.default, aten.convolution_backward.default)


class Net(nn.Module):
    """Rows of 37 x 35 elements after the ReLU: no multiple of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3)
        self.pool, self.drop = nn.MaxPool2d(3, 2, 1), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.pool(self.first(x).relu()))).mean((2, 3))


def places(c: Captured, which: Any) -> tuple[int, ...]:
    return tuple(i for i, n in enumerate(c.nodes) if which(n))


def region(c: Captured, dim: int, slices: int, convolutions: bool) -> Rewrite:
    """All that can be cut along this dimension around the backward of the ReLU, without sums."""
    (seed,) = (n for n in c.nodes if n.target is ZERO_BY_BITS)
    (cut,) = (k for k in cuts_of(seed) if k.outs == (dim,))
    cuts = grown(seed, cut, 1, lambda n, k: not adds_up(k) and (convolutions or n.target not in CONVOLVING))
    at = sorted((c.nodes.index(n), k) for n, k in cuts.items())
    return Rewrite(SLICES, tuple(i for i, _ in at), slices, tuple((k.ins, k.outs) for _, k in at))


def planned_in_slices(model: nn.Module, x: torch.Tensor, dim: int, slices: int, convolutions: bool) -> rekindle.Plan:
    traced = rekindle.trace(model, x)
    c = rewritten(traced.lowered.captured, ())
    steps = [Rewrite(CONVOLUTIONS, places(c, may_split))]
    c = rewritten(c, steps)
    steps.append(Rewrite(SAVES, places(c, lambda n: saves(n) is not None)))
    c = rewritten(c, steps[-1:])
    steps.append(region(c, dim, slices, convolutions))
    made = with_rewrites(traced, steps)
    in_slices: list[fx.Node] = [n for n in made.lowered.captured.nodes if is_slice(n)]
    for op in (*SAVING, *(CONVOLVING[:1] if convolutions else ())):
        assert sum(n.target is op for n in in_slices) >= slices, op
    found = rekindle.plan(made.costed(None, None), minimize="memory", solver="beam", time_limit=1)
    return beside_captured(found, Rewriting(traced.graph.hash, plain_figures(traced.graph), tuple(steps)), found.asked)


CUTS = pytest.mark.parametrize(("dim", "slices"), [(0, 4), (0, 2), (1, 8), (1, 4)])


@CUTS
@pytest.mark.parametrize("dtype", every(3, [torch.float32, torch.float64]))
def test_the_step_is_the_same(dim: int, slices: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Net().to(dtype), torch.randn(4, 3, 37, 35, dtype=dtype)
    check = rekindle.verify(model, x, planned_in_slices(model, x, dim, slices, convolutions=False))
    assert check.ok, check


@CUTS
def test_convolutions_around_it_hand_slices_to_it(dim: int, slices: int) -> None:
    """Their kernels may round in another way where the batch is small."""
    torch.manual_seed(0)
    model, x = Net().double(), torch.randn(4, 3, 37, 35, dtype=torch.float64)
    planned = rekindle.apply(copy.deepcopy(model), planned_in_slices(model, x, dim, slices, convolutions=True))
    results = []
    for m in (model, planned):
        torch.manual_seed(2)
        out = m(x)
        out.square().sum().backward()
        results.append([out, *(p.grad for p in m.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
