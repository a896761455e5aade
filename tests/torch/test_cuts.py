"""Ops cut into slices give what they give whole: every rule, every cut that it names, in slices of unlike sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import cut_cases_of_elements  # noqa: F401  its cases join the others
import pytest
import torch
from cut_cases import CASES, Maker, Sizes
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from rekindle.torch.capture.rules import UNWRITTEN
from rekindle.torch.rewrite.cut_rules import RULES, wants_dense
from rekindle.torch.rewrite.cuts import SUM, Cut, cuts_of, sliced_call, span, tensor_arguments

aten = torch.ops.aten
NEEDS_CUDA = {f"aten::_scaled_dot_product_{kernel}_attention{phase}"
              for kernel in ("flash", "efficient", "cudnn") for phase in ("", "_backward")} | {
    "aten::_fused_rms_norm_backward"
}  # fmt: skip


def node_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[fx.Node, list[torch.Tensor]]:
    """A node that calls the op, with the results of the call, and its tensors in order."""
    graph, tensors = fx.Graph(), []

    def lift(x: Any) -> Any:
        if isinstance(x, list):
            return [lift(y) for y in x]
        if not isinstance(x, torch.Tensor):
            return x
        tensors.append(x)
        placeholder = graph.placeholder(f"x{len(tensors)}")
        placeholder.meta["val"] = x
        return placeholder

    node = graph.call_function(op, tuple(map(lift, args)), {k: lift(v) for k, v in kwargs.items()})
    node.meta["val"] = op(*args, **kwargs)
    return node, tensors


def members(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def bounds(units: int) -> Iterator[tuple[int, list[int]]]:
    """(number of units, bounds of slices), of two slices and of three, in all numbers of units that are possible."""
    for size in (d for d in range(2, units + 1) if units % d == 0):
        yield size, [0, 1, size]
        if size > 2:
            yield size, [0, size // 2, size - 1, size]


def pieces_of(tensors: list[torch.Tensor], cut: Cut, begin: int, end: int, size: int) -> list[torch.Tensor]:
    pieces = []
    for t, d in zip(tensors, cut.ins, strict=True):
        first, after = (0, 0) if d is None else span(t.shape[d], begin, end, size)
        pieces.append(t if d is None else t.narrow(d, first, after - first))
    return pieces


def check(node: fx.Node, tensors: list[torch.Tensor], cut: Cut) -> None:
    """The slices' results, joined or added, are the whole's."""
    unwritten = getattr(node.target, "overloadpacket", None) in UNWRITTEN
    for size, edges in bounds(cut.units):
        parts = []
        for begin, end in pairwise(edges):
            pieces = pieces_of(tensors, cut, begin, end, size)
            if wants_dense(node.target):
                pieces = [p.contiguous() for p in pieces]
            op, args, kwargs = sliced_call(node, cut, pieces, begin, end, size)
            parts.append(members(op(*args, **kwargs)))
        for whole, out, *slices in zip(members(node.meta["val"]), cut.outs, *parts, strict=True):
            if not isinstance(whole, torch.Tensor):
                assert out is None
                continue
            if out is None:
                assert all(torch.equal(s, whole) for s in slices)
                continue
            joined = torch.stack(slices).sum(0) if out == SUM else torch.cat(slices, out)
            assert joined.shape == whole.shape
            assert joined.dtype == whole.dtype
            if not unwritten:
                torch.testing.assert_close(joined, whole)


sizes = st.builds(
    Sizes, n=st.integers(2, 6), c=st.integers(2, 6), o=st.integers(2, 4), side=st.integers(3, 6),
    row=st.sampled_from((4, 6, 8)), groups=st.integers(2, 4),
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@given(sizes)
def test_slices_together_are_the_whole(name: str, sizes: Sizes) -> None:
    node, tensors = node_of(*CASES[name](Maker(sizes)))
    cuts = cuts_of(node)
    for cut in cuts:
        assert len(cut.ins) == len(tensor_arguments(node)) == len(tensors)
        check(node, tensors, cut)
    assert cuts or name.startswith(("scatter", "gather", "roll", "view", "reshape", "unsafe_view", "t_of_row"))


def test_every_rule_has_a_case() -> None:
    known = {CASES[name](Maker(Sizes()))[0]._schema.name for name in CASES}
    assert set(RULES) - known == NEEDS_CUDA
