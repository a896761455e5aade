"""Makes tracing use the kernels and memory layouts that eager uses, since other kernels and layouts round differently; and lets
forward write to tensors that torch takes for constants, as eager does."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ..operators import hidden_writes, random_in_place
from ..private import (
    DispatchKey,
    FakeTensor,
    FunctionalTensor,
    OpOverload,
    TorchDispatchMode,
    all_op_names,
    dispatch_key_is_excluded,
    from_functional_tensor,
    pytree,
    tree_map_only,
)

# Composite ops that torch replaces by Python versions while tracing. These round differently from the C++ versions that
# eager calls: other kernels, another order of additions.
_STOOD_IN = ("matmul", "lstm", "gru", "rnn_tanh", "rnn_relu", "upsample_", "_upsample_", "hardshrink", "softshrink",
             "multi_margin_loss", "multilabel_margin_loss_forward")  # fmt: skip
_COMPOSITE = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


@contextlib.contextmanager
def eager_composites(cudnn: bool) -> Iterator[None]:
    """Inside, composite ops decompose as in eager. cudnn : cuDNN's batch norm stays one op."""
    dropout: Any = torch.ops.aten.dropout.default
    ops: list[Any] = [dropout, *([hidden_writes.BATCH_NORM] if cudnn else [])]
    ops += _stood_in()
    before = [(op, k, op.py_kernels[k]) for op in ops for k in _COMPOSITE if k in op.py_kernels]
    fused = dropout.py_kernels.get(_COMPOSITE[0])

    def as_eager(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        # Eager has no fused dropout on the CPU. The fused op saves its mask as bytes, and gives the same bits if it scales by
        # the same number. Eager never uses it for p = 0 or 1: it returns the input itself, or zeros.
        if fused is None or not train or p in (0, 1) or x.device.type == "cpu" and not _same_scale(x.dtype, p):
            return dropout._op_dk(_COMPOSITE[1], x, p, train)
        return fused(x, p, train)

    for op, k, _ in before:
        del op.py_kernels[k]
    dropout.py_kernels |= dict.fromkeys(_COMPOSITE, as_eager)
    for op in ops:
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for k in _COMPOSITE:
            dropout.py_kernels.pop(k, None)
        for op, k, kernel in before:
            op.py_kernels[k] = kernel
        for op in ops:
            op._dispatch_cache.clear()


@functools.cache  # there are thousands of names, and torch's own do not change
def _stood_in() -> list[Any]:
    names = [n.removeprefix("aten::").partition(".") for n in all_op_names()]
    found = [(packet, overload) for packet, _, overload in names if packet.startswith(_STOOD_IN)]
    return [getattr(getattr(torch.ops.aten, packet), overload or "default") for packet, overload in found]


def _same_scale(dtype: torch.dtype, p: float) -> bool:
    """Whether eager's dropout and the fused one scale by the same number.

    Eager divides by 1 - p in the precision of its mask; the fused op multiplies by the quotient in double precision. In single
    precision they differ for about one rate in ten.
    """
    kept = 1 - p
    return dtype == torch.float64 or dtype == torch.float32 and np.float32(1) / np.float32(kept) == np.float32(1 / kept)


# Ops that compute every element by itself and round it exactly: their bits do not depend on the memory layout.
_EXACT = {"add", "sub", "rsub", "mul", "div", "neg", "abs", "relu", "clone", "copy", "zero", "fill", "where", "lerp",
          "masked_fill", "eq", "ne", "gt", "ge", "lt", "le", "maximum", "minimum", "clamp", "_to_copy",
          "threshold"}  # fmt: skip


class EagerLayout(TorchDispatchMode):
    """A dispatch mode in which kernels see their inputs laid out as in eager.

    In eager an op that works in place on a part of a tensor leaves it where it is. Captured, its result is a new tensor without
    gaps, and sums or exponentials of it round differently.

    declares_writes : whether hidden writes are made plain; see `hidden_writes.declared`.
    """

    supports_higher_order_operators = True

    def __init__(self, declares_writes: bool) -> None:
        super().__init__()
        self.declares_writes = declares_writes
        self.unseen = 0  # calls of kernels with hidden writes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if hidden_writes.writes(func, args):
            self.unseen += 1
            if self.declares_writes:
                return hidden_writes.declared(*args)
        if random_in_place.draws_otherwise(func, args, kwargs):
            return _draw(func, *args)
        name = func._schema.name.split("::")[-1] if isinstance(func, OpOverload) else ""
        if not name or name.rstrip("_") in _EXACT or not any(map(_has_moved, args)):
            return func(*args, **kwargs)
        if func._schema.returns and all(r.alias_info is not None for r in func._schema.returns):
            if not (name.endswith("_") and _has_moved(args[0])):  # a view, or an op in place on another tensor
                return func(*args, **kwargs)
            func(inside := _as_before(args[0]), *map(_as_before, args[1:]), **kwargs)
            return args[0].copy_(inside)
        return func(*map(_as_before, args), **kwargs)


def _draw(func: Any, x: Any, *numbers: float) -> Any:
    """Run a random op in place, with the numbers that it draws on eager's strides."""
    like = x.new_empty_strided(x.shape, x.stride()) if _has_moved(x) else x
    drawn: Any = random_in_place.OUT_OF_PLACE[func](like, *numbers)
    x.replace_(from_functional_tensor(drawn.elem))  # as torch does for its own ops in place
    x.commit_update()
    x.sync()
    return x


def _has_moved(t: Any) -> bool:
    """Whether a functional tensor and the eager tensor that it stands for have different strides."""
    return isinstance(t, FunctionalTensor) and t.stride() != from_functional_tensor(t.elem).stride() and t.numel() > 1


def _as_before(t: Any) -> Any:
    return t.new_empty_strided(t.shape, t.stride()).copy_(t) if _has_moved(t) else t


def _autocast_is_on() -> dict[str, bool]:
    return {kind: torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")}


@contextlib.contextmanager
def one_cast_each(tensors: dict[Any, torch.Tensor], once: dict[Any, bool]) -> Iterator[dict[Any, bool]]:
    """Inside, autocast casts tensors once, however often they are used, as in eager. once : name -> whether it does so.

    Their gradients are then added in the lower precision. Autocast's own cache is off while tracing, and traced parameters are
    no leaves for it. Gives those of `once` that were cast.
    """
    to_copy: Any = torch.ops.aten._to_copy.default
    keys = DispatchKey
    known = {id(tensors[k]): (k, tensors[k]) for k in once}
    found: dict[Any, bool] = {}
    made: dict[Any, torch.Tensor] = {}
    clear, switch, here = torch.clear_autocast_cache, torch.set_autocast_enabled, threading.get_ident()
    on = _autocast_is_on()  # inside an op that it casts for, it counts as off
    before = to_copy.py_kernels.get(keys.Autograd)  # of a context around this one

    def listen(on: bool) -> None:
        to_copy.py_kernels.pop(keys.Autograd, None)
        if kernel := cast if on else before:
            to_copy.py_kernels[keys.Autograd] = kernel
        to_copy._dispatch_cache.clear()

    def cast(x: torch.Tensor, **how: Any) -> torch.Tensor:
        kind = "cuda" if x.device.type == "cuda" else "cpu"
        # Autocast's own cast, not the user's: of an op that runs while autocast is on, below the key at which it casts.
        own = on[kind] and dispatch_key_is_excluded(keys.AutocastCUDA if kind == "cuda" else keys.AutocastCPU)
        shared = False
        if own and id(x) in known and x.dtype == torch.float32:
            name, _ = known[id(x)]
            shared = found[name] = once[name]
        key = (id(x), how.get("dtype"), torch.is_grad_enabled())
        if shared and key in made:
            return made[key]
        listen(False)
        try:
            out: torch.Tensor = to_copy(x, **how)
        finally:
            listen(True)
        if shared:
            made[key] = out
        return out

    def clear_both() -> None:
        if threading.get_ident() == here:  # other threads leave autocast too
            made.clear()
        clear()

    def switch_both(*args: Any) -> None:
        switch(*args)
        if threading.get_ident() == here:
            on.update(_autocast_is_on())

    listen(True)
    torch.clear_autocast_cache = clear_both
    torch.set_autocast_enabled = switch_both  # type: ignore[assignment]
    try:
        yield found
    finally:
        torch.clear_autocast_cache, torch.set_autocast_enabled = clear, switch
        listen(False)
        made.clear()
        known.clear()


class OfConstants(TorchDispatchMode):
    """A dispatch mode in which torch sees writes to results of constants alone, such as a 4-bit state that is dequantised."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        plain = isinstance(func, OpOverload) and not any(r.alias_info for r in func._schema.returns)
        return tree_map_only(FakeTensor, FunctionalTensor.to_functional, made) if plain else made


OUTSIDE = "_rekindle_outside_"  # of the names of buffers that stand for tensors of no module


class InTheirPlace(TorchFunctionMode):
    """Inside, operators work on stand-ins. outside : id of a tensor -> (the tensor, its stand-in).

    Torch traces a tensor that stands in no module, but in a global, a closure or an object of the user's, as a constant, to
    which nothing can be written. So a buffer of the model stands for it while the step is captured, and planned steps write to
    the tensor itself, as they do to buffers.
    """

    def __init__(self, outside: Mapping[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._outside = outside
        self._back = {id(stand): t for t, stand in outside.values()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def stand(x: Any) -> Any:
            return self._outside[id(x)][1] if id(x) in self._outside else x

        args, kwargs = pytree.tree_map(stand, (args, kwargs or {}))
        out = func(*args, **kwargs)
        return self._back.get(id(out), out)  # `d["n"] += 1` puts the result into the dict
