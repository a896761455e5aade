"""Gradients that are added up from several uses of a parameter or input.

Autograd adds up what comes to a tensor in the order in which it comes. Where one backward goes through two calls, what the
second use in the first call gives is added to the sum of all before it, and not to what the first use gives: the sums of both
calls, added, would round otherwise. So such a gradient is handed over in parts where another call's came before.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import fx

from . import rules
from .captured import Captured

_TORCH_SAYS = "Gradient addition node"  # how torch's note on a node begins that adds up what came from several uses


def sums(c: Captured) -> dict[fx.Node, int]:
    """Placeholder -> the number of parts that its gradient is added up from, where there is more than one."""
    return {p: len(found) + 1 for p in c.gradients if (found := additions(c, p))}


def additions(c: Captured, placeholder: fx.Node) -> list[fx.Node]:
    """The nodes that add up the gradient of a placeholder, the last first; what they give goes nowhere else."""
    shared = Counter(c.gradients.values())
    found: list[fx.Node] = []
    node = c.gradients[placeholder]
    if shared[node] > 1:
        return []
    while _adds_up(node) and len(node.users) == 1:
        if node.target is torch.ops.aten.add.Tensor:
            found.append(node)
        node = node.args[0]  # type: ignore[assignment]
    return found


def _adds_up(node: fx.Node) -> bool:
    """Whether autograd added what came from two uses there, or the node is another name of such a sum."""
    if node.op != "call_function":
        return False
    if node.target in rules.PASS_THROUGH:
        return isinstance(node.args[0], fx.Node)
    return node.target is torch.ops.aten.add.Tensor and str(node.meta.get("stack_trace", "")).startswith(_TORCH_SAYS)


Parts = tuple[torch.Tensor, ...]


def join(so_far: torch.Tensor | Parts, part: torch.Tensor) -> Parts:
    """In the place of an addition: its parts, as copies, since later ops may write over what they lie in."""
    before = so_far if isinstance(so_far, tuple) else (so_far.clone(),)
    return (*before, part.clone())
