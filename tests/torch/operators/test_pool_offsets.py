"""A max-pool's backward from offsets in its windows gives the bits that it gives from indices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cost_nodes import node
from layouts import FLOATS, form, laid_out, numbers, same
from marks import sweep
from rekindle.torch.costs.node_costs import modelled_costs, node_costs
from rekindle.torch.measure.memory import allocator_peak
from rekindle.torch.operators import pieces, rules
from rekindle.torch.operators.pieces import PieceSettings
from rekindle.torch.operators.pool_offsets import MAX_POOL2D_BACKWARD_BY_OFFSETS, POOL_OFFSETS
from rekindle.torch.operators.record import workspace_bytes
from rekindle.torch.private import FakeTensorMode, tree_map_only

aten: Any = torch.ops.aten
FORMATS = [torch.contiguous_format, torch.channels_last]
Geometry = tuple[list[int], list[int], list[int], list[int], bool]


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """Kernel, stride, padding, dilation and ceil_mode."""
    pairs = st.lists(st.integers(1, 3), min_size=1, max_size=2)
    kernel = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    return kernel, draw(pairs | st.just([])), padding, draw(pairs), draw(st.booleans())


@st.composite
def pools(draw: st.DrawFn) -> tuple[Tensor, Tensor, Geometry]:
    """An input, the indices that a pool finds in it, and the pool's geometry."""
    shape = [draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 11)), draw(st.integers(1, 11))]
    x = numbers(shape, draw(st.sampled_from(FLOATS)), draw(st.integers(0, 2**30)))
    x = x[0] if draw(st.booleans()) else x.to(memory_format=draw(st.sampled_from(FORMATS)))
    geometry = draw(geometries())
    try:
        _, indices = aten.max_pool2d_with_indices(x, *geometry)
    except RuntimeError:  # no window fits
        assume(False)
    # a window may lie in the padding as a whole: then aten's backward writes outside of its result
    assume(int(indices.max()) < x.shape[-1] * x.shape[-2])
    return x, indices, geometry


@settings(max_examples=150)
@given(st.data(), pools(), st.sampled_from([1, 300, 2000, 10**6]))
def test_a_byte_for_each_maximum_is_enough(data: Any, pool: tuple[Tensor, Tensor, Geometry], most: int) -> None:
    x, indices, geometry = pool
    g = data.draw(laid_out(numbers(indices.shape, x.dtype, 7)))
    expected = aten.max_pool2d_with_indices_backward(g, x, *geometry, indices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "SETTINGS", PieceSettings(least_bytes=most, share=10**9))
        offsets = POOL_OFFSETS(indices, x.shape, *geometry[:4])
        assert form(offsets)[1:] == form(indices)[1:]
        assert offsets.dtype == torch.uint8
        found = MAX_POOL2D_BACKWARD_BY_OFFSETS(g, offsets, x.shape, expected.stride(), *geometry)
    assert same(found, expected, any_nan=True)


@given(pools())
def test_offsets_of_zero_are_valid(pool: tuple[Tensor, Tensor, Geometry]) -> None:
    """Costs are measured on made-up numbers: an index outside of the image would write anywhere."""
    x, indices, geometry = pool
    g = torch.ones(indices.shape, dtype=torch.float64)
    offsets = torch.zeros(indices.shape, dtype=torch.uint8)
    out = MAX_POOL2D_BACKWARD_BY_OFFSETS(g, offsets, x.shape, torch.empty(x.shape).stride(), *geometry)
    assert out.sum() == indices.numel()
    expected = torch.full(x.shape, float("-inf"), dtype=torch.float64)  # of equal elements, the window's first counts
    _, first = aten.max_pool2d_with_indices(expected, *geometry)
    assert torch.equal(out, aten.max_pool2d_with_indices_backward(g, expected, *geometry, first))


