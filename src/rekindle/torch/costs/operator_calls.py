"""One call of an operator in a captured graph: what it moves, what tells it from others, and a run of it on made-up tensors."""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from ..capture.rules import UNWRITTEN, runnable
from . import devices
from .flops import op_flops
from .memory import storage_of, tensors_in

log = logging.getLogger(__name__)
_PLAIN = (int, float, complex, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True, eq=False)
class OperatorCall:
    """One distinct operator call.

    key : all its cost depends on; None where its arguments are more than tensors and plain values.
    args, kwargs : with fake tensors. bytes_moved, out_bytes : read and written, and written only.
    roofline : seconds.
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
    """The call of a node; None where it costs nothing."""
    op = node.target
    if op is operator.getitem or not isinstance(op, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
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
    """Seconds of a call of `op` on a device, by the type of the first of its tensors that has a floating-point one."""
    dtype = next((t.dtype for t in tensors if t.dtype.is_floating_point or t.dtype.is_complex), torch.float32)
    # torch's defaults: convolutions may use TF32, matrix products only where the user allows it
    tf32 = _is_convolution(op) or torch.get_float32_matmul_precision() != "highest"
    return devices.roofline(device, flops, moved, dtype, tf32=tf32)


@functools.cache
def _is_convolution(op: Any) -> bool:
    return "conv" in str(op)


def as_call(node: Node) -> tuple[str | None, Callable[[], Any]]:
    """What the node calls, as text, and a function that runs it on made-up inputs, leaving no trace."""
    call = call_of(node, None)
    if call is None:
        raise TypeError(f"{node} computes nothing")

    def run() -> Any:
        if not at_hand(call.device):
            raise RuntimeError(f"no {call.device} here")
        with undisturbed([call]):
            args, kwargs = real_arguments(call)
            return runnable(call.target)(*args, **kwargs)

    return call.key, run


def _value(node: Node) -> Any:
    if node.op == "get_attr" and "val" not in node.meta:
        return operator.attrgetter(str(node.target))(node.graph.owning_module)
    return node.meta["val"]


def moved_bytes(t: torch.Tensor) -> int:
    """Bytes that reading t once moves: an expanded tensor's own, not those it shows."""
    return min(t.numel(), _span(t)) * t.dtype.itemsize


def _span(t: torch.Tensor) -> int:
    """Elements from the first to the last in memory."""
    if t.layout is not torch.strided:
        return int(t.numel())
    return 1 + sum((int(n) - 1) * int(s) for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0


def costs_nothing(op: Any, ins: Iterable[torch.Tensor], outs: Sequence[torch.Tensor]) -> bool:
    """Whether no kernel runs: a view, or memory that nobody writes to."""
    return getattr(op, "_overloadpacket", op) in UNWRITTEN or _is_view(op, ins, outs)


def _is_view(op: Any, ins: Iterable[torch.Tensor], outs: Sequence[torch.Tensor]) -> bool:
    """No result has a storage of its own, and nothing is written."""
    if not outs or getattr(getattr(op, "_schema", None), "is_mutable", False):
        return False
    return storages_of(outs).keys() <= storages_of(ins).keys()


def storages_of(tensors: Iterable[torch.Tensor]) -> dict[int, Any]:
    """The distinct storages, by id (None counts as one: a tensor without)."""
    return {id(s): s for s in map(storage_of, tensors)}


def flops_of(op: Any, args: Any, kwargs: Any, out: Any) -> int:
    """FLOPs of a call; 0, with a warning, where its formula fails."""
    try:
        return op_flops(op, args, kwargs, out)
    except Exception as e:  # a formula of torch's that does not know this use of the operator
        log.warning("FLOPs of %s counted as 0: %s", op, e)
        return 0


def _key(op: Any, args: Any, kwargs: Any) -> str | None:
    """The call as text, such as "aten.mul.Tensor(0:f32[8, 3]/[3, 1], 0)"; the same tensor bears the same number."""
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
        if isinstance(x, _PLAIN):
            return repr(x)
        raise TypeError(type(x))

    try:
        parts = [text(x) for x in args] + [f"{k}={text(v)}" for k, v in kwargs.items()]
    except TypeError:  # submodules, generators, symbolic sizes, …
        return None
    return f"{op}({', '.join(parts)})"


def at_hand(device: torch.device) -> bool:
    """Whether operators can be run on it here."""
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    return device.type == "cpu"


@contextmanager
def undisturbed(calls: Sequence[OperatorCall]) -> Iterator[None]:
    """Plain kernels, whatever the caller has switched on; and the caller's random state as it was."""
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        cuda = {c.device.index or 0 for c in calls if c.device.type == "cuda"}
        stack.enter_context(torch.random.fork_rng(devices=sorted(cuda)))
        stack.enter_context(torch.no_grad())
        for device_type in {"cpu"} | {c.device.type for c in calls}:
            stack.enter_context(torch.autocast(device_type, enabled=False))
        yield


def real_arguments(call: OperatorCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments with real tensors: one for each fake one, however often it is passed."""
    made: dict[int, torch.Tensor] = {}

    def make(t: torch.Tensor) -> torch.Tensor:
        if id(t) not in made:
            made[id(t)] = made_up(t)
        return made[id(t)]

    return tree_map_only(torch.Tensor, make, (call.args, call.kwargs))


def made_up(t: torch.Tensor) -> torch.Tensor:
    """A tensor like t: floats 0.5 (nothing overflows or becomes denormal), ints 0 (valid as indices), bools True."""
    if t.layout is not torch.strided:
        raise TypeError(f"layout {t.layout}")
    value = 0.5 if t.dtype.is_floating_point or t.dtype.is_complex else t.dtype == torch.bool
    return torch.full((_span(t),), value, dtype=t.dtype, device=t.device).as_strided(t.shape, t.stride())


def new_bytes(out: Any, inputs: Any) -> int:
    """Bytes of the storages that the results hold and the inputs do not."""
    old = storages_of(tensors_in(inputs))
    return sum(s.nbytes() for key, s in storages_of(tensors_in(out)).items() if s is not None and key not in old)
