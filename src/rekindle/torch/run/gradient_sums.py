"""Gradients that are added up from several uses of a parameter or input.

Autograd adds up the gradients of a tensor in the order in which they arrive. If the tensor is also used outside the planned
module, or if one backward goes through two calls, a gradient that was added up inside the program would round differently. So
the program hands over the parts one by one, and autograd adds them up. A gradient of very many parts (of a cell that runs at
every time step, say) is added up inside, and is handed over in parts only if another call in the same backward has already
brought a gradient to the tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..capture import rules
from ..capture.captured import Captured


@dataclass(frozen=True)
class GradientSumsSettings:
    """When a gradient is handed over in parts.

    parts_most : gradients of fewer parts than this are handed over part by part. A guess; a part costs autograd about
        20 microseconds (measured on a CPU).
    """

    parts_most: int = 8


SETTINGS = GradientSumsSettings()
_TORCH_SAYS = "Gradient addition node"  # how torch's note begins on a node that adds up gradients from several uses


def additions(c: Captured) -> dict[fx.Node, list[fx.Node]]:
    """Placeholder -> the nodes that add up its gradient from several uses, the last first. Others are left out."""
    shared = Counter(c.gradients.values())
    found = {}
    for p, gradient in c.gradients.items():
        nodes: list[fx.Node] = []
        # A gradient that is shared with another tensor (one made from this one) was added up there: it is one part here.
        most = _uses(p) - 1 if shared[gradient] == 1 else 0
        node = gradient
        while len(nodes) < most and len(node.users) == 1 and _adds_up(node := unaliased(node)) and len(node.users) == 1:
            nodes.append(node)
            node = node.args[0]  # type: ignore[assignment]
        if nodes:
            found[p] = nodes
    return found


def handed_over(found: dict[fx.Node, list[fx.Node]], runs: Iterable[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Additions whose parts are handed over to autograd -> the placeholder whose gradient it is.

    found : the result of `additions`. runs : the nodes that a schedule runs, in order.
    """
    often = Counter(runs)
    return {
        n: p for p, nodes in found.items() for n in nodes
        if len(nodes) < SETTINGS.parts_most and all(often[x] == 1 for x in nodes)  # a part may be handed over only once
    }  # fmt: skip


def unaliased(node: Any) -> Any:
    """The node that makes the tensor which this node only renames."""
    while isinstance(node, fx.Node) and node.op == "call_function" and node.target in rules.PASS_THROUGH:
        node = node.args[0]
    return node


def _uses(node: fx.Node) -> int:
    """How often forward reads a tensor, itself or through its views; equal views have been merged."""
    readers = [u for u in node.users if u.op == "call_function" and not u.meta.get("autograd_backward")]
    return sum(_leaves(u).count(node) * (max(1, _uses(u)) if _is_view(u) else 1) for u in readers)


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def _leaves(node: fx.Node) -> list[Any]:
    leaves: list[Any] = []
    fx.node.map_arg((node.args, node.kwargs), leaves.append)
    return leaves


def _adds_up(node: fx.Node) -> bool:
    """Whether this node is autograd's sum of the gradients of two uses."""
    return node.target is torch.ops.aten.add.Tensor and str(node.meta.get("stack_trace", "")).startswith(_TORCH_SAYS)


Parts = tuple[torch.Tensor, ...]


def join(so_far: torch.Tensor | Parts, part: torch.Tensor) -> Parts:
    """The parts of a sum, in place of the sum. They are copies, since later ops may write over the originals."""
    before = so_far if isinstance(so_far, tuple) else (so_far.clone(),)
    return (*before, part.clone())