@given(pools())
def test_fake_results_have_the_form_of_real_ones(pool: tuple[Tensor, Tensor, Geometry]) -> None:
    for op, args in calls(*pool):
        expected = form(op(*args))
        with FakeTensorMode() as mode:
            fake = tree_map_only(Tensor, mode.from_tensor, args)
            assert form(op(*fake)) == expected
            assert form(rules.runnable(op)(*fake)) == expected


def calls(x: Tensor, indices: Tensor, geometry: Geometry) -> list[tuple[Any, tuple[Any, ...]]]:
    g = torch.ones_like(indices, dtype=x.dtype)
    offsets = POOL_OFFSETS(indices, x.shape, *geometry[:4])
    strides = aten.max_pool2d_with_indices_backward(g, x, *geometry, indices).stride()
    return [
        (POOL_OFFSETS, (indices, list(x.shape), *geometry[:4])),
        (MAX_POOL2D_BACKWARD_BY_OFFSETS, (g, offsets, list(x.shape), list(strides), *geometry)),
    ]


@pytest.mark.parametrize(("kernel", "dtype"), [(16, torch.uint8), (17, torch.int16), (182, torch.int32)])
def test_large_windows_have_larger_offsets(kernel: int, dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 190, 200)
    geometry: Geometry = ([kernel], [5], [kernel // 2], [1], False)
    _, indices = aten.max_pool2d_with_indices(x, *geometry)
    g = torch.randn(indices.shape)
    offsets = POOL_OFFSETS(indices, x.shape, *geometry[:4])
    assert offsets.dtype == dtype
    found = MAX_POOL2D_BACKWARD_BY_OFFSETS(g, offsets, x.shape, x.stride(), *geometry)
    assert same(found, aten.max_pool2d_with_indices_backward(g, x, *geometry, indices))


RESNET: Geometry = ([3, 3], [2, 2], [1, 1], [1, 1], False)
VGG: Geometry = ([2, 2], [2, 2], [0, 0], [1, 1], False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("of_g", FORMATS)
@pytest.mark.parametrize("of_x", FORMATS)
@pytest.mark.parametrize("shape", [pytest.param((12, 64, 112, 112), marks=sweep), (1, 256, 112, 112)])
@pytest.mark.parametrize("geometry", [RESNET, pytest.param(VGG, marks=sweep)])
def test_the_temporaries_are_known(
    geometry: Geometry, shape: tuple[int, ...], of_x: torch.memory_format, of_g: torch.memory_format,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    x = torch.randn(shape, dtype=dtype).to(memory_format=of_x)
    _, indices = aten.max_pool2d_with_indices(x, *geometry)
    for op, args in calls(x, indices, geometry):
        args = tuple(a.to(memory_format=of_g) if isinstance(a, Tensor) and a.dtype == dtype else a for a in args)
        kept: list[Tensor] = []
        found = allocator_peak(lambda op=op, args=args, kept=kept: kept.append(rules.runnable(op)(*args)))
        taken, told = found.peak_bytes - found.left_bytes, workspace_bytes(op, args)
        assert told is not None
        assert taken <= told <= 1.1 * taken, op
        assert taken <= pieces.SETTINGS.least_bytes + 2**16  # less than 64 MiB: no share of the tensor is more


@pytest.mark.usefixtures("cache")
def test_the_planner_knows_these_operators() -> None:
    x = torch.randn(2, 8, 32, 32)
    _, indices = aten.max_pool2d_with_indices(x, *RESNET)
    for op, args in calls(x, indices, RESNET):
        (measured,), (modelled,) = node_costs([node(op, *args)]), modelled_costs([node(op, *args)])
        assert measured.seconds > 0
        assert modelled.workspace == workspace_bytes(op, args)
        assert measured.workspace <= modelled.workspace
        assert rules.returns_new(op)
        assert not rules.must_save(op, {"cpu"})


def test_the_schemas_say_what_the_functions_do() -> None:
    x = torch.randn(2, 3, 9, 10)
    _, indices = aten.max_pool2d_with_indices(x, *RESNET)
    for op, args in calls(x, indices, RESNET):
        torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))
