"""The tensors of an operator call, and their storages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


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
    if t.layout is torch.sparse_coo:
        return [t._indices(), t._values()]
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [t.crow_indices(), t.col_indices(), t.values()]
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [t.ccol_indices(), t.row_indices(), t.values()]
    return [t]


def storage_of(t: torch.Tensor) -> Any:
    """The storage of a tensor; None for a tensor without one (sparse layouts)."""
    try:
        return t.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def storages_of(tensors: Iterable[torch.Tensor]) -> dict[int, Any]:
    """The distinct storages, by id. Tensors without a storage share the entry None."""
    return {id(s): s for s in map(storage_of, tensors)}
