"""Tensors of their own in place of views, of results and of gradients."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from ..private import is_in_use, users_of_memory


def own(t: torch.Tensor) -> torch.Tensor:
    """The tensor, or a tensor of its own in place of a view.

    Autograd adds a further part of a gradient to it in place only if nothing else refers to its memory, and a view refers to
    its base. A sum that is not made in place takes memory that no plan counts.
    """
    return t.new_empty(0).set_(t) if t._is_view() and not (t.is_conj() or t.is_neg()) else t  # type: ignore[call-overload]


def alone(given: list[torch.Tensor], strides: tuple[int, ...]) -> torch.Tensor:
    """The gradient that the list holds, which may be written over. In place of one that someone else holds too (a hook,
    `autograd.grad`), or that is laid out in another way, there is a copy."""
    shared = _references(given) > _ALONE or is_in_use(given[-1]) or users_of_memory(given[-1]) > 1
    t = given.pop()
    return t.new_empty_strided(t.shape, strides).copy_(t) if shared or t.stride() != strides else t


def _references(given: list[torch.Tensor]) -> int:
    return sys.getrefcount(given[-1])


_ALONE = _references([torch.empty(0)])


def is_looked_at(result: Callable[[], Any]) -> bool:
    """Whether somebody looks at the gradient of a result, by a hook or `retain_grad`. result : a weak reference."""
    return (t := result()) is not None and (t.retains_grad or bool(t._backward_hooks))


def no_views(results: list[torch.Tensor], others: list[Any]) -> list[torch.Tensor]:
    """The results, with each view in place of which a tensor of its own may stand: autograd refuses to write in place to a view
    that a Function returns, and a linear layer's result is one.

    A view of memory that another result, an input or a saved tensor has too stays a view: writing to it must not go unseen.
    """
    held = Counter(map(_memory, [*results, *(t for t in others if isinstance(t, torch.Tensor))]))
    return [own(t) if t._is_view() and held[_memory(t)] == 1 else t for t in results]


def _memory(t: torch.Tensor) -> Any:
    return t.untyped_storage()._cdata if t.layout == torch.strided else id(t)
