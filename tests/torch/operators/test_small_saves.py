"""Backward from one bit per element gives the bits that it gives from the whole tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cost_nodes import node
from layouts import FLOATS, SHAPES, form, laid_out, numbers, same
from marks import every, few
from rekindle.torch.costs.made_up import as_call
from rekindle.torch.costs.node_costs import modelled_costs, node_costs
from rekindle.torch.measure.memory import allocator_peak, storage_peak
from rekindle.torch.operators import pieces, rules, small_saves
from rekindle.torch.operators.pieces import PieceSettings
from rekindle.torch.operators.record import workspace_bytes
from rekindle.torch.operators.small_saves import (
    DROPOUT_BACKWARD_BY_BITS,
    PACK_MASK,
    SIGN_BITS,
    UNPACK_MASK,
    ZERO_BY_BITS,
)
from rekindle.torch.private import FakeTensorMode, tree_map_only

aten: Any = torch.ops.aten
MANY = settings(max_examples=150)  # many layouts, all small
DTYPES, SEEDS = st.sampled_from(FLOATS), st.integers(0, 2**30)
PIECES = st.sampled_from([1, 3, 8, 40, 10_000])  # bytes


ROWS = st.sampled_from([1, 9, 256])  # elements


@contextmanager
def pieces_of(most: int, least_row: int = 32) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "SETTINGS", PieceSettings(least_bytes=most, share=10**9))
        patch.setattr(small_saves, "ROW_LEAST_ELEMENTS", least_row)
        yield


def mask_of(shape: list[int], seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


@MANY
@given(st.data(), SHAPES, DTYPES, SEEDS, PIECES, ROWS)
def test_a_relu_needs_signs_alone(
    data: Any, shape: list[int], dtype: torch.dtype, seed: int, most: int, least_row: int
) -> None:
    y = data.draw(laid_out(numbers(shape, dtype, seed)))
    g = data.draw(laid_out(numbers(shape, dtype, seed + 1)))
    expected = aten.threshold_backward(g, y, 0)
    with pieces_of(most, least_row):
        bits = SIGN_BITS(y)
        assert same(ZERO_BY_BITS(g, bits, y.stride()), expected)
        own = g.clone()  # without gaps; a gradient of the loss may lie otherwise than in the graph
        expected = aten.threshold_backward(own, y, 0)
        found = small_saves.zero_over(own, bits, y.stride())
        assert same(found, expected)
        assert (found is own) == (expected.stride() == own.stride()) or not own.numel()


@MANY
@given(st.data(), SHAPES, DTYPES, SEEDS, PIECES, ROWS, st.sampled_from([1.0, 2.0, 1 / 0.9, 1e30]))
def test_a_dropout_needs_bits_alone(
    data: Any, shape: list[int], dtype: torch.dtype, seed: int, most: int, least_row: int, scale: float
) -> None:
    mask = data.draw(laid_out(mask_of(shape, seed)))
    g = data.draw(laid_out(numbers(shape, dtype, seed + 1)))
    expected = aten.native_dropout_backward(g, mask, scale)
    with pieces_of(most, least_row):
        bits = PACK_MASK(mask)
        assert same(DROPOUT_BACKWARD_BY_BITS(g, bits, mask.stride(), scale), expected, any_nan=True)
        own = g.clone()
        expected = aten.native_dropout_backward(own, mask, scale)
        found = small_saves.drop_over(own, bits, mask.stride(), scale)
        assert same(found, expected, any_nan=True)
        assert (found is own) == (expected.stride() == own.stride()) or not own.numel()


@MANY
@given(st.data(), SHAPES, SEEDS, ROWS)
def test_a_mask_comes_back_as_it_was(data: Any, shape: list[int], seed: int, least_row: int) -> None:
    mask = data.draw(laid_out(mask_of(shape, seed)))
    with pieces_of(1, least_row):
        found = UNPACK_MASK(PACK_MASK(mask), mask.shape, mask.stride())
    assert torch.equal(found, mask)
    dense = aten.is_non_overlapping_and_dense(mask)
    assert found.stride() == (mask.stride() if dense else mask.contiguous().stride())


def calls(y: Tensor, g: Tensor) -> list[tuple[Any, tuple[Any, ...]]]:
    """One call of each operator. y : decides the mask and its strides."""
    mask = y > 0.3
    signs, bits = SIGN_BITS(y), PACK_MASK(mask)
    return [
        (SIGN_BITS, (y,)),
        (ZERO_BY_BITS, (g, signs, list(y.stride()))),
        (PACK_MASK, (mask,)),
        (UNPACK_MASK, (bits, list(y.shape), list(mask.stride()))),
        (DROPOUT_BACKWARD_BY_BITS, (g, bits, list(mask.stride()), 1.25)),
    ]


@given(st.data(), SHAPES, DTYPES, SEEDS, ROWS)
def test_fake_results_have_the_form_of_real_ones(
    data: Any, shape: list[int], dtype: torch.dtype, seed: int, least_row: int
) -> None:
    y = data.draw(laid_out(numbers(shape, dtype, seed)))
    g = data.draw(laid_out(numbers(shape, dtype, seed + 1)))
    with pieces_of(4, least_row):
        for op, args in calls(y, g):
            expected = form(op(*args))
            with FakeTensorMode() as mode:
                fake = tree_map_only(Tensor, mode.from_tensor, args)
                assert form(op(*fake)) == expected, op
                assert form(rules.runnable(op)(*fake)) == expected, op


# -- rows --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "bits"),
    [
        ((300,), (38,)), ((2, 255), (64,)), ((2, 256), (2, 32)), ((2, 257), (2, 33)), ((3, 2, 270), (3, 2, 34)),
        ((3, 4, 70), (3, 35)), ((3, 4, 5), (8,)), ((3, 4, 8, 33), (3, 4, 33)),
        ((3, 2, 4, 9, 8), (3, 2, 36)), ((0, 4, 270), (0,)),
    ],
)  # fmt: skip
def test_long_rows_are_packed_by_themselves(shape: tuple[int, ...], bits: tuple[int, ...]) -> None:
    assert SIGN_BITS(torch.zeros(shape)).shape == bits
    assert PACK_MASK(torch.zeros(shape, dtype=torch.bool)).shape == bits


def test_tensors_whose_rows_are_not_contiguous_are_packed_as_one() -> None:
    y = torch.zeros(2, 16, 20, 20)
    assert SIGN_BITS(y.to(memory_format=torch.channels_last)).shape == (1600,)
    assert SIGN_BITS(y.transpose(2, 3)).shape == (1600,)
    assert SIGN_BITS(y[..., :19]).shape == (1520,)
    assert SIGN_BITS(y[:, :3]).shape == (2, 3, 50)


def test_each_bit_has_an_eighth_of_its_row() -> None:
    y = torch.randn(3, 2, 315)
    bits = SIGN_BITS(y)
    for j in range(315):
        assert torch.equal(bits[:, :, j % 40] >> (j // 40) & 1 > 0, y[:, :, j] <= 0)


@MANY
@given(st.data(), SHAPES, DTYPES, SEEDS, PIECES, ROWS)
def test_the_bits_of_a_slice_are_a_slice_of_the_bits(
    data: Any, shape: list[int], dtype: torch.dtype, seed: int, most: int, least_row: int
) -> None:
    """A slice may be a view of the whole, or a tensor of its own; so may its gradient, and the bits."""
    y, g = numbers(shape, dtype, seed), numbers(shape, dtype, seed + 1)
    with pieces_of(most, least_row):
        signs, bits = SIGN_BITS(y), PACK_MASK(y > 0)
        for d in range(signs.dim() - 1):
            begin = data.draw(st.integers(0, shape[d] - 1))
            where = (d, begin, data.draw(st.integers(1, shape[d] - begin)))
            own = data.draw(st.booleans())
            y_part, g_part = (t.narrow(*where).clone() if own else t.narrow(*where) for t in (y, g))
            signs_part, bits_part = signs.narrow(*where), bits.narrow(*where)
            assert torch.equal(SIGN_BITS(y_part), signs_part)
            assert torch.equal(PACK_MASK(y_part > 0), bits_part)
            y_own = y_part.clone(memory_format=torch.contiguous_format)
            positive, strides = y_own > 0, y_own.stride()
            assert torch.equal(UNPACK_MASK(bits_part, y_part.shape, strides), positive)
            for g_given in (g_part, g_part.clone()):
                relu = aten.threshold_backward(g_given, y_own, 0)
                dropped = aten.native_dropout_backward(g_given, positive, 1.25)
                assert same(ZERO_BY_BITS(g_given, signs_part, strides), relu)
                assert same(DROPOUT_BACKWARD_BY_BITS(g_given, bits_part, strides, 1.25), dropped, any_nan=True)
            assert same(small_saves.zero_over(g_given.clone(), signs_part, strides), relu)
            assert same(small_saves.drop_over(g_given.clone(), bits_part, strides, 1.25), dropped, any_nan=True)


# -- memory ------------------------------------------------------------------------------------------------------------
BIG = (16, 64, 90, 91)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t.contiguous(),
    "channels last": lambda t: t.to(memory_format=torch.channels_last),
    "gaps": lambda t: torch.cat([t, t], 3)[..., : t.shape[3]],
}


def temporaries(run: Callable[..., Any], args: Any) -> int:
    """Bytes that a call takes beside its result, as the CPU's allocator sees it."""
    kept = []
    found = allocator_peak(lambda: kept.append(run(*args)))
    return found.peak_bytes - found.left_bytes


