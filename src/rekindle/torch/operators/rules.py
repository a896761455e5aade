"""Properties of single ATen ops: which must run only once, which draw random numbers, how to run one outside of autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx

from ..private import OpOverload
from .own_ops import NAMESPACE, plain_function

aten = torch.ops.aten

# Ops whose result is their input under a new name.
PASS_THROUGH = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}

# Ops that allocate memory and write nothing to it; all overloads.
UNWRITTEN = {aten.empty, aten.empty_like, aten.empty_strided, aten.empty_permuted, aten.new_empty,
             aten.new_empty_strided}  # fmt: skip

# If recomputing a selection chose other elements (equal keys, another kernel), the gradient would take another path.
_SELECTIONS = {"topk", "sort", "argsort", "nonzero", "unique", "_unique2", "unique_dim", "unique_consecutive",
               "kthvalue", "mode", "median", "_local_scalar_dense", "multinomial", "histc", "bincount",
               "masked_select"}  # fmt: skip
_COMMUNICATION = {"_c10d_functional", "c10d", "c10d_functional", "_dtensor"}
KNOWN = ("aten", "prims", NAMESPACE)  # namespaces whose ops do what their schemas say
_RANDOM = torch.Tag.nondeterministic_seeded
_VARYING = getattr(torch.Tag, "nondeterministic_bitwise", None)  # tags that a release may lack
_ALIASING = getattr(torch.Tag, "maybe_aliasing_or_mutating", None)


def one_view(node: fx.Node, index: int) -> tuple[Any, tuple[Any, ...]] | None:
    """(op, arguments) that make one of the views that `node` makes, without the others; None if there is no such op.

    An unrolled network takes its steps out of its input one by one, and would make all views each time.
    """
    arguments: Any = node.args
    base, *rest = arguments
    if index < 0 or node.kwargs or any(isinstance(x, fx.Node) for x in rest):
        return None
    if node.target is aten.unbind.int:
        return aten.select.int, (base, rest[0] if rest else 0, index)
    if node.target in (aten.split.Tensor, aten.split_with_sizes.default):
        size, dim = rest[0], rest[1] if len(rest) > 1 else 0
        begin = index * size if isinstance(size, int) else sum(size[:index])
        length = node.meta["val"][index].shape[dim]
        return aten.slice.Tensor, (base, dim, begin, begin + int(length))
    return None


def selects(target: Any) -> bool:
    """Whether the op chooses elements by comparing them: where some are equal, another kernel may choose others."""
    return isinstance(target, OpOverload) and target._schema.name.split("::")[-1] in _SELECTIONS


def draws_random(target: Any) -> bool:
    """Whether the op draws from the default random generator of its device."""
    return isinstance(target, OpOverload) and _RANDOM in target.tags


def must_save(target: Any, devices: set[str]) -> bool:
    """Whether the op must run only once.

    True for selections, communication, copies between devices, assertions, ops that write to an argument, kernels whose bits
    vary from run to run, and targets that are no ops.

    devices : types of the devices on which its inputs and results lie.
    """
    if not isinstance(target, OpOverload):
        return True
    name = target._schema.name.split("::")[-1]
    return (
        name in _SELECTIONS
        or target.namespace in _COMMUNICATION
        or name.startswith("_assert")
        or target._schema.is_mutable
        or len(devices) > 1
        or devices == {"cuda"}
        and _VARYING is not None
        and _VARYING in target.tags
    )


# Kernels that return what backward needs only while grad mode is on.
_WANTS_GRAD_MODE = {aten.mkldnn_rnn_layer.default}


# Kernels that read a gradient as if it lay in memory like the op's input.
_WANTS_DENSE_GRADIENT = {aten.native_group_norm_backward.default}


# Kernels that compute in a larger storage and return it shrunk: a scalar whose storage holds a whole batch.
OVERSIZED = {aten.mse_loss.default, aten.smooth_l1_loss.default, aten.binary_cross_entropy.default,
              aten.soft_margin_loss.default, aten.col2im.default}  # fmt: skip


# Backward kernels that read their second argument for its shape only, and the form of each that is given the result's memory.
_READS_SHAPE = {
    aten.max_pool2d_with_indices_backward.default: aten.max_pool2d_with_indices_backward.grad_input,
    aten.max_pool3d_with_indices_backward.default: aten.max_pool3d_with_indices_backward.grad_input,
    aten.avg_pool2d_backward.default: aten.avg_pool2d_backward.grad_input,
    aten.avg_pool3d_backward.default: aten.avg_pool3d_backward.grad_input,
}


# Ops that copy a tensor and write into a view of the copy; their kernels copy its whole storage. Op -> op of the view.
_SCATTERS = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
}


@cache
def runnable(target: Any) -> Callable[..., Any]:
    """The function that runs the op outside of autograd as autograd runs it, in no more memory than its results need."""
    own = plain_function(target)
    if own is not None:
        return own
    if target in _WANTS_GRAD_MODE:
        return _GradModeCall(target)
    if target in _SCATTERS:
        return _ScatterCall(target)
    if target in _WANTS_DENSE_GRADIENT:
        return _DenseGradientCall(target)
    if target in _READS_SHAPE:
        return _ShapeCall(target)
    return _FittedCall(target) if target in OVERSIZED else target


class _GradModeCall:
    """Runs an op in grad mode, on tensors that require no grad, so that autograd records nothing."""

    def __init__(self, target: Any):
        self.target = target
        self.__name__ = f"{target._schema.name.split('::')[-1]}_in_grad_mode"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            return self.target(*(a.detach() if isinstance(a, torch.Tensor) else a for a in args), **kwargs)


class _ShapeCall:
    """Runs a kernel that reads an argument for its shape only, where a stand-in without memory is given (`capture.shape_only`).

    A GPU's kernel would make a contiguous copy of the stand-in; here the result itself, not yet written, takes its place.
    """

    def __init__(self, target: Any):
        self.target, self.out = target, _READS_SHAPE[target]
        self.__name__ = f"{target._schema.name.split('::')[-1]}_by_shape"

    def __call__(self, gradient: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if any(x.stride()) or x.numel() <= 1:
            return self.target(gradient, x, *args, **kwargs)
        made = x.new_empty(x.shape)
        return self.out(gradient, made, *args, **kwargs, grad_input=made)


class _DenseGradientCall:
    """Runs the backward of an op on a gradient in the layout of the op's input.

    The loss may give a gradient in other strides than the graph was captured with. Autograd copies it then, but such a copy is
    not in the graph, and the kernel reads memory without regard to strides.
    """

    def __init__(self, target: Any):
        self.target = target
        self.__name__ = f"{target._schema.name.split('::')[-1]}_of_dense"

    def __call__(self, gradient: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        dense = gradient.contiguous(memory_format=_layout(x))
        return self.target(dense, x, *args, **kwargs)


def _layout(t: torch.Tensor) -> torch.memory_format:
    """The layout of a tensor without gaps."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(t.dim())
    return last if last is not None and not t.is_contiguous() else torch.contiguous_format


