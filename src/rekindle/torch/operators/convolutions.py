"""Convolutions, forward and backward: one record each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from .cut_call import SUM, Call, Draft, Slice, Slicing
from .record import Operator
from .strides import contiguous_if_open

_EXAMPLES_LEAST = 2  # convolutions of one example take another kernel
_SHARED_CHANNELS = 32  # two blocks of channels, as kernels take them


# -- cuts --------------------------------------------------------------------------------------------------------------
def _forward(call: Call) -> Iterator[Draft]:
    """By batch, output channel, input channel (a sum, where no bias is added), and groups.

    The weight is [out, in / groups, …], or [in, out / groups, …] of a transposed one.
    """
    if len(call.shape("input")) != len(call.shape("weight")):
        return  # one example without a batch
    yield Draft({"input": 0}, (0,))
    out, inside = (1, 0) if call["transposed"] else (0, 1)
    if call["groups"] > 1:
        yield Draft({"input": 1, "weight": 0, "bias": 0}, (1,), most=call["groups"])
        return
    yield Draft({"weight": out, "bias": 0}, (1,))
    if call["bias"] is None:
        yield Draft({"input": 1, "weight": inside}, (SUM,))


def _backward(call: Call) -> Iterator[Draft]:
    """Results: gradients of input, weight and bias. By input channel without the bias's, which each slice would make whole."""
    if len(call.shape("input")) != len(call.shape("weight")):
        return
    yield Draft({"grad_output": 0, "input": 0}, (0, SUM, SUM))
    out, inside = (1, 0) if call["transposed"] else (0, 1)
    if call["groups"] > 1:
        yield Draft({"grad_output": 1, "input": 1, "weight": 0}, (1, 0, 0), most=call["groups"])
        return
    yield Draft({"grad_output": 1, "weight": out}, (SUM, out, 0))
    if not call["output_mask"][2]:
        yield Draft({"input": 1, "weight": inside}, (1, inside, None))


def _fewer_groups(part: Slice) -> dict[str, Any]:
    """By channel, a grouped convolution has a share of the groups."""
    by_channel = part.ins["input"] == 1
    return {"groups": part.of(part.call["groups"])} if by_channel and part.call["groups"] > 1 else {}


def _fewer_groups_and_biases(part: Slice) -> dict[str, Any]:
    """The same, and by output channel a share of the bias."""
    if part.ins["grad_output"] != 1:
        return {}
    groups, biases = part.call["groups"], part.call["bias_sizes"]
    changed = {"groups": part.of(groups)} if groups > 1 else {}
    return changed if biases is None else {**changed, "bias_sizes": [part.of(n) for n in biases]}


# -- bits of slices ----------------------------------------------------------------------------------------------------
def _same_bits(q: Slicing) -> bool:
    """By batch, and by output channel; not of one example, and not of one element of every few."""
    if q.ins["input", 0] == 0:
        return q.least() >= _EXAMPLES_LEAST
    kernel, stride = q.call.shape("weight")[2:], q.call["stride"]
    return q.ins["input", 0] is None and (max(kernel) > 1 or max(stride) == 1)


def _same_bits_backward(q: Slicing) -> bool | None:
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


# -- FLOPs -------------------------------------------------------------------------------------------------------------
# The parameters of the backward op that say how large it is, with their positions.
_SIZES = {"grad_output": 0, "input": 1, "weight": 2, "transposed": 7, "output_mask": 10}


def _flops_of_backward(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """The gradients of input and weight cost one forward each.

    For the weight's, torch's formula pairs all channels of x with all channels of grad_out, too many by the factor `groups`.
    """
    given = {name: kwargs[name] if name in kwargs else args[at] for name, at in _SIZES.items()}
    grad_out, x, weight, transposed, output_mask = given.values()
    positions = prod((x if transposed else grad_out).shape[2:])
    # weight is [out, in / groups, *kernel], transposed [in, out / groups, *kernel]: its size has the groups in it
    forward = 2 * x.shape[0] * positions * prod(weight.shape)
    return forward * (bool(output_mask[0]) + bool(output_mask[1]))


OPERATORS = {
    "convolution": Operator(_forward, _fewer_groups, copies_gaps=True, same_bits=_same_bits),
    "convolution_backward": Operator(
        _backward,
        _fewer_groups_and_biases,
        copies_gaps=True,
        same_bits=_same_bits_backward,
        strides=contiguous_if_open(1),
        flops=_flops_of_backward,
    ),
}