@pytest.mark.parametrize("dtype", few([torch.float32, torch.bfloat16, torch.float64], [torch.bfloat16]))
@pytest.mark.parametrize("of_g", LAYOUTS)
@pytest.mark.parametrize("of_y", every(2, LAYOUTS))
def test_the_temporaries_are_known(of_y: str, of_g: str, dtype: torch.dtype) -> None:
    y, g = LAYOUTS[of_y](torch.randn(BIG, dtype=dtype)), LAYOUTS[of_g](torch.randn(BIG, dtype=dtype))
    for op, args in calls(y, g):
        taken, told = temporaries(rules.runnable(op), args), workspace_bytes(op, args)
        assert told is not None
        assert taken <= told <= 1.1 * taken + 64, op


@pytest.mark.parametrize(
    "shape", [(2**20,), (4, 2**18), (2**10, 2**10), (8, 2**10, 2**7), (2**10, 8, 2**7), (2**13, 4, 32)]
)
def test_the_temporaries_stay_small(shape: tuple[int, ...]) -> None:
    y = torch.randn(shape)
    with pieces_of(2**12):
        for op, args in calls(y, y):
            taken, told = temporaries(rules.runnable(op), args), workspace_bytes(op, args)
            assert told is not None
            assert taken <= told <= 2**12 + 64, op


