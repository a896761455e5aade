"""Corrections of torch, each against torch's own rule and eager's kernel: one that is no longer needed shows itself.

Each test compares torch without the correction with the kernel. It fails where they agree: then the correction can go, or,
while an older release that is supported still needs it, `RIGHT_SINCE` names the release that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from rekindle.torch.capture import eager_kernels
from rekindle.torch.costs import operator_calls as flops
from rekindle.torch.operators import eager_strides, rules
from test_strides import laid_out

aten = torch.ops.aten
VERSION = tuple(int(x) for x in torch.__version__.split("+")[0].split(".")[:2])
RIGHT_SINCE: dict[Any, tuple[int, int]] = {aten.reflection_pad2d.default: (2, 12)}

SHAPES = [(2, 8, 6), (2, 8, 6, 4), (2, 8, 1, 1), (2, 8, 1, 3), (1, 8, 4, 3)]
PAD = [1, 1, 1, 1]
C = 8  # channels of all shapes
Arguments = Callable[[Tensor, Tensor], tuple[Any, ...]]


def per_channel() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """weight, bias, mean, variance"""
    return torch.ones(C), torch.zeros(C), torch.zeros(C), torch.ones(C)


def layer_norm(g: Tensor, x: Tensor) -> tuple[Any, ...]:
    last = list(x.shape[-2:])
    weight, bias = torch.ones(last), torch.zeros(last)
    _, mean, rstd = aten.native_layer_norm(x, last, weight, bias, 1e-5)
    return g, x, last, mean, rstd, weight, bias, [True] * 3


# op -> its arguments for a gradient and an input of one shape, laid out in several ways
ARGUMENTS: dict[Any, Arguments] = {
    aten.native_layer_norm_backward.default: layer_norm,
    aten._log_softmax_backward_data.default: lambda g, x: (g, x, 1, x.dtype),
    aten.log_sigmoid_forward.default: lambda g, x: (x,),
    aten.rrelu_with_noise_backward.default: lambda g, x: (g, x, torch.ones_like(x), 0.1, 0.3, True, False),
    aten.glu_backward.default: lambda g, x: (g.narrow(1, 0, C // 2), x, 1),
    aten.mse_loss_backward.default: lambda g, x: (g, x, torch.zeros(x.shape), 0),
    aten.smooth_l1_loss_backward.default: lambda g, x: (g, x, torch.zeros(x.shape), 0, 1.0),
    aten.huber_loss_backward.default: lambda g, x: (g, x, torch.zeros(x.shape), 0, 1.0),
    aten.masked_fill.Scalar: lambda g, x: (x, g > 0, 0.0),
    aten.masked_fill.Tensor: lambda g, x: (x, g > 0, torch.zeros(())),
    aten.native_batch_norm.default: lambda g, x: (x, *per_channel(), True, 0.1, 1e-5),
    aten._native_batch_norm_legit.default: lambda g, x: (x, *per_channel(), True, 0.1, 1e-5),
    aten._native_batch_norm_legit.no_stats: lambda g, x: (x, *per_channel()[:2], True, 0.1, 1e-5),
    aten._native_batch_norm_legit_functional.default: lambda g, x: (x, *per_channel(), True, 0.1, 1e-5),
    aten._native_batch_norm_legit_no_training.default: lambda g, x: (x, *per_channel(), 0.1, 1e-5),
    aten.native_batch_norm_backward.default: lambda g, x: (
        g, x, torch.ones(C), *per_channel()[2:], *per_channel()[2:], True, 1e-5, [True] * 3
    ),
    aten.reflection_pad2d.default: lambda g, x: (x, PAD),
    aten.reflection_pad2d_backward.default: lambda g, x: (aten.reflection_pad2d(g, PAD), x, PAD),
    aten.roll.default: lambda g, x: (x, [1], [2]),
    aten.channel_shuffle.default: lambda g, x: (x, 2),
    aten.hardswish_backward.default: lambda g, x: (g, x),
    aten.hardsigmoid_backward.default: lambda g, x: (g, x),
    aten.hardtanh_backward.default: lambda g, x: (g, x, -1.0, 1.0),
    aten.elu_backward.default: lambda g, x: (g, 1.0, 1.0, 1.0, False, x),
    aten.softplus_backward.default: lambda g, x: (g, x, 1.0, 20.0),
    aten.log_sigmoid_backward.default: lambda g, x: (g, x, aten.log_sigmoid_forward(x)[1]),
    aten.leaky_relu_backward.default: lambda g, x: (g, x, 0.1, False),
    aten.threshold_backward.default: lambda g, x: (g, x, 0.0),
    aten.native_dropout_backward.default: lambda g, x: (g, x > 0, 2.0),
    aten.hardtanh.default: lambda g, x: (x,),
    aten.native_dropout.default: lambda g, x: (x, 0.5, True),
    aten._log_softmax.default: lambda g, x: (x, 1, False),
    aten.convolution_backward.default: lambda g, x: (
        g, x, torch.ones(C, C, 1, 1), [C], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3
    ),
}  # fmt: skip
OF_IMAGES = {aten.reflection_pad2d.default, aten.reflection_pad2d_backward.default, aten.convolution_backward.default,
             aten.channel_shuffle.default}  # fmt: skip


def differs(op: Any, args: tuple[Any, ...]) -> bool:
    """Whether torch's shape rule gives a result other strides than the kernel does."""
    mode = FakeTensorMode()
    fakes = tree_map_only(Tensor, mode.from_tensor, args)
    with mode:
        FakeTensorMode.cache_clear()  # what a mode with corrections left there
        fake = op(*fakes)
    pairs = zip(tree_leaves(op(*args)), tree_leaves(fake), strict=True)
    return any(isinstance(real, Tensor) and real.numel() > 0 and real.stride() != f.stride() for real, f in pairs)


