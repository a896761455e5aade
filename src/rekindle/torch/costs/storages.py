"""STORAGES"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors among an operator's arguments or results, in order; lists, tuples and dicts are looked into. Asked at every
    operator that runs, hence not torch's pytree."""
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


def storage_of(t: torch.Tensor) -> Any:
    """The storage of a tensor, or None where it has none (sparse layouts)."""
    try:
        return t.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def storages_of(tensors: Iterable[torch.Tensor]) -> dict[int, Any]:
    """The distinct storages, by id (None counts as one: a tensor without)."""
    return {id(s): s for s in map(storage_of, tensors)}
