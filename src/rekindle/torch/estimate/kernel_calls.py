"""One kernel's call as far as its own memory depends on it: the operator, and what its tensors look like."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..operators.rules import UNWRITTEN, draws_random
from ..private import OpOverload
from ..tensors.op_tensors import storage_of, tensors_in


@dataclass(frozen=True)
class Like:
    """The shape, strides and type of a tensor. number : of the tensor in its call, the same wherever the tensor is passed."""

    number: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    layout = torch.strided
    device = torch.device("cpu")

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the elements, each counted once however often it lies in memory."""
        return self.numel() * self.dtype.itemsize


@dataclass(frozen=True)
class KernelCall:
    """A call whose kernel may take memory of its own while it runs.

    target : the operator. args, kwargs : with a `Like` in place of each tensor. tensors : these. roofline_s : seconds that it
    takes at least. most : bytes that its kernel takes at most, by all calls that were measured; see `SHARES`. plain : it is a
    convolution of images, of stride 1, neither grouped nor dilated, of 16 channels and more.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: tuple[Like, ...]
    roofline_s: float
    most: int
    plain: bool

    @property
    def key(self) -> str:
        """Text that equal calls share."""
        return f"{self.target}{self.args}{self.kwargs}"

    @property
    def usual(self) -> int:
        """Bytes that its kernel usually takes, where it cannot be run."""
        shares = _shares(self.target)
        return int(shares.usual * sum(t.bytes for t in self.tensors)) + _copied(self.target, self.args)


@dataclass(frozen=True)
class Shares:
    """The memory that kernels of one kind take beside inputs and results, as a share of the bytes of both.

    usual : the median over the calls that were measured. most : above every call that was measured.
    plain : the same for convolutions of images, of stride 1, that are neither grouped nor dilated, of 16 channels and more.
    weights : for grouped convolutions, bytes per byte of weights on top.
    """

    usual: float
    most: float
    plain: float | None = None
    weights: float = 0.0


# Measured by `benchmarks/kernel_memory.py` on one machine (AMD EPYC, two cores, torch 2.13), rounded up. Convolutions bring
# tensors into another layout.
SHARES = {
    "convolution_backward": Shares(0.54, 6.0, 1.0, 256.0),
    "convolution": Shares(0.8, 8.0, 1.2),
    "mkldnn_rnn_layer_backward": Shares(1.0, 4.0),
    "mkldnn_rnn_layer": Shares(1.5, 4.0),
    "native_batch_norm_backward": Shares(0.33, 1.0),
    "native_batch_norm": Shares(0.0, 0.1),
    "mm": Shares(0.0, 0.02),
    "addmm": Shares(0.0, 0.02),
    "bmm": Shares(0.0, 0.02),
    "baddbmm": Shares(0.0, 0.02),
}
OTHERS = Shares(0.0, 1.0)
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
# Kernels that copy, index or compute by element take nothing, but for a few of each.
_TAKE_NOTHING = {"copy_", "clone", "cat", "stack", "add_", "fill_", "zero_", "ones_like", "zeros_like", "_to_copy", "embedding",
                 "bernoulli_", "native_dropout", "index_select", "sum", "mean"}  # fmt: skip


@functools.cache
def _shares(op: Any) -> Shares:
    return SHARES.get(_name(op), OTHERS)


def _name(op: Any) -> str:
    return str(op._schema.name).split("::")[-1]


@functools.cache
def may_take_memory(op: Any) -> bool:
    """Whether kernels of the operator may take memory of their own."""
    if not isinstance(op, OpOverload) or op.namespace not in ("aten", "mkldnn") or op._overloadpacket in UNWRITTEN:
        return False
    by_element = torch.Tag.pointwise in op.tags
    view = bool(op._schema.returns) and all(r.alias_info is not None for r in op._schema.returns)
    return not by_element and not view and not draws_random(op) and _name(op) not in _TAKE_NOTHING


def kernel_call(
    op: Any, args: Any, kwargs: Any, out: Any, bytes_of: Callable[[Any], int | None], roofline_s: float
) -> KernelCall | None:
    """The description of a call; None: its arguments are more than tensors and plain values.

    bytes_of : the size of a storage that its tensor does not tell.
    """
    seen: dict[int, Like] = {}

    def like(t: torch.Tensor) -> Like:
        if id(t) not in seen:
            storage = storage_of(t)
            learned = None if storage is None else bytes_of(storage)
            shape, strides = tuple(map(int, t.shape)), tuple(map(int, t.stride()))
            if learned is not None:
                shape, strides = (learned // t.dtype.itemsize,), (1,)
            seen[id(t)] = Like(len(seen), shape, strides, t.dtype)
        return seen[id(t)]

    def described(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if x.layout is not torch.strided:
                raise TypeError
            return like(x)
        if isinstance(x, list | tuple):
            return type(x)(map(described, x)) if type(x) in (list, tuple) else x
        if isinstance(x, torch.Generator | torch.SymInt):
            raise TypeError
        return x

    try:
        given = tuple(map(described, args)), {k: described(x) for k, x in kwargs.items()}
        for t in tensors_in(out):
            described(t)
    except TypeError:
        return None
    tensors = tuple(seen.values())
    return KernelCall(op, *given, tensors, roofline_s, *_most(op, given[0], tensors))


CHANNELS_LEAST = 16  # of a plain convolution: kernels fill up fewer channels
# Position of (input, weights, stride) among the arguments, and of the tensors whose first dimension is the batch.
_CONVOLUTIONS = {"convolution": ((0, 1, 3), (0,)), "convolution_backward": ((1, 2, 4), (0, 1))}


def _copied(op: Any, args: tuple[Any, ...]) -> int:
    """Bytes of the matrices that a product copies first: they lie neither row by row nor column by column. The gradient of a
    sum is one of them: one number stands for all its elements."""
    if _name(op) not in _PRODUCTS:
        return 0
    copied = 0
    for t in (x for x in args[-2:] if isinstance(x, Like) and len(x.shape) > 1):
        (rows, columns), (down, right) = t.shape[-2:], t.strides[-2:]
        if not (right == 1 and down >= columns or down == 1 and right >= rows):
            copied += t.bytes
    return copied


def _most(op: Any, args: tuple[Any, ...], tensors: Sequence[Like]) -> tuple[int, bool]:
    """(bytes that the kernel takes at most, whether it is a plain convolution)."""
    shares, size = _shares(op), sum(t.bytes for t in tensors)
    if shares.plain is None:
        return int(shares.most * size) + _copied(op, args), False
    (x, w, stride), _ = _CONVOLUTIONS[_name(op)]
    strides, _, dilation, transposed = args[stride : stride + 4]
    grouped = args[stride + 5] != 1
    ones = len(strides) == 2 and all(n == 1 for n in (*strides, *dilation))
    if ones and not transposed and not grouped and min(args[x].shape[1], args[w].shape[0]) >= CHANNELS_LEAST:
        return int(shares.plain * size), True
    return int(shares.most * size + (shares.weights * args[w].bytes if grouped else 0)), False


def of_batch(call: KernelCall, batch: int) -> KernelCall | None:
    """The same convolution for a smaller batch; None: it is none, or its batch is not larger. The memory that a convolution
    takes is affine in its batch."""
    if _name(call.target) not in _CONVOLUTIONS:
        return None
    _, carriers = _CONVOLUTIONS[_name(call.target)]
    now = call.args[carriers[0]].shape[0]
    if now <= batch:
        return None
    args = list(call.args)
    for i in carriers:
        args[i] = replace(args[i], shape=(batch, *args[i].shape[1:]))
    size = call.roofline_s * batch / now
    return replace(call, args=tuple(args), tensors=tuple(x for x in args if isinstance(x, Like)), roofline_s=size)


def batch_of(call: KernelCall) -> int:
    """The batch of a convolution."""
    return int(call.args[_CONVOLUTIONS[_name(call.target)][1][0]].shape[0])
