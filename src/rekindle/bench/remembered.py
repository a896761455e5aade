"""A cache of the results of operators on fake tensors.

The steps of a suite run the same operators on the same shapes dozens of times. torch has a cache for that too, but its key
covers every property of a tensor, which takes longer than the rest of the step. This cache covers only strided tensors of
floating-point type, and only operators whose results are all new tensors or the argument that they write to.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..torch.operators.node_tensors import elements_spanned
from ..torch.private import FakeTensor, FakeTensorMode, OpOverload, TorchDispatchMode, in_kernel_invocation_manager
from ..torch.tensors.instrument import WHICH_DEVICE
from ..torch.tensors.op_tensors import tensors_in

_OTHER_MEMORY = {torch.ops.aten.set_, torch.ops.aten.resize_, torch.ops.aten.resize_as_}
_PLAIN = (type(None), int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class _Result(NamedTuple):
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Remembered(TorchDispatchMode):
    """A context inside `fake`: an operator that has run on equal arguments gives equal results without running again."""

    supports_higher_order_operators = True

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()
        self.fake = fake
        # key of a call -> (type of its return value, or None for its first argument; results), or None for calls not cached
        self.known: dict[tuple[Any, ...], Any] = {}
        self.fit: dict[Any, bool] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is WHICH_DEVICE:
            return func(*args)
        kwargs = kwargs or {}
        key: list[Any] = [func]
        if not (self._may_be_known(func) and self._tell(args, key) and self._tell(kwargs.values(), key)):
            return func(*args, **kwargs)
        key += kwargs
        found = self.known.get(told := tuple(key), self)
        if found is None or found is self:
            out = func(*args, **kwargs)
            if found is self:
                self.known[told] = self._described(func, out, args, kwargs, key)
            return out
        kind, results = found
        if kind is None:
            return args[0]
        made = self._make(results)
        return made[0] if kind is FakeTensor else kind(made)

    def _may_be_known(self, func: Any) -> bool:
        """Whether the operator's schema has no views and no writes except to a first argument that it returns."""
        if func not in self.fit:
            plain = isinstance(func, OpOverload) and func.namespace == "aten"
            self.fit[func] = plain and func.overloadpacket not in _OTHER_MEMORY and _fits(func._schema)
        return self.fit[func]

    def _tell(self, args: Any, key: list[Any]) -> bool:
        """Extend the key by these arguments. Returns whether the key then covers all that an operator can know of them."""
        for a in args:
            kind = type(a)
            if kind is FakeTensor:
                if a.fake_mode is not self.fake or a.constant is not None or a.layout is not torch.strided:
                    return False
                if not a.dtype.is_floating_point:  # integers may be known by value
                    return False
                key += (a.shape, a.stride(), a.dtype, a.fake_device)
            elif kind in (list, tuple):
                key += (kind, len(a))
                if not self._tell(a, key):
                    return False
            elif kind in _PLAIN:
                key += (kind, a)
            else:
                return False
        return True

    def _make(self, results: tuple[_Result | None, ...]) -> list[FakeTensor | None]:
        with in_kernel_invocation_manager(self.fake):
            bare = [r and torch.empty_strided(r.shape, r.stride, dtype=r.dtype, device="meta") for r in results]
        return [r and FakeTensor(self.fake, t, r.device) for r, t in zip(results, bare, strict=True)]

    def _described(self, func: Any, out: Any, args: Any, kwargs: Any, key: list[Any]) -> Any:
        """A description from which to create such results again; None if they are not plain or share memory with arguments."""
        if func._schema.is_mutable:
            now: list[Any] = [func]
            same = out is args[0] and self._tell(args, now) and self._tell(kwargs.values(), now)
            return (None, ()) if same and [*now, *kwargs] == key else None
        kind = type(out)
        if kind is not FakeTensor and kind not in (tuple, list):
            return None
        storages = {t.untyped_storage()._cdata for t in tensors_in((args, kwargs))}
        results: list[_Result | None] = []
        for t in [out] if kind is FakeTensor else out:
            if t is None:
                results.append(None)
                continue
            if type(t) is not FakeTensor or t.constant is not None or t.layout is not torch.strided or t.requires_grad:
                return None
            storage = t.untyped_storage()
            span = elements_spanned(t)
            if storage._cdata in storages or t.storage_offset() or storage.nbytes() != span * t.dtype.itemsize:
                return None
            storages.add(storage._cdata)
            results.append(_Result(t.shape, t.stride(), t.dtype, t.fake_device))
        return kind, tuple(results)


def _fits(schema: Any) -> bool:
    """Whether the operator returns new tensors, or writes to its first argument and returns that argument alone."""
    aliases = [a.alias_info for a in (*schema.arguments, *schema.returns) if a.alias_info]
    if not aliases:
        return True
    first = schema.arguments[0].alias_info
    return (
        len(aliases) == 2 and len(schema.returns) == 1 and first is not None and first.is_write and aliases[1].is_write
    )
