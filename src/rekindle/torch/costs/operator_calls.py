"""One operator call: its bytes, its FLOPs, its roofline, and a key that equal calls in captured graphs share; and instruments
that count the FLOPs of a step, or estimate its seconds on a named device.

FLOPs are counted by one function for captured graphs, executed programs and eager steps. A multiply-add counts two, and only
matrix products, convolutions and attention count, as in `torch.utils.flop_counter`. Torch's formulas are used wherever they are
right; records have the others.
"""

from __future__ import annotations

import functools
import logging
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils.flop_counter import flop_registry

from ..operators.memory_order import elements_spanned
from ..operators.rules import UNWRITTEN
from ..operators.table import OPERATORS
from ..private import HigherOrderOperator, OpOverload
from ..tensors import precision
from ..tensors.op_tensors import Instrument, storages_of, tensors_in
from . import devices

log = logging.getLogger(__name__)

aten = torch.ops.aten
_OURS = {getattr(aten, name.removeprefix("aten::")): op.flops for name, op in OPERATORS.items() if op.flops is not None}
_AS = {
    getattr(aten, name.removeprefix("aten::")): op.flops_as for name, op in OPERATORS.items() if op.flops_as is not None
}


def op_flops(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """FLOPs of one call of the operator overload `target`; its tensors (args, kwargs, out) may be real or fake.

    An operator without a formula (point-wise, normalisation, copies, …) counts 0.
    """
    packet = getattr(target, "_overloadpacket", target)
    packet = _AS.get(packet, packet)
    if packet in _OURS:
        return _OURS[packet](args, kwargs, out)
    formula = flop_registry.get(packet)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))


