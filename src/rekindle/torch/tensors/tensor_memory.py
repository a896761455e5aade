"""Which memory a tensor has while it is traced, and which tensors an op writes to."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..private import FunctionalTensor, OpOverload, from_functional_tensor, pytree, sync_functional_tensor


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
