"""Under autocast, two calls add the gradient of a weight's cast in the lower precision, also where it is made in slices."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn

import rekindle
from rekindle.errors import PlanMismatch
from rekindle.model.rewriting import SLICES, Rewrite, Rewriting
from rekindle.planning.own_terms import beside_captured, plain_figures
from rekindle.torch.rewrite.cuts import cuts_of
from rekindle.torch.rewrite.region import grown, is_slice
from rekindle.torch.rewrite.rewritten import rewritten, with_rewrites
from rekindle.torch.trace import Trace

aten: Any = torch.ops.aten


class Net(nn.Module):
    """width : of its large layer, whose gradient is put together by `cat` up to a MiB, else in a buffer."""

    def __init__(self, width: int, uses: int = 1) -> None:
        super().__init__()
        self.large, self.last, self.uses = nn.Linear(width, width, bias=False), nn.Linear(width, 1), uses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.uses):
            x = self.large(x).tanh()
        return self.last(x).square().mean()


def sliced(traced: Trace) -> Rewrite:
    """The cast of the large gradient in slices, with the ops that hand slices to it."""
    c = rewritten(traced.lowered.captured, ())
    (seed,) = (n for p, n in c.gradients.items() if c.params.get(p) == "large.weight")
    assert seed.target is aten._to_copy.default
    (cut,) = (k for k in cuts_of(seed) if k.outs == (0,))
    cuts: dict[fx.Node, Any] = grown(
        seed, cut, 2**16, lambda n, k: n.target in (seed.target, aten.mm.default, aten.add.Tensor)
    )
    at = sorted((c.nodes.index(n), k) for n, k in cuts.items())
    return Rewrite(SLICES, tuple(i for i, _ in at), 4, tuple((k.ins, k.outs) for _, k in at))


def gradients(model: nn.Module, xs: list[torch.Tensor], dtype: torch.dtype, at_once: bool) -> list[torch.Tensor]:
    model.zero_grad()
    with torch.autocast("cpu", dtype):
        losses = [model(x) for x in xs]
    for loss in [sum(losses)] if at_once else losses:
        loss.backward()  # type: ignore[union-attr]
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(("width", "dtype"), [(256, torch.bfloat16), (640, torch.bfloat16), (256, torch.float16)])
def test_calls_add_a_gradient_whose_cast_is_in_slices_as_eager_does(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain, xs = Net(width), [torch.randn(8, width) for _ in range(3)]
    planned = copy.deepcopy(plain)
    with torch.autocast("cpu", dtype):
        traced = rekindle.trace(planned, xs[0], target="cpu")
    steps = (sliced(traced),)
    made = with_rewrites(traced, steps)
    assert sum(is_slice(n) and n.target is aten._to_copy.default for n in made.lowered.captured.nodes) == 4
    found = rekindle.plan(made.costed("cpu", None), minimize="memory", solver="storages")
    rewriting = Rewriting(traced.graph.hash, plain_figures(traced.graph), steps)
    rekindle.apply(planned, beside_captured(found, rewriting, found.asked), on_new_shape="error")
    for calls in 1, 2, 3:
        for at_once in True, False:
            ours, theirs = (gradients(m, xs[:calls], dtype, at_once) for m in (planned, plain))
            assert all(map(torch.equal, ours, theirs)), (calls, at_once)


def test_a_cast_that_several_ops_read_stays_whole() -> None:
    model, x = Net(256, uses=2), torch.randn(8, 256)
    with torch.autocast("cpu", torch.bfloat16):
        traced = rekindle.trace(model, x, target="cpu")
    with pytest.raises(PlanMismatch, match="handed over whole"):
        with_rewrites(traced, [sliced(traced)])