class FlopCount(Instrument):
    """Counts the FLOPs of every operator that runs inside, forward and backward, on real or fake tensors, in `total`, and these
    operators in `ops`.

    >>> with FlopCount() as count:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 5)
    >>> count.total
    60
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = self.ops = 0

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self.total += op_flops(func, args, kwargs, out)
        self.ops += 1


_PLAIN = (int, float, complex, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True, eq=False)
class OperatorCall:
    """One distinct operator call.

    key : everything that its cost depends on; None if its arguments are more than tensors and plain values.
    args, kwargs : with fake tensors. bytes_moved : bytes read and written. out_bytes : bytes written.
    roofline : estimated seconds.
    """

    key: str | None
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device
    flops: int
    bytes_moved: int
    out_bytes: int
    roofline: float


def call_of(node: Node, named: devices.Device | None) -> OperatorCall | None:
    """The operator call of a node; None for a node that costs nothing."""
    op = node.target
    if op is operator.getitem or not isinstance(op, OpOverload | HigherOrderOperator):
        return None
    args, kwargs = map_arg((node.args, node.kwargs), _value)
    out = node.meta.get("val")
    ins = {id(t): t for t in tensors_in((args, kwargs))}
    outs = tensors_in(out)
    if costs_nothing(op, ins.values(), outs):
        return None
    flops = flops_of(op, args, kwargs, out)
    out_bytes = sum(moved_bytes(t) for t in outs)
    moved = sum(moved_bytes(t) for t in ins.values()) + out_bytes
    every = [*ins.values(), *outs]
    device = next((t.device for t in every if t.device.type != "cpu"), torch.device("cpu"))
    estimate = roofline(op, flops, moved, every, named or devices.closest(device))
    key = _key(op, args, kwargs)
    return OperatorCall(key, op, args, kwargs, device, flops, moved, out_bytes, estimate)


def roofline(op: Any, flops: int, moved: int, tensors: Iterable[torch.Tensor], device: devices.Device) -> float:
    """Roofline seconds of a call of `op` on a device. The first floating-point or complex tensor sets the arithmetic type."""
    dtype = next((t.dtype for t in tensors if t.dtype.is_floating_point or t.dtype.is_complex), torch.float32)
    # torch's defaults: convolutions may use TF32, matrix products only if the user allows it
    setting = precision.of_convolutions() if _is_convolution(op) else precision.of_products()
    return devices.roofline(device, flops, moved, dtype, tf32=precision.rounds(setting))


@functools.cache
def _is_convolution(op: Any) -> bool:
    return "conv" in str(op)


def _value(node: Node) -> Any:
    if node.op == "get_attr" and "val" not in node.meta:
        return operator.attrgetter(str(node.target))(node.graph.owning_module)
    return node.meta["val"]


def moved_bytes(t: torch.Tensor) -> int:
    """Bytes that one read of t moves: of an expanded tensor, the bytes in memory."""
    return min(t.numel(), elements_spanned(t)) * t.dtype.itemsize


def costs_nothing(op: Any, ins: Iterable[torch.Tensor], outs: Sequence[torch.Tensor]) -> bool:
    """Whether the call runs no kernel, since it makes a view or allocates memory without writing to it."""
    return getattr(op, "_overloadpacket", op) in UNWRITTEN or _is_view(op, ins, outs)


def _is_view(op: Any, ins: Iterable[torch.Tensor], outs: Sequence[torch.Tensor]) -> bool:
    """Whether every result shares a storage with an input, and the op writes nothing."""
    if not outs or getattr(getattr(op, "_schema", None), "is_mutable", False):
        return False
    return storages_of(outs).keys() <= storages_of(ins).keys()


def flops_of(op: Any, args: Any, kwargs: Any, out: Any) -> int:
    """FLOPs of a call; 0, with a warning, if its formula fails."""
    try:
        return op_flops(op, args, kwargs, out)
    except Exception as e:  # torch's formula does not cover this use of the operator
        log.warning("FLOPs of %s counted as 0: %s", op, e)
        return 0


def _key(op: Any, args: Any, kwargs: Any) -> str | None:
    """The call as text, such as "aten.mul.Tensor(0:f32[8, 3]/[3, 1], 0)"; the same tensor has the same number.

    Fractions, such as a factor or a share to drop, are left out."""
    seen: dict[int, int] = {}

    def text(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            if id(x) in seen:
                return str(seen[id(x)])
            seen[id(x)] = len(seen)
            strides = list(x.stride()) if x.layout is torch.strided else x.layout
            return f"{seen[id(x)]}:{x.dtype}@{x.device.type}{list(x.shape)}/{strides}".replace("torch.", "")
        if isinstance(x, list | tuple):
            return f"[{', '.join(map(text, x))}]"
        if isinstance(x, float) and "pow" not in str(op):
            return "float"  # no other kernel depends on it, and calls that are alike get one cost
        if isinstance(x, _PLAIN):
            return repr(x)
        raise TypeError(type(x))

    try:
        parts = [text(x) for x in args] + [f"{k}={text(v)}" for k, v in kwargs.items()]
    except TypeError:  # submodules, generators, symbolic sizes, …
        return None
    return f"{op}({', '.join(parts)})"


# In a key: (number, dtype and device, sizes, strides) of a tensor, or a whole number.
_TENSOR_OR_NUMBER = re.compile(r"(\d+):(\w+@\w+)\[([^\]]*)\]/(\[[^\]]*\]|\w+)|\b\d+\b")
_LARGE = 16  # whole numbers above it are sizes: kernels, steps, paddings and dimensions seldom are as large. A guess


@functools.lru_cache(4096)
def kind_of(key: str) -> str:
    """The key with the sizes of its tensors left out: calls of one kind differ in sizes alone, and run the same kernel.

    Tensors keep their number of dimensions, type, device and order in memory, and the weight of a convolution the size of its
    kernel. Whole numbers are kept as far as they are small.
    """
    weight = ("2" if "backward" in key.partition("(")[0] else "1") if _is_convolution(key.partition("(")[0]) else ""

    def kind(m: re.Match[str]) -> str:
        number, what, sizes, strides = m.groups()
        if number is None:
            return m[0] if int(m[0]) <= _LARGE else "n"
        shape = [int(n) for n in sizes.split(", ") if n]
        kernel = shape[2:] if number == weight else ""
        order = _layout(shape, strides) if strides.startswith("[") else strides
        return f"{what}{len(shape)}{order}{kernel}"

    return _TENSOR_OR_NUMBER.sub(kind, key)


def _layout(shape: Sequence[int], strides: str) -> str:
    """How a tensor lies in memory, whatever its sizes. Dimensions of size 1 lie anywhere."""
    steps = [int(s) for s in strides[1:-1].split(", ") if s]
    dims = [d for d, n in enumerate(shape) if n > 1]
    order = sorted(dims, key=lambda d: -steps[d])
    last = [d for d in (0, *range(2, len(shape)), 1) if d in dims]
    gaps = 1 + sum((shape[d] - 1) * steps[d] for d in dims) != math.prod(shape)
    name = "" if order == dims else "last" if order == last else str(order)
    return f"{name}{' with gaps' if gaps else ''}"


def op_seconds(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, device: devices.Device) -> float:
    """Roofline seconds of one call of an operator overload; its tensors may be real or fake.

    The same figure as `node_costs` gives for a graph node with these arguments: 0 for views, for unwritten memory and for an
    operator that computes nothing (such as a query for a fake tensor's device).
    """
    if not isinstance(target, OpOverload | HigherOrderOperator) or target.namespace == "prim":
        return 0.0
    ins = {id(t): t for t in tensors_in((args, kwargs))}
    outs = tensors_in(out)
    if costs_nothing(target, ins.values(), outs):
        return 0.0
    every = [*ins.values(), *outs]
    moved = sum(map(moved_bytes, every))
    return roofline(target, flops_of(target, args, kwargs, out), moved, every, device)


class ModelledTime(Instrument):
    """Adds up the roofline seconds, on the device called `target`, of every operator that runs inside, in `total`.

    Forward and backward count, on real or fake tensors. Operators are assumed to run one after another.

    >>> with ModelledTime("h200") as time:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 5)
    >>> time.total > 0
    True

    Raises
    ------
    UsageError : no such device.
    """

    def __init__(self, target: str) -> None:
        super().__init__()
        self.device = devices.get(target)
        self.total = 0.0

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self.total += op_seconds(func, args, kwargs, out, self.device)
