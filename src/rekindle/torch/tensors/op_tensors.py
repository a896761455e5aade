"""The tensors of an operator call: their storages, the memory that they have while they are traced, which ones it writes to;
and instruments, which see every operator that runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..private import (
    FunctionalTensor,
    OpOverload,
    TorchDispatchMode,
    from_functional_tensor,
    pytree,
    sync_functional_tensor,
)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors among the arguments or results of an operator, in order, also those in lists, tuples and dicts.

    It runs at every operator, so it does not use torch's slower pytree.
    """
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    found = []
    for x in tree:
        if isinstance(x, torch.Tensor):
            found.append(x)
        elif isinstance(x, list | tuple | dict):
            found += tensors_in(x)
    return found


def dense_parts(t: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors of which a tensor is made: itself, or the indices and values of a sparse one."""
    return [*sparse_parts(t).values()] or [t]


def sparse_parts(t: torch.Tensor) -> dict[str, torch.Tensor]:
    """The indices and values of a sparse tensor, by name; nothing for a dense one."""
    if t.layout is torch.sparse_coo:
        return {"indices": t._indices(), "values": t._values()}
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return {k: getattr(t, k)() for k in ("crow_indices", "col_indices", "values")}
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return {k: getattr(t, k)() for k in ("ccol_indices", "row_indices", "values")}
    return {}


def storage_of(t: torch.Tensor) -> Any:
    """The storage of a tensor; None for a tensor without one (sparse layouts)."""
    try:
        return t.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def content_bytes(t: torch.Tensor) -> bytes:
    """The bytes of a tensor's elements, in order. It reads a copy: memory that `numpy()` has seen can never be resized."""
    copied = t.detach().resolve_conj().resolve_neg().to("cpu", copy=True)  # a GPU holds nothing twice
    return copied.contiguous().flatten().view(torch.uint8).numpy().tobytes() if t.numel() else b""


def storages_of(tensors: Iterable[torch.Tensor]) -> dict[int, Any]:
    """The distinct storages, by id. Tensors without a storage share the entry None."""
    return {id(s): s for s in map(storage_of, tensors)}


def memory_state(t: torch.Tensor) -> Any:
    """A state of the tensor's memory that changes or is forgotten with each write; None: writes cannot be noticed.

    A functional tensor has another inner tensor after each write to it or to an alias. Any other tensor is known by its
    storage, and the mode sees all writes to it; the weak reference keeps the storage's address from being reused, but not
    its bytes.
    """
    if isinstance(t, FunctionalTensor):
        sync_functional_tensor(t.elem)
        return from_functional_tensor(t.elem)
    return StorageWeakRef(t.untyped_storage()) if t.layout is torch.strided else None


def same_state(one: Any, two: Any) -> bool:
    return one is two or isinstance(one, StorageWeakRef) and isinstance(two, StorageWeakRef) and one == two


def written_by(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an op may write to; for a call that is no op, all its arguments."""
    if not isinstance(func, OpOverload):
        return [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if not func._schema.is_mutable:
        return []
    named = zip(func._schema.arguments, args, strict=False)
    given = [(a, x) for a, x in named] + [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]
    into = [x for a, x in given if a.alias_info is not None and a.alias_info.is_write]
    return [t for t in pytree.tree_leaves(into) if isinstance(t, torch.Tensor)]


# It only asks for a device and runs nothing. A step of a fake DenseNet asks 5,000 times.
WHICH_DEVICE = torch.ops.prim.device.default


class Instrument(TorchDispatchMode):
    """Context manager that calls `before` and `after` around every operator that runs inside, forward and backward."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is WHICH_DEVICE:
            return func(*args)
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented  # a wrapper (DTensor, …): the operators that it runs on its inner tensors come here later
        if torch.is_inference_mode_enabled() and isinstance(func, OpOverload):
            with self:  # inference mode passes composite operators whole: decompose them as every other mode does
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        self.before(func, args, kwargs)
        out = func(*args, **kwargs)
        self.after(func, args, kwargs, out)
        return out

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        """Called before `func` runs."""

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Called after `func` has run and returned `out`."""


class Together(Instrument):
    """Several instruments on one step, so that each operator is dispatched once for all of them."""

    def __init__(self, *instruments: Instrument) -> None:
        super().__init__()
        self.instruments = instruments

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        for one in self.instruments:
            one.before(func, args, kwargs)

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        for one in self.instruments:
            one.after(func, args, kwargs, out)
