"""Every op that may write over an input gives the same bits when it does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rekindle
from rekindle.torch.capture.overwrites import OVERWRITES
from rekindle.torch.capture.random_in_place import OUT_OF_PLACE
from rekindle.torch.rewrite.small_saves import DROPOUT_BACKWARD_BY_BITS, ZERO_BY_BITS, pack_mask, sign_bits

aten: Any = torch.ops.aten
SHAPES = [(64, 100), (3, 7, 11), (16, 3001)]
UNARY = ["relu", "sigmoid", "tanh", "silu", "gelu", "hardtanh", "hardswish", "leaky_relu", "elu", "neg"]
# op -> its other arguments; x and y are tensors of one shape, m a mask
ARGUMENTS: dict[Any, Any] = {getattr(aten, name).default: lambda x, y, m: (x,) for name in UNARY} | {
    aten.div.Scalar: lambda x, y, m: (x, 3.0),
    aten.mul.Scalar: lambda x, y, m: (x, 3.0),
    aten.add.Scalar: lambda x, y, m: (x, 3.0),
    aten.add.Tensor: lambda x, y, m: (x, y),
    aten.mul.Tensor: lambda x, y, m: (x, y),
    aten.sub.Tensor: lambda x, y, m: (x, y),
    aten.div.Tensor: lambda x, y, m: (x, y),
    aten.threshold_backward.default: lambda x, y, m: (x, y, 0.1),
    aten.sigmoid_backward.default: lambda x, y, m: (x, y),
    aten.tanh_backward.default: lambda x, y, m: (x, y),
    aten.silu_backward.default: lambda x, y, m: (x, y),
    aten.gelu_backward.default: lambda x, y, m: (x, y),
    aten.hardtanh_backward.default: lambda x, y, m: (x, y, -1.0, 1.0),
    aten.leaky_relu_backward.default: lambda x, y, m: (x, y, 0.1, False),
    aten.elu_backward.default: lambda x, y, m: (x, 1.0, 1.0, 1.0, False, y),
    aten._softmax.default: lambda x, y, m: (x, -1, False),
    aten._log_softmax.default: lambda x, y, m: (x, 1, False),
    aten._softmax_backward_data.default: lambda x, y, m: (x, y, -1, x.dtype),
    aten._log_softmax_backward_data.default: lambda x, y, m: (x, y, 1, x.dtype),
    aten.masked_fill.Scalar: lambda x, y, m: (x, m, -1.0),
    aten.where.self: lambda x, y, m: (m, x, y),
    aten.slice_scatter.default: lambda x, y, m: (x, y[:2], 0, 1, 3),
    aten.addmm.default: lambda x, y, m: (x.flatten(0, -2), y.flatten(0, -2)[:, :9], y.flatten(0, -2)[:9]),
    ZERO_BY_BITS: lambda x, y, m: (x, sign_bits(y), y.stride()),
    DROPOUT_BACKWARD_BY_BITS: lambda x, y, m: (x, pack_mask(m), m.stride(), 1.25),
    OUT_OF_PLACE[aten.bernoulli_.float]: lambda x, y, m: (x, 0.3),
    OUT_OF_PLACE[aten.normal_.default]: lambda x, y, m: (x, 1.0, 2.0),
}


def test_every_one_is_tested() -> None:
    assert ARGUMENTS.keys() == OVERWRITES.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", list(OVERWRITES), ids=str)
def test_writing_over_an_input_changes_no_bit(op: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for shape in SHAPES:
        x, y, mask = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype), torch.rand(shape) < 0.5
        torch.manual_seed(1)
        expected = op(*ARGUMENTS[op](x, y, mask))
        for position, call in OVERWRITES[op].items():
            args = [a.clone() if isinstance(a, torch.Tensor) else a for a in ARGUMENTS[op](x, y, mask)]
            torch.manual_seed(1)
            found = call(*args)
            assert found.data_ptr() == args[position].data_ptr()
            assert torch.allclose(found, expected, rtol=0, atol=0, equal_nan=True)  # bfloat16 draws zeros: 0 / 0


def test_what_a_view_shows_whole_is_written_over() -> None:
    """The gradient of a linear layer's output arrives as a view of what a matrix product made."""
    model, x = rekindle.zoo.load("gpt_blocks", batch=2, n_layer=1, d=32, length=16)
    ops = rekindle.trace(model, x).graph.ops
    for name in ("gelu_backward", "_softmax_backward_data", "aten.div"):
        assert any(op.inplace for op in ops if name in op.name), name
