"""Gradients that are added up from several uses of a parameter or input.

Autograd adds up the gradients of a tensor in the order in which they arrive. If the tensor is also used outside the planned
module, or if one backward goes through two calls, a gradient that was added up inside the program would round differently. So
the program hands over the parts one by one, and autograd adds them up. A gradient of very many parts (of a cell that runs at
every time step, say) is added up inside, and is handed over in parts only if another call in the same backward has already
brought a gradient to the tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

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


Parts = tuple[Any, ...]


def join(so_far: Any, part: Any) -> Parts:
    """The parts of a sum, in place of the sum. They are copies, since later ops may write over the originals. A list is the
    part that comes through a cast, left apart by `each`."""
    before = so_far if isinstance(so_far, tuple) else (_copied(so_far),)
    return (*before, _copied(part))


def each(op: Callable[..., torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
    """An op for each part of a sum that was left apart."""
    return lambda parts, *args, **how: [op(x, *args, **how) for x in parts]


def _copied(part: Any) -> Any:
    return part if isinstance(part, list) else part.clone()