def test_fake_steps_take_no_more_than_is_told() -> None:
    with FakeTensorMode():
        y = torch.randn(BIG)
        for op, args in calls(y, torch.randn(BIG)):
            kept: list[Tensor] = []
            found = storage_peak(lambda op=op, args=args, kept=kept: kept.append(rules.runnable(op)(*args)))
            told = workspace_bytes(op, args)
            assert told is not None
            assert found.peak_bytes - found.left_bytes <= told


@pytest.mark.usefixtures("cache")
def test_the_planner_knows_these_operators() -> None:
    y = torch.randn(64, 100)
    for op, args in calls(y, torch.randn(64, 100)):
        n = node(op, *args)
        (measured,), (modelled,) = node_costs([n]), modelled_costs([n])
        assert measured.seconds > 0
        assert modelled.workspace == workspace_bytes(op, args)
        assert measured.workspace <= modelled.workspace
        key, run = as_call(n)
        assert key is not None
        assert run() is not None
        assert rules.returns_new(op)
        assert not rules.must_save(op, {"cpu"})
        assert not rules.draws_random(op)


def test_the_schemas_say_what_the_functions_do() -> None:
    y = torch.randn(3, 20, 7).permute(2, 0, 1)
    for op, args in calls(y, torch.randn(7, 3, 20)):
        torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))


def test_other_operators_are_none_of_ours() -> None:
    assert workspace_bytes(aten.add.Tensor, (1, 2)) is None
    assert rules.runnable(aten.add.Tensor) is aten.add.Tensor
