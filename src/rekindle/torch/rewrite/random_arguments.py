"""Random arguments for one call of an op, on the device of the call: numbers that the op could be given in a training step.

Most are normally distributed. Arguments that other ops make for this one (indices, saved statistics, the results of the forward
op) are computed, or drawn, so that they are valid; an index out of range would end the process on a GPU.

Kernels add up sixteen-bit numbers in float32, and round the sum to sixteen bits: of normally distributed numbers another order
of the sum shows in one of many thousand results, and a probe may pass slices that differ. It shows in one of some twenty where
numbers cancel: ones of both signs, and others so small that beside a one a float32 sum keeps few of their digits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from ..costs.made_up import ON_HOST
from ..costs.operator_calls import span
from ..operators.cut_call import Call
from ..operators.cut_rules import OPERATORS
from ..operators.cuts import tensor_arguments
from ..operators.record import Given, Sample, Valid

aten = torch.ops.aten
_BLOCK = 2**20 - 3  # numbers that are drawn; larger tensors repeat them, at a distance that is a prime
_ONES = 0.25  # share of numbers of size one among those that cancel: a guess, for sums of a few products and of many
_KINDS = 8  # whole numbers of element-wise ops are below this one


def random_tensors(node: fx.Node, cancel: bool = False) -> list[torch.Tensor]:
    """Real tensors for `tensor_arguments(node)`, laid out as the fake ones; a node that occurs twice gives one tensor.

    They are drawn from the default generators of their devices. cancel : sixteen-bit numbers cancel, so that the order of sums
    shows.
    """
    call = Call(node)
    nodes = tensor_arguments(node)
    drawn = {n: _drawn(n.meta["val"], call, cancel) for n in dict.fromkeys(nodes)}
    make = _VALID.get(call.name)
    if make is None:
        return [drawn[n] for n in nodes]
    given = {k: map_arg(v, lambda n: drawn.get(n)) for k, v in call.values.items()}  # type: ignore[arg-type, return-value]
    valid = make(given)
    places = zip(nodes, call.tensors, strict=True)
    return [_as(valid[name, i], n.meta["val"]) if (name, i) in valid else drawn[n] for n, (name, i, _) in places]


def with_tensors(node: fx.Node, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of the node's call with these tensors in place of `tensor_arguments(node)`."""
    rest = iter(tensors)
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: next(rest))
    return tuple(args), dict(kwargs)


def _drawn(like: torch.Tensor, call: Call, cancel: bool) -> torch.Tensor:
    """Normally distributed numbers, or absolute values of such; bools; whole numbers for element-wise ops, else zeros."""
    n = span(like)
    options: Any = {"dtype": like.dtype, "device": like.device}
    count = min(n, _BLOCK)
    if like.dtype.is_floating_point or like.dtype.is_complex:
        block = torch.randn(count, **options)
        block = _cancelling(block) if cancel and few_bits(like.dtype) else block
        block = block.abs() if call.name in _POSITIVE else block
    elif like.dtype is torch.bool:
        block = torch.rand(count, device=like.device) < 0.5
    elif torch.Tag.pointwise in call.node.target.tags:  # type: ignore[union-attr]
        block = torch.randint(_KINDS, (count,), **options)
    else:
        block = torch.zeros(count, **options)
    memory = block if count == n else torch.empty(n, **options)
    for begin in range(0, n if count < n else 0, _BLOCK):
        part = memory[begin : begin + _BLOCK]
        part.copy_(block[: len(part)])
    return memory.as_strided(like.shape, like.stride())


def few_bits(dtype: torch.dtype) -> bool:
    """Whether sums of such numbers are rounded to fewer bits than they are added up in."""
    return dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize


def _cancelling(block: torch.Tensor) -> torch.Tensor:
    """Some of the numbers as ones with their signs, the others very small."""
    small = torch.finfo(torch.float32).eps / torch.finfo(block.dtype).eps
    ones = torch.rand(block.shape, device=block.device) < _ONES
    return torch.where(ones, block.sign(), block * small)


