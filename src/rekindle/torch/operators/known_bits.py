"""Ops whose slices are known, without a run, to give the bits of the whole op: by construction, or as measured before.

`BY_CONSTRUCTION` holds on every device. `KNOWN` was measured on a CPU (float32, AVX-512, one and two threads, 2 to 8 slices),
and counts where nothing can run, and for steps that are planned without tensors: there all figures are modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import fx

from ..private import OpOverload
from .cut_call import Call, broadcast
from .cut_rules import OPERATORS, rule_of
from .cuts import Cut, span, tensor_arguments
from .node_tensors import is_view
from .rules import UNWRITTEN

_ROWS = 8  # matrix products of fewer rows take another kernel, and each kernel takes some rows at a time
_EXAMPLES_LEAST = 2  # convolutions of one example take another kernel
_VECTORS = 64  # elements of the largest step of a vectorised loop; what is left over is computed alone
_SHARED_CHANNELS = 32  # two blocks of channels, as kernels take them
_THREADS = 64  # for machines that are not known
_ONE_MORE = "alpha"  # a factor in an addition: some kernels round the product, and others do not

# Every element of the result is an element of an argument, or one number.
_MOVES = (
    "clone", "_to_copy", "copy", "fill", "cat", "stack", "repeat", "constant_pad_nd", "tril", "triu", "flip", "roll",
    "embedding", "gather", "index_select", "index", "where", "masked_fill", "slice_scatter", "select_scatter", "slice_backward",
    "select_backward", "lift_fresh_copy", "zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "zeros_like",
    "ones_like", "full_like", "_unsafe_view", "reshape", "max_pool2d_with_indices", "max_pool3d_with_indices",
)  # fmt: skip
# Every element comes from those at its place, by comparisons, or by operations that IEEE 754 rounds in one way: so it is the
# same in a vector of elements and alone. Others (exp, erf, …) are approximated, by one formula in vectors, by another alone.
_EXACT = (
    "add", "sub", "rsub", "mul", "div", "neg", "abs", "sqrt", "sign", "floor", "ceil", "trunc", "round", "relu", "clamp",
    "clamp_min", "clamp_max", "maximum", "minimum", "hardtanh", "hardtanh_backward", "leaky_relu", "leaky_relu_backward",
    "threshold", "threshold_backward", "native_dropout_backward", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf",
    "logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor",
    "nll_loss_backward", "nll_loss2d_backward",
)  # fmt: skip
# Operators of ours that pack bits and offsets, and read them: moves, comparisons and exact products.
_OURS = ("sign_bits", "zero_by_bits", "pack_mask", "unpack_mask", "dropout_backward_by_bits", "pool_offsets")
BY_CONSTRUCTION = frozenset([*(f"aten::{op}" for op in (*_MOVES, *_EXACT)), *(f"rekindle::{op}" for op in _OURS)])
# On a CPU one thread adds up each plane, in one order; a GPU may add in any order.
_BY_PLANE = frozenset({"aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward",
                       "rekindle::max_pool2d_backward_by_offsets"})  # fmt: skip


def by_construction(node: fx.Node) -> bool:
    """Whether slices of the op, whichever cut it is, have the bits of the whole because of the way in which it computes.

    A NaN is a NaN in both; which of the NaNs it is may differ."""
    if is_view(node) or getattr(node.target, "overloadpacket", None) in UNWRITTEN:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    call = Call(node)
    results = [t for t in call.results if t is not None]
    if (
        any(t.dtype.is_complex for t in results)
        or call.values.get(_ONE_MORE, 1) != 1
        or call.values.get("rounding_mode")
    ):
        return False
    return call.name in BY_CONSTRUCTION or (call.name in _BY_PLANE and all(t.device.type == "cpu" for t in results))


Rule = Callable[["Question"], bool | None]  # None: a run alone tells


class Question:
    """How an op is cut, as the rules see it. edges : units at which slices begin, and the end. sizes : of the slices of the
    first argument that is cut."""

    def __init__(self, node: fx.Node, cut: Cut, edges: Sequence[int]):
        self.call, self.cut, self.edges = Call(node), cut, edges
        self.ins = {(name, i): d for (name, i, _), d in zip(self.call.tensors, cut.ins, strict=True)}
        self.tensors: list[torch.Tensor] = [a.meta["val"] for a in tensor_arguments(node)]
        self.out = cut.outs[0]

    def least(self) -> int:
        """The size of the smallest slice of the first argument that is cut, along the dimension that is cut."""
        t, d = next((t, d) for t, d in zip(self.tensors, self.cut.ins, strict=True) if d is not None)
        return min(e - b for b, e in self._spans(t, d))

    def begins_at_multiples(self, n: int) -> bool:
        """Whether the slices of the first argument that is cut begin at multiples of n, and each has at least n."""
        t, d = next((t, d) for t, d in zip(self.tensors, self.cut.ins, strict=True) if d is not None)
        return all(b % n == 0 for b, _ in self._spans(t, d)) and self.least() >= n

    def contiguous(self) -> bool:
        """Whether all arguments that are cut are contiguous."""
        return all(t.is_contiguous() for t, d in zip(self.tensors, self.cut.ins, strict=True) if d is not None)

    def in_whole_vectors(self, threads: int) -> bool:
        """Whether each slice is a piece of memory, of whole vectors of elements for each of so many threads."""
        return all(
            t.is_contiguous() and all(n == 1 for n in t.shape[:d])
            and all((e - b) * (t.numel() // t.shape[d]) % (_VECTORS * threads) == 0 for b, e in self._spans(t, d))
            for t, d in zip(self.tensors, self.cut.ins, strict=True) if d is not None
        )  # fmt: skip

    def _spans(self, t: torch.Tensor, d: int) -> list[tuple[int, int]]:
        return [span(t.shape[d], b, e, self.edges[-1]) for b, e in pairwise(self.edges)]


def _by_batch(q: Question) -> bool:
    return all(d in (0, None) for d in q.cut.ins)


def _convolution(q: Question) -> bool:
    """By batch, and by output channel; not of one example, and not of one element of every few."""
    if q.ins["input", 0] == 0:
        return q.least() >= _EXAMPLES_LEAST
    kernel, stride = q.call.shape("weight")[2:], q.call["stride"]
    return q.ins["input", 0] is None and (max(kernel) > 1 or max(stride) == 1)


def _convolution_backward(q: Question) -> bool | None:
    """The input's gradient, by batch and by input channel. The weight's, by either of its channels, had the same bits with one
    thread, and other bits in an eighth of the cases with two: mostly where few of the channels that are not cut are there for
    the threads to share."""
    of_input, *of_weight = q.call["output_mask"]
    if not of_input:
        # A transposed convolution's weight has its input channels first.
        first = (q.ins["grad_output", 0] == 1) == bool(q.call["transposed"])
        return None if q.call.shape("weight")[0 if first else 1] % _SHARED_CHANNELS == 0 else False
    if any(of_weight):
        return False
    if q.ins["input", 0] == 0:
        return q.least() >= _EXAMPLES_LEAST
    return q.ins["input", 0] == 1 and q.ins["grad_output", 0] is None


def _product(left: str) -> Rule:
    """By rows, as many as kernels take at a time, and by batch."""

    def rule(q: Question) -> bool:
        d, rank = q.ins[left, 0], len(q.call.shape(left))
        return d is not None and (d == rank - 3 or (d == rank - 2 and q.begins_at_multiples(_ROWS)))

    return rule


def _rows(q: Question) -> bool:
    """Along the last dimension, of contiguous tensors."""
    (dim,) = q.call.dims()
    return dim == len(q.call.out()) - 1 and q.contiguous()


def _always(q: Question) -> bool:
    return True


_LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss")
_BY_ELEMENT = {f"aten::{op}{phase}" for op in ("glu", *_LOSSES) for phase in ("", "_backward")}
# These go through memory along the last dimension in vectors, whichever dimension they add up.
_ALONG = {f"aten::{op}" for op in (
    "sum", "nansum", "mean", "prod", "logsumexp", "linalg_vector_norm", "norm", "var", "std", "var_mean", "std_mean", "cumsum",
    "cumprod", "_softmax", "_log_softmax", "_safe_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
)}  # fmt: skip
KNOWN: dict[str, Rule] = {
    **{name: op.same_bits for name, op in OPERATORS.items() if op.same_bits is not None},
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::mm": _product("self"),
    "aten::addmm": _product("mat1"),
    "aten::bmm": _product("self"),
    "aten::baddbmm": _product("batch1"),
    **dict.fromkeys(
        (f"aten::{op}" for op in ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data")), _rows
    ),
    **dict.fromkeys(
        (f"aten::_scaled_dot_product_{kernel}{phase}"
         for kernel in ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
         for phase in ("", "_backward")), _always,
    ),
    **dict.fromkeys(_BY_PLANE, _always),
    **dict.fromkeys(
        (f"aten::{op}{phase}" for op in ("avg_pool2d", "_adaptive_avg_pool2d", "upsample_nearest2d")
         for phase in ("", "_backward")),
        _by_batch,
    ),
}  # fmt: skip


def known(node: fx.Node, cut: Cut, edges: Sequence[int]) -> bool | None:
    """Whether the table says that slices of the op have the bits of the whole; of ops that are not in it, they have not. None:
    it depends on the op's shapes and on the machine, so that a run alone tells."""
    q = Question(node, cut, edges)
    rule = KNOWN.get(q.call.name)
    if rule is not None:
        return rule(q)
    return rule_of(node.target) is broadcast and q.in_whole_vectors(_THREADS)


def can_be_probed(node: fx.Node, cut: Cut, edges: Sequence[int]) -> bool:
    """Whether a run on a CPU tells more than chance.

    Where elements that lie in whole vectors in the whole are left over in a slice, those few alone are computed in another way,
    and for many random numbers both ways give the same bits.
    """
    q = Question(node, cut, edges)
    if rule_of(node.target) is broadcast or q.call.name in _BY_ELEMENT:
        return q.in_whole_vectors(torch.get_num_threads())
    if q.call.name in _ALONG:
        first = min(q.call.dims())
        return q.contiguous() and all(d is None or d < first for d in cut.ins)
    return True
