"""Results and gradients as autograd may take them: in memory of their own, and gradients of several uses part by part.

Autograd adds up the gradients of a tensor in the order in which they arrive. If the tensor is also used outside the planned
module, or if one backward goes through two calls, a gradient that was added up inside the program would round differently. So
the program hands over the parts one by one, and autograd adds them up. A gradient of very many parts (of a cell that runs at
every time step, say) is added up inside, and is handed over in parts only if another call in the same backward has already
brought a gradient to the tensor.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from ...errors import RekindleError
from ..private import backward_number, is_in_use, users_of_memory, will_run


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


def refuse_ends(results: list[Any], inner: Mapping[int, Any], why: str) -> list[Any]:
    """The results, with an error for a backward that ends at one whose whole gradient comes to no node.

    inner : number of such a result -> the node of autograd that makes it. A node may make other results too; a view with a node
    of its own stands for each of them, so that a backward that ends at it is not taken for one that ends at `inner`."""
    came: dict[int, int] = {}  # one of `inner`, or -1 for the others -> the last backward that brought it a gradient
    nodes = {*inner.values()}
    for i, t in enumerate(results) if inner else ():
        if i in inner or isinstance(t, torch.Tensor) and t.grad_fn in nodes:
            results[i] = t if i in inner else t.view_as(t)
            at = weakref.ref(inner[i]) if i in inner else None  # weak: the node holds its hooks
            results[i].register_hook(functools.partial(_refuse_end, at, came, i if i in inner else -1, why))
            results[i]._backward_hooks = None  # autograd has ours; the user's alone are looks
    return results


def _refuse_end(at: Callable[[], Any] | None, came: dict[int, int], i: int, why: str, gradient: Any) -> None:
    """Raise the error, unless one of `inner` alone got a gradient: it is whole. at : the node of one of `inner`."""
    number = backward_number()
    if gradient is not None:
        came[i] = number
    now = {k for k, n in came.items() if n == number}
    if at is not None and (-1 in now or len(now) > 1) and _ends_at(at()):
        raise RekindleError(f"backward ends at a result, as autograd.grad(loss, result) does, {why}")


def _ends_at(node: Any) -> bool:
    try:
        return not any(will_run(n) for n, _ in node.next_functions if n is not None)
    except RuntimeError:  # torch does not say it of leaves in `autograd.grad`: one is asked for
        return False


def no_views(results: list[torch.Tensor], others: list[Any]) -> list[torch.Tensor]:
    """The results, with each view in place of which a tensor of its own may stand: autograd refuses to write in place to a view
    that a Function returns, and a linear layer's result is one.

    A view of memory that another result, an input or a saved tensor has too stays a view: writing to it must not go unseen.
    """
    held = Counter(map(_memory, [*results, *(t for t in others if isinstance(t, torch.Tensor))]))
    return [own(t) if t._is_view() and held[_memory(t)] == 1 else t for t in results]


def _memory(t: torch.Tensor) -> Any:
    return t.untyped_storage()._cdata if t.layout == torch.strided else id(t)


# -- gradients of several uses -----------------------------------------------------------------------------------------
# Gradients of fewer parts than this are handed over part by part. A guess; a part costs autograd about 20 microseconds
# (measured on a CPU).
PARTS_MOST = 8


def handed_over(found: dict[fx.Node, list[fx.Node]], runs: Iterable[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Additions whose parts are handed over to autograd -> the placeholder whose gradient it is.

    found : the result of `additions`. runs : the nodes that a schedule runs, in order.
    """
    often = Counter(runs)
    return {
        n: p for p, nodes in found.items() for n in nodes
        if len(nodes) < PARTS_MOST and all(often[x] == 1 for x in nodes)  # a part may be handed over only once
    }  # fmt: skip


def join(so_far: Any, part: Any) -> tuple[Any, ...]:
    """The parts of a sum, in place of the sum. They are copies, since later ops may write over the originals. A list is the
    part that comes through a cast, left apart by `each`."""
    before = so_far if isinstance(so_far, tuple) else (_copied(so_far),)
    return (*before, _copied(part))


def each(op: Callable[..., torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
    """An op for each part of a sum that was left apart."""
    return lambda parts, *args, **how: [op(x, *args, **how) for x in parts]


def _copied(part: Any) -> Any:
    return part if isinstance(part, list) else part.clone()