def _as(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor with the type and the strides of a fake one."""
    if (t.dtype, t.stride()) == (like.dtype, like.stride()):
        return t
    memory = torch.empty(span(like), dtype=like.dtype, device=like.device)
    one = t[tuple(slice(0, 1 if s == 0 else None) for s in like.stride())]  # elements in one place are one number
    memory.as_strided(one.shape, like.stride()).copy_(one)
    return memory.as_strided(like.shape, like.stride())


# -- arguments that must be valid -----------------------------------------------------------------------------------------
def _below(bound: int, like: torch.Tensor) -> torch.Tensor:
    return torch.randint(bound, like.shape, dtype=like.dtype, device=like.device)


def _embedding(x: Given) -> Valid:
    rows = x["weight"].shape[0] if "weight" in x else x["num_weights"]
    return {("indices", 0): _below(rows, x["indices"])}


def _along(x: Given) -> Valid:
    return {("index", 0): _below(x["self"].shape[x["dim"]] if x["self"].dim() else 1, x["index"])}


def _indices(x: Given) -> Valid:
    return {
        ("indices", i): _below(x["self"].shape[i], t) for i, t in enumerate(x["indices"])
        if t is not None and t.dtype not in (torch.bool, torch.uint8)
    }  # fmt: skip


def _nll(x: Given) -> Valid:
    made = {("target", 0): _below(x["self"].shape[1 if x["self"].dim() > 1 else 0], x["target"])}
    if "total_weight" in x:
        made["total_weight", 0] = torch.full_like(x["total_weight"], max(1, x["target"].numel()))
    return made


def _softmax_backward(op: Any) -> Sample:
    return lambda x: {("output", 0): op(x["output"], x["dim"], False)}


def _pool_backward(op: Any, *names: str) -> Sample:
    """Indices as the forward op gives them; the input may be a stand-in, whose numbers all lie in one place."""

    def make(x: Given) -> Valid:
        dense = torch.randn(x["self"].shape, dtype=x["self"].dtype, device=x["self"].device)
        size = (x["indices"].shape[-names.index("self") :],) if "self" in names else ()
        return {("indices", 0): op(dense, *size, *(x[k] for k in names if k != "self"))[1]}

    return make


def _attention_backward(op: Any, results: tuple[str, ...], given: tuple[str, ...]) -> Sample:
    """The results of the forward op."""

    def make(x: Given) -> Valid:
        made = op(x["query"], x["key"], x["value"], **{k: x[k] for k in given})
        return {(name, 0): t for name, t in zip(results, made, strict=False) if name and isinstance(t, torch.Tensor)}

    return make


def _on_host(x: Given) -> Valid:
    """Random states that the kernel reads on the host; see `made_up.ON_HOST`."""
    return {(k, 0): torch.zeros(x[k].shape, dtype=x[k].dtype) for k in ("philox_seed", "philox_offset")}


def _between(x: Given) -> Valid:
    """Probabilities."""
    return {(k, 0): t.sigmoid() for k, t in x.items() if k in ("self", "target") and isinstance(t, torch.Tensor)}


_WINDOW = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
_POSITIVE = {
    f"aten::{op}" for op in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "reciprocal", "lgamma", "digamma")
}
_VALID: dict[str, Sample] = {
    **{name: op.sample for name, op in OPERATORS.items() if op.sample is not None},
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding,
    **dict.fromkeys((f"aten::{op}" for op in ("gather", "scatter", "scatter_add", "index_select")), _along),
    **dict.fromkeys(("aten::index", "aten::index_put"), _indices),
    **dict.fromkeys(("aten::nll_loss_forward", "aten::nll_loss_backward", "aten::nll_loss2d_backward"), _nll),
    "aten::_softmax_backward_data": _softmax_backward(aten._softmax),
    "aten::_log_softmax_backward_data": _softmax_backward(aten._log_softmax),
    "aten::max_pool2d_with_indices_backward": _pool_backward(aten.max_pool2d_with_indices, *_WINDOW),
    "aten::max_pool3d_with_indices_backward": _pool_backward(aten.max_pool3d_with_indices, *_WINDOW),
    "aten::binary_cross_entropy": _between,
    "aten::binary_cross_entropy_backward": _between,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward(
        aten._scaled_dot_product_flash_attention_for_cpu, ("out", "logsumexp"),
        ("dropout_p", "is_causal", "attn_mask", "scale"),
    ),
    **dict.fromkeys(ON_HOST, _on_host),
}  # fmt: skip
