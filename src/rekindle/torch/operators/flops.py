"""FLOPs of operator calls, by one function for captured graphs, executed programs and eager steps.

A multiply-add counts two, and only matrix products, convolutions and attention count, as in `torch.utils.flop_counter`.
Torch's formulas are used wherever they are right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ..tensors.instrument import Instrument

aten = torch.ops.aten


def op_flops(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """FLOPs of one call of the operator overload `target`; its tensors (args, kwargs, out) may be real or fake.

    An operator without a formula (point-wise, normalisation, copies, …) counts 0.
    """
    packet = getattr(target, "_overloadpacket", target)
    if packet is aten.convolution_backward:
        return _convolution_backward(args, kwargs)
    packet = _SAME_FORMULA.get(packet, packet)
    formula = flop_registry.get(packet)
    if packet in _QUERY:
        args = _with_equal_heads(args, _QUERY[packet])
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))


# Torch has no formula for an addmm in place, nor for the CPU's fused attention, which computes the same as GPUs' flash kernels.
_SAME_FORMULA = {
    aten.addmm_: aten.addmm,
    aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: aten._scaled_dot_product_flash_attention_backward,
}
# Position of the query among the arguments of attention; key and value follow.
_QUERY = {
    aten._scaled_dot_product_flash_attention: 0, aten._scaled_dot_product_flash_attention_backward: 1,
    aten._scaled_dot_product_efficient_attention: 0, aten._scaled_dot_product_efficient_attention_backward: 1,
    aten._scaled_dot_product_cudnn_attention: 0, aten._scaled_dot_product_cudnn_attention_backward: 1,
}  # fmt: skip


def _with_equal_heads(args: Sequence[Any], query: int) -> Sequence[Any]:
    """Arguments of attention, with key and value as shapes that have as many heads as the query.

    Tensors are [batch, heads, length, size]. Grouped heads are read once for each head of the query. Torch 2.11 has no formula
    for them; later releases count the same.
    """
    heads = args[query].shape[1]
    key, value = ([x.shape[0], heads, *x.shape[2:]] for x in args[query + 1 : query + 3])
    return [*args[: query + 1], key, value, *args[query + 3 :]]


# The parameters of aten.convolution_backward that say how large it is, with their positions.
_CONVOLUTION_BACKWARD = {"grad_output": 0, "input": 1, "weight": 2, "transposed": 7, "output_mask": 10}


def _convolution_backward(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """FLOPs of the backward of a convolution: grad_input and grad_weight cost one forward each.

    For grad_weight torch's formula pairs all channels of x with all channels of grad_out, too many by the factor `groups`.
    """
    given = {name: kwargs[name] if name in kwargs else args[at] for name, at in _CONVOLUTION_BACKWARD.items()}
    grad_out, x, weight, transposed, output_mask = given.values()
    positions = prod((x if transposed else grad_out).shape[2:])
    # weight is [out, in / groups, *kernel], transposed [in, out / groups, *kernel]: its size has the groups in it
    forward = 2 * x.shape[0] * positions * prod(weight.shape)
    return forward * (bool(output_mask[0]) + bool(output_mask[1]))


class FlopCount(Instrument):
    """Counts the FLOPs of every operator that runs inside, forward and backward, on real or fake tensors, in `total`.

    >>> with FlopCount() as count:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 5)
    >>> count.total
    60
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self.total += op_flops(func, args, kwargs, out)