def as_complex(t: torch.Tensor) -> torch.Tensor:
    """`torch.view_as_complex`, of a copy where the strides allow no such view."""
    pairs = t.stride(-1) == 1 and all(n % 2 == 0 for n in t.stride()[:-1])
    return torch.view_as_complex(t if pairs else t.contiguous())


class _FittedCall:
    """Runs an op, and copies its result if the storage is larger than the result."""

    def __init__(self, target: Any):
        self.target = target
        self.__name__ = f"{target._schema.name.split('::')[-1]}_fitted"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = self.target(*args, **kwargs)
        return out.clone() if out.untyped_storage().nbytes() > out.numel() * out.element_size() else out


class _ScatterCall:
    """Runs a scatter on a copy of the base tensor alone, without the rest of its storage."""

    def __init__(self, target: Any):
        self.target, self.view = target, _SCATTERS[target]
        self.__name__ = f"{target._schema.name.split('::')[-1]}_fitted"

    def __call__(self, base: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if base.untyped_storage().nbytes() == base.numel() * base.element_size() or 0 in base.stride():
            return self.target(base, source, *args, **kwargs)
        out = torch.empty_strided(base.shape, base.stride(), dtype=base.dtype, device=base.device).copy_(base)
        self.view(out, *args, **kwargs).copy_(source)
        return out


def returns_new(target: Any) -> bool:
    """Whether the op's results surely have storages of their own at run time, so that later ops may overwrite them."""
    return isinstance(target, OpOverload) and target.namespace in KNOWN and _ALIASING not in target.tags
