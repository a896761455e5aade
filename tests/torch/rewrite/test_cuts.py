"""Ops cut into slices give what they give whole: every rule, every cut that it names, in slices of unlike sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from operator import getitem
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

import cut_cases_of_elements  # noqa: F401  its cases join the others
import cut_cases_of_saves  # noqa: F401
from cut_cases import CASES, Maker, Sizes, members, node_of
from marks import every
from rekindle.torch.operators.memory_order import strides_of_slice
from rekindle.torch.operators.rules import UNWRITTEN
from rekindle.torch.operators.small_saves import SIGN_BITS
from rekindle.torch.operators.table import RULES, wants_dense
from rekindle.torch.rewrite.cuts import SUM, Cut, cuts_of, sliced_call, span, tensor_arguments
from strategies import examples

aten = torch.ops.aten
NEEDS_CUDA = {f"aten::_scaled_dot_product_{kernel}_attention{phase}"
              for kernel in ("flash", "efficient", "cudnn") for phase in ("", "_backward")} | {
    "aten::_fused_rms_norm_backward", "aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward",
}  # fmt: skip


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


@pytest.mark.parametrize("name", every(3, CASES))
@examples(60)
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


# case -> its cuts as (ins, outs, units): of 4 examples, 6 channels per group, 2 outputs per group, rows of 8, 2 groups
EXPECTED = {
    "convolution_2_bias": [((0, None, None), (0,), 4), ((None, 0, 0), (1,), 2)],
    "convolution_2": [((0, None), (0,), 4), ((None, 0), (1,), 2), ((1, 1), (SUM,), 6)],
    "convolution_2_groups": [((0, None), (0,), 4), ((1, 0), (1,), 2)],
    "convolution_backward_2_iwb": [((0, 0, None), (0, SUM, SUM), 4), ((1, None, 0), (SUM, 0, 0), 2)],
    "convolution_backward_2_w": [
        ((0, 0, None), (None, SUM, None), 4), ((1, None, 0), (None, 0, None), 2), ((None, 1, 1), (None, 1, None), 6),
    ],
    "convolution_backward_2_transposed_groups_iw": [((0, 0, None), (0, SUM, None), 4), ((1, 1, 0), (1, 0, None), 2)],
    "mm": [((0, None), (0,), 4), ((None, 1), (1,), 6), ((1, 0), (SUM,), 8)],
    "addmm_row": [((None, 0, None), (0,), 4), ((0, None, 1), (1,), 6)],
    "layer_norm_backward_all": [
        ((0, 0, 0, 0, None, None), (0, SUM, SUM), 4), ((1, 1, 1, 1, None, None), (1, SUM, SUM), 8),
    ],
    "batch_norm_functional_train": [((1, 0, 0, 0, 0), (1, 0, 0, 0, 0), 12)],
    "batch_norm_backward_train": [((1, 1, 0, 0, 0, 0, 0), (1, 0, 0), 12)],
    "max_pool2d_backward": [((0, 0, 0), (0,), 4), ((1, 1, 1), (1,), 6)],
    "nll_loss_backward_mean": [((None, 0, 0, None, None), (0,), 4)],
    "attention_heads": [((0, 0, 0, None), (0, 0), 4), ((1, 1, 1, 1), (1, 1), 6)],
    "embedding_backward": [((0, 0), (SUM,), 4), ((1, 1), (SUM,), 8), ((2, None), (1,), 6)],
    "log_softmax": [((0,), (0,), 4), ((1,), (1,), 6)],
    "view_merging": [((0,), (0,), 4), ((3,), (1,), 8)],
    "mul_column": [((None, 0), (0,), 4), ((0, 1), (1,), 6), ((None, 2), (2,), 8)],
    "sum_dims": [((1,), (0,), 6), ((0,), (SUM,), 4), ((2,), (SUM,), 8)],
    "cat_1": [((0, 0, 0), (0,), 4), ((3, 3, 3), (3,), 8)],
    "sign_bits_rows": [((0,), (0,), 4)],
    "sign_bits_images": [((0,), (0,), 4), ((1,), (1,), 6)],
    "sign_bits_short": [((0,), (0,), 4)],
    "unpack_mask_planes": [((0,), (0,), 4), ((1,), (1,), 6)],
    "zero_by_bits_images": [((0, 0), (0,), 4), ((1, 1), (1,), 6)],
    "dropout_by_bits_rows": [((0, 0), (0,), 4)],
    "pool_offsets": [((0,), (0,), 4), ((1,), (1,), 6)],
    "max_pool_by_offsets_last": [((0, 0), (0,), 4), ((1, 1), (1,), 6)],
    "max_pool_by_offsets_of_one": [((0, 0), (0,), 6)],
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_ops_are_cut_as_named(name: str) -> None:
    maker = Maker(Sizes(n=4, c=6, o=2, side=4, row=8, groups=2))
    assert [(c.ins, c.outs, c.units) for c in cuts_of(node_of(*CASES[name](maker))[0])] == EXPECTED[name]


shapes = st.lists(st.sampled_from((1, 2, 3, 4)), min_size=1, max_size=4)


@examples(400)
@given(shapes, st.data())
def test_views_are_cut_where_slices_align(shape: list[int], data: st.DataObject) -> None:
    """Every cut that is named is right, and every pair of dimensions that could be cut in two halves is named."""
    count = math.prod(shape)
    divisors = [d for d in range(1, count + 1) if count % d == 0]
    first = data.draw(st.sampled_from(divisors))
    second = data.draw(st.sampled_from([d for d in divisors if count // first % d == 0]))
    other = [first, second, count // first // second]
    x = torch.arange(count).reshape(shape)
    node, tensors = node_of(aten.view.default, (x, other), {})
    cuts = cuts_of(node)
    for cut in cuts:
        check(node, tensors, cut)
    halves = {(c.ins[0], c.outs[0]) for c in cuts if c.units % 2 == 0}
    even = [(i, j) for i, n in enumerate(shape) for j, k in enumerate(other) if n % 2 == k % 2 == 0]
    same = {(i, j) for i, j in even if torch.equal(x.chunk(2, i)[0].flatten(), x.view(other).chunk(2, j)[0].flatten())}
    assert halves == same


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(4, 6, 5, 3), (1, 6, 5, 3), (4, 6, 1, 3), (4, 6, 5, 1), (4, 6, 1, 1)])
def test_a_slice_lies_as_the_whole_does(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    whole = torch.empty(shape, memory_format=layout)
    for d in (d for d in (0, 1) if shape[d] > 1):
        for n in (1, 2):
            part = [n if i == d else k for i, k in enumerate(shape)]
            own = torch.empty(part, memory_format=layout)
            assert strides_of_slice(shape, whole.stride(), part) == own.stride()
    moved = torch.empty(5, 4, 3).permute(1, 2, 0)
    assert strides_of_slice(moved.shape, moved.stride(), (4, 1, 5)) == torch.empty(5, 4, 1).permute(1, 2, 0).stride()


def test_a_slice_of_a_view_with_gaps_is_a_view() -> None:
    view = torch.empty(4, 6, 5)[..., :3]
    assert strides_of_slice(view.shape, view.stride(), (2, 6, 3)) == view.stride()


def test_a_number_of_slices_that_does_not_divide_is_refused() -> None:
    x = torch.zeros(6, 4)
    node, tensors = node_of(aten.view.default, (x, [3, 8]), {})
    (cut, *_) = cuts_of(node)
    assert cut == Cut((0,), (0,), 3)
    for begin, end, size in ((0, 1, 2), (0, 3, 6), (1, 1, 3), (2, 4, 3), (-1, 1, 3)):
        with pytest.raises(ValueError, match="no slice"):
            sliced_call(node, cut, tensors, begin, end, size)
    with pytest.raises(ValueError, match="no slice"):
        sliced_call(node, cut, [], 0, 1, 3)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.native_dropout.default, (0.5, True)), (aten.bernoulli.p, (0.5,)), (aten.relu_.default, ()),
        (aten.nonzero.default, ()), (aten.as_strided.default, ([4, 2], [3, 1])), (SIGN_BITS, ()),
        (aten.rrelu_with_noise_functional.default, (torch.zeros(4, 3), 0.1, 0.3, True)),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, None),
    ],
)  # fmt: skip
def test_ops_that_draw_or_write_or_are_unknown_are_not_cut(op: Any, args: tuple[Any, ...] | None) -> None:
    """Attention with dropout is one of them, and so are bits of rows that are too short to be packed by themselves."""
    x = torch.ones(4, 3)
    node, _ = node_of(op, (x, *args), {}) if args is not None else dropping_attention()
    assert cuts_of(node) == []


def dropping_attention() -> tuple[fx.Node, list[torch.Tensor]]:
    q = torch.ones(2, 2, 3, 8)
    node, tensors = node_of(aten._scaled_dot_product_flash_attention_for_cpu.default, (q, q, q), {})
    node.args = (*node.args, 0.5)
    return node, tensors


def test_a_member_of_a_tuple_is_cut_as_it_is() -> None:
    node, tensors = node_of(aten.split.Tensor, (torch.arange(24).reshape(4, 6), 2, 1), {})
    member = node.graph.call_function(getitem, (node, 1))
    member.meta["val"] = node.meta["val"][1]
    cuts = cuts_of(member)
    assert [(c.ins, c.outs, c.units) for c in cuts] == [((0,), (0,), 4), ((1,), (1,), 2)]
    assert tensor_arguments(member) == [node]
    piece = tensors[0][1:3].split(2, 1)
    op, args, kwargs = sliced_call(member, cuts[0], [piece], 1, 3, 4)
    assert torch.equal(op(*args, **kwargs), member.meta["val"][1:3])


def test_numbers_that_are_inputs_leave_an_op_whole() -> None:
    """Rules read sizes and dimensions as numbers."""
    node, _ = node_of(aten.add.Tensor, (torch.ones(4), 1), {})
    number = node.graph.placeholder("number")
    number.meta["val"] = 1
    node.args = (node.args[0], number)
    assert cuts_of(node) == []


def test_a_slice_of_one_keeps_its_dimension() -> None:
    node, tensors = node_of(aten.squeeze.default, (torch.ones(2, 1, 3),), {})
    op, args, kwargs = sliced_call(node, Cut((0,), (0,), 2), [tensors[0][:1]], 0, 1, 2)
    assert op(*args, **kwargs).shape == (1, 3)


def fused(kernel: str, b: int, h: int, kv: int) -> tuple[fx.Node, fx.Node]:
    """Forward and backward of a GPU's attention on meta tensors, with a bias where the kernel takes one."""
    q, k, v = (torch.empty(b, n, 16, 32, device="meta", dtype=torch.bfloat16) for n in (h, kv, kv))
    bias = torch.empty(b, h, 16, 16, device="meta", dtype=torch.bfloat16)
    forward, backward = (getattr(aten, f"_scaled_dot_product_{kernel}_attention{p}").default for p in ("", "_backward"))
    if kernel == "flash":
        args: tuple[Any, ...] = (q, k, v, 0.0, True)
    else:
        args = (q, k, v, bias, True, 0.0, False)
    out, logsumexp, *rest = forward(*args)
    if kernel == "flash":
        back = (q, q, k, v, out, logsumexp, *rest[:4], 0.0, True, *rest[4:6])
    elif kernel == "efficient":
        back = (q, q, k, v, bias, out, logsumexp, *rest, 0.0, [True] * 4)
    else:
        back = (q, q, k, v, out, logsumexp, *rest[4:6], bias, *rest[:4], 0.0, False)
    return node_of(forward, args, {})[0], node_of(backward, back, {})[0]


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
@pytest.mark.parametrize("kv", [4, 2])
def test_attention_of_a_gpu_is_cut_by_batch_and_by_heads_that_have_keys_of_their_own(kernel: str, kv: int) -> None:
    """There is no GPU here: the shapes of the slices' results are right."""
    for node in fused(kernel, 2, 4, kv):
        cuts = cuts_of(node)
        assert [c.ins[0] for c in cuts] == ([0, 1] if kv == 4 else [0])
        tensors = [n.meta["val"] for n in tensor_arguments(node)]
        for cut in cuts:
            op, args, kwargs = sliced_call(node, cut, pieces_of(tensors, cut, 0, 1, cut.units), 0, 1, cut.units)
            for whole, out, part in zip(members(node.meta["val"]), cut.outs, members(op(*args, **kwargs)), strict=True):
                if isinstance(whole, torch.Tensor):
                    expected = [n // cut.units if d == out else n for d, n in enumerate(whole.shape)]
                    assert list(part.shape) == expected
            dims = [d for d in cut.outs if d is not None]
            assert set(dims) == {cut.ins[0]}
