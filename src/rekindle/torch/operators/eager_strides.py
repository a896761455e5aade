"""Strides of fake tensors as the CPU's kernels return them, for ops whose shape rules return other strides.

For example, a batch norm of transposed inputs returns a contiguous result. With the strides of torch's shape rule, the graph
would hold a view of it where eager makes a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..private import FakeTensor, FakeTensorMode, tree_flatten, tree_unflatten
from .strides import result_strides
from .table import by_overload

aten = torch.ops.aten

# Op -> the rule in its record.
STRIDES = by_overload("strides")

# Ops tagged as element-wise that keep the strides of their argument.
_KEEPS = {aten.clone.default, aten._to_copy.default}
_NUMBER = torch.empty(())  # a Python number, as a kernel sees it


@contextlib.contextmanager
def eager_strides(mode: FakeTensorMode) -> Iterator[None]:
    """Inside, ops with a rule in their record return fake tensors of `mode` with the CPU kernels' strides."""
    private: Any = mode
    cached, computed = private._cached_dispatch_impl, private._dispatch_impl
    before = {k: x for k, x in vars(mode).items() if k in ("_cached_dispatch_impl", "_dispatch_impl")}

    def compute(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out = computed(func, types, args, kwargs)
        return _laid_out(func, args, out) if func in STRIDES else out

    def look_up(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        # All modes of the process share the cache, and the other modes need the strides of torch's rules in it.
        out = (compute if func in STRIDES else cached)(func, types, args, kwargs)
        return _settled(func, args, out) if isinstance(out, FakeTensor) and 1 in out.shape else out

    private._dispatch_impl, private._cached_dispatch_impl = compute, look_up
    try:
        yield
    finally:
        del private._dispatch_impl, private._cached_dispatch_impl
        vars(mode).update(before)  # of a context around this one


def _laid_out(func: Any, args: Any, out: Any) -> Any:
    results, spec = tree_flatten(out)
    for i, t in enumerate(results):
        if isinstance(t, FakeTensor) and t.device.type == "cpu":
            strides = STRIDES[func](i, t, args)
            results[i] = t if t.stride() == strides else t.new_empty_strided(t.shape, strides)
    return tree_unflatten(results, spec)


def _settled(func: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
    """The result of an element-wise op with the kernel's strides, also in dimensions of size 1."""
    if torch.Tag.pointwise not in func.tags or func in _KEEPS or func in STRIDES or _gives_view(func):
        return out
    operands = [x for a in args for x in (a if isinstance(a, list | tuple) else [a]) if isinstance(x, torch.Tensor)]
    by_schema = zip(args, func._schema.arguments, strict=False)
    if func._overloadname.startswith("Scalar") or any(_stands_for_tensor(a, x) for a, x in by_schema):
        operands.append(_NUMBER)
    strides = result_strides(out.shape, operands)
    return out if out.stride() == strides else out.new_empty_strided(out.shape, strides)


def _stands_for_tensor(given: Any, argument: Any) -> bool:
    return isinstance(given, int | float | complex) and "Tensor" in str(argument.type)


def _gives_view(func: Any) -> bool:
    return any(r.alias_info is not None for r in func._schema.returns)