def laid_out_arguments(op: Any) -> Iterator[tuple[Any, ...]]:
    """The op's arguments in all layouts of all shapes that it takes."""
    for shape in SHAPES:
        small = min(shape[-2:]) < 2  # too small to reflect
        if op in OF_IMAGES and (len(shape) != 4 or small and "pad" in str(op)):
            continue
        for x in laid_out(shape):
            for g in laid_out(shape):
                yield ARGUMENTS[op](g, x)


def test_every_op_with_corrected_strides_is_here() -> None:
    assert ARGUMENTS.keys() == eager_strides.STRIDES.keys()


@pytest.mark.parametrize("op", ARGUMENTS, ids=str)
def test_strides_need_their_correction(op: Any) -> None:
    needed = any(differs(op, args) for args in laid_out_arguments(op))
    right = RIGHT_SINCE.get(op, (99, 0)) <= VERSION
    assert needed != right, (
        f"torch {torch.__version__} gives {op} the kernel's strides itself: drop `strides` from its record, or from which "
        "release on that is so, note in RIGHT_SINCE" if not needed else f"{op} is wrong again: correct RIGHT_SINCE"
    )  # fmt: skip


def test_dimensions_of_one_element_need_their_correction() -> None:
    pairs = [(x, y) for shape in ((2, 8, 1, 1), (2, 8, 1, 3)) for x in laid_out(shape) for y in laid_out(shape)]
    assert any(differs(aten.add.Tensor, pair) for pair in pairs), "strides.result_strides can go"


@pytest.mark.parametrize("prefix", eager_kernels._STOOD_IN)
def test_torch_still_traces_other_versions_of_composite_ops(prefix: str) -> None:
    """Without a Python version there is nothing to take away."""
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith(f"aten::{prefix}")]
    found = []
    for name in names:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        found.append(getattr(getattr(aten, packet), overload or "default").py_kernels)
    assert any(k in kernels for kernels in found for k in eager_kernels._COMPOSITE), f"drop {prefix!r} from _STOOD_IN"


X = torch.arange(96, dtype=torch.float32).reshape(2, 6, 8) / 50 - 1
OVERSIZED: dict[Any, tuple[Any, ...]] = {
    aten.mse_loss.default: (X, X + 1),
    aten.smooth_l1_loss.default: (X, X + 1),
    aten.binary_cross_entropy.default: (X.sigmoid(), torch.ones_like(X)),
    aten.soft_margin_loss.default: (X, torch.ones_like(X)),
    aten.col2im.default: (torch.randn(1, 36, 4), [3, 3], [2, 2], [1, 1], [0, 0], [1, 1]),
}


def too_large(t: Tensor) -> bool:
    return t.untyped_storage().nbytes() > t.numel() * t.element_size()


@pytest.mark.parametrize("op", OVERSIZED, ids=str)
def test_kernels_still_return_results_in_larger_storages(op: Any) -> None:
    assert OVERSIZED.keys() == rules.OVERSIZED
    assert too_large(op(*OVERSIZED[op])), f"drop `fitted` from the record of {op}"
    assert not too_large(rules.runnable(op)(*OVERSIZED[op]))


SCATTERS: dict[Any, tuple[Tensor, tuple[int, ...]]] = {
    aten.slice_scatter.default: (torch.ones(2, 8), (0, 0, 2)),
    aten.select_scatter.default: (torch.ones(8), (0, 1)),
    aten.diagonal_scatter.default: (torch.ones(8), ()),
}


@pytest.mark.parametrize("op", SCATTERS, ids=str)
def test_scatters_still_copy_the_whole_storage(op: Any) -> None:
    assert SCATTERS.keys() == {target for target in rules._RUNS if "_scatter" in str(target)}
    base = torch.randn(4, 8, 8)[1]
    source, args = SCATTERS[op]
    assert too_large(op(base, source, *args)), f"drop `of_base_alone` from the record of {op}"
    assert not too_large(rules.runnable(op)(base, source, *args))
    assert torch.equal(op(base, source, *args), rules.runnable(op)(base, source, *args))


def test_the_backward_of_group_norm_still_reads_memory_without_strides() -> None:
    """Its numbers differ for a gradient of other strides than the input's."""
    x, g = torch.randn(2, 4, 3, 5), torch.randn(2, 4, 5, 3).transpose(2, 3)
    _, mean, rstd = aten.native_group_norm(x, None, None, 2, 4, 15, 2, 1e-5)
    args = x, mean, rstd, None, 2, 4, 15, 2, [True, False, False]
    op = aten.native_group_norm_backward.default
    right = op(g.contiguous(), *args)[0]
    assert not torch.equal(op(g, *args)[0], right), "drop `of_dense` from its record"
    assert torch.equal(rules.runnable(op)(g, *args)[0], right)


def test_torch_still_counts_no_flops_of_the_cpus_attention() -> None:
    assert flops._AS
    for op in flops._AS:
        assert op not in flop_registry, f"torch counts {op} itself"


def test_torch_still_counts_too_many_flops_of_grouped_convolutions() -> None:
    g, x, weight = torch.empty(1, 8, 4, 4), torch.empty(1, 8, 4, 4), torch.empty(8, 2, 1, 1)
    args = g, x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 4, [True, True, False]
    out = aten.convolution_backward(*args)
    ours = flops.op_flops(aten.convolution_backward.default, args, {}, out)
    assert flop_registry[aten.convolution_backward](*args, out_val=out) > ours
