"""Results of a planned forward, as autograd may have them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch


def no_views(results: list[torch.Tensor], others: list[Any]) -> list[torch.Tensor]:
    """The results, with each view in place of which a tensor of its own may stand: autograd refuses to write in place to a view
    that a Function returns, and a linear layer's result is one.

    A view of memory that another result, an input or a saved tensor has too stays a view: writing to it must not go unseen.
    """
    held = Counter(map(_memory, [*results, *(t for t in others if isinstance(t, torch.Tensor))]))
    alone = [
        t._is_view() and held[_memory(t)] == 1 and not (t.is_conj() or t.is_neg()) for t in results
    ]  # fmt: skip
    return [t.new_empty(0).set_(t) if a else t for t, a in zip(results, alone, strict=True)]  # type: ignore[call-overload]


def _memory(t: torch.Tensor) -> Any:
    return t.untyped_storage()._cdata if t.layout == torch.strided else id(t)


def nothing() -> None:
    """Stands for a tensor that is gone, or whose versions nobody counts."""
