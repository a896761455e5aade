"""Gradients that are added up from several uses of a parameter or input.

Autograd adds up what comes to a tensor in the order in which it comes. Where the tensor is used outside of the planned module
too, or one backward goes through two calls, a gradient that was added up inside would round otherwise. So its parts are handed
over one by one, and autograd adds them up. A gradient of very many parts, as that of a cell that runs at each time step, is
added up inside, and handed over in parts only where another call of the same backward has brought a gradient to its tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from ..capture import rules
from ..capture.captured import Captured

MOST_PARTS = 8  # that are handed over one by one; each takes autograd about 20 microseconds
_TORCH_SAYS = "Gradient addition node"  # how torch's note on a node begins that adds up what came from several uses


def additions(c: Captured) -> dict[fx.Node, list[fx.Node]]:
    """Placeholder -> the nodes that add up its gradient from several uses, the last first; where there are any."""
    shared = Counter(c.gradients.values())
    found = {}
    for p, gradient in c.gradients.items():
        nodes: list[fx.Node] = []
        # A gradient that passes on what was added up for another tensor, made from this one, is one part.
        most = _uses(p) - 1 if shared[gradient] == 1 else 0
        node = gradient
        while len(nodes) < most and len(node.users) == 1 and _adds_up(node := unaliased(node)) and len(node.users) == 1:
            nodes.append(node)
            node = node.args[0]  # type: ignore[assignment]
        if nodes:
            found[p] = nodes
    return found


def handed_over(found: dict[fx.Node, list[fx.Node]], runs: Iterable[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Addition -> the placeholder to whose gradient it leads, where its parts are handed over instead.

    found : what `additions` gave. runs : the nodes that a schedule runs, in order.
    """
    often = Counter(runs)
    return {
        n: p for p, nodes in found.items() for n in nodes
        if len(nodes) < MOST_PARTS and all(often[x] == 1 for x in nodes)  # what runs twice is not handed over twice
    }  # fmt: skip


def unaliased(node: Any) -> Any:
    """The node that makes the tensor which this node only renames."""
    while isinstance(node, fx.Node) and node.op == "call_function" and node.target in rules.PASS_THROUGH:
        node = node.args[0]
    return node


def _uses(node: fx.Node) -> int:
    """How often forward reads a tensor, itself or through views of it; equal views were made one."""
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
    """Whether autograd added there what came from two uses."""
    return node.target is torch.ops.aten.add.Tensor and str(node.meta.get("stack_trace", "")).startswith(_TORCH_SAYS)


Parts = tuple[torch.Tensor, ...]


def join(so_far: torch.Tensor | Parts, part: torch.Tensor) -> Parts:
    """In the place of an addition: its parts, as copies, since later ops may write over what they lie in."""
    before = so_far if isinstance(so_far, tuple) else (so_far.clone(),)
    return (*before, part.clone())
