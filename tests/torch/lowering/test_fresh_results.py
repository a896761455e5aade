"""Results of new ops that are made from those of equal ops are laid out as the fake kernel's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import fx, nn

from rekindle.model.judge import plain_activation_bytes
from rekindle.model.rewriting import SLICES
from rekindle.torch.capture.captured import Captured
from rekindle.torch.lowering import editing
from rekindle.torch.lowering.editing import FreshResults, fake_result
from rekindle.torch.operators.node_tensors import tensors_of
from rekindle.torch.rewrite import candidates
from rekindle.torch.rewrite.candidates import Rewrites
from rekindle.torch.rewrite.finding import Allowed
from rekindle.torch.trace import Trace
from rewritten_steps import convolutions, tokens, traced

NETS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "convolutions": lambda: convolutions(batch=16, width=16, side=16, groups=1),
    "tokens": lambda: tokens(batch=4, length=24, vocabulary=130, width=16, heads=2, tied=True, smoothing=0.0),
}


class Kernels(FreshResults):
    """Asks the fake kernel for each result."""

    def of(self, n: fx.Node) -> Any:
        return fake_result(n)


def layouts(c: Captured) -> list[Any]:
    """Of each tensor: its place in memory, and how much there is."""
    first: dict[int, int] = {}
    found = []
    for n in c.nodes:
        for i, t in tensors_of(n):
            memory = first.setdefault(t.untyped_storage()._cdata, len(first))
            found.append(
                (n.target, i, t.shape, t.stride(), t.dtype, t.storage_offset(), memory, t.untyped_storage().nbytes())
            )
    return found


def in_slices(plain: Trace) -> Captured:
    rewrites = Rewrites(plain.lowered, plain_activation_bytes(plain.graph))
    steps = rewrites.in_slices(Allowed(lambda n, cut: True, None, far=True))
    assert any(s.kind == SLICES for s in steps)
    return rewrites.after(steps)


@pytest.mark.parametrize("name", NETS)
def test_a_step_in_slices_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = traced(*NETS[name]())
    kernels = []
    monkeypatch.setattr(editing, "fake_result", lambda n: kernels.append(n) or fake_result(n))
    found = layouts(in_slices(plain))
    assert len(kernels) < 0.7 * len(found)
    asked = []
    monkeypatch.setattr(editing, "FreshResults", Kernels)
    monkeypatch.setattr(candidates, "after", lambda *a, f=candidates.after, **k: asked.append(a[1]) or f(*a, **k))
    assert layouts(in_slices(plain)) == found
    assert len(asked) >= 2
