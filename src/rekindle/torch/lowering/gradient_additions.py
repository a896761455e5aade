"""Additions by which a captured step adds up the gradients of several uses of one tensor."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import fx

from ..capture.captured import Captured
from ..operators import rules

SLICE = "rekindle_slice"  # a mark of ops of a region that runs in slices
_PUT_TOGETHER = (torch.ops.aten.cat.default, torch.ops.aten.slice_scatter.default)  # as `rewrite.slices` does it
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


def additions_of_results(c: Captured) -> dict[fx.Node, list[fx.Node]]:
    """Whole gradient of an inner result (`Captured.inner`) -> the nodes that add it up from several uses, the last first. Where
    a gradient may come back from the loss, it is the first part. Left out are gradients of which that cannot be told."""
    from_loss = {i: t for t, i in c.tangents.items()}
    found = {}
    for gradient, (output, uses) in c.inner.items():
        nodes: list[fx.Node] = []
        node, first = unaliased(gradient), from_loss.get(output)
        while node is not first and _adds_up(node) and len(nodes) < uses - (first is None):
            if len(node.users) > 1 and node is not gradient:
                break
            nodes.append(node)
            node = unaliased(node.args[0])
        if node is first or first is None:
            found[gradient] = nodes
    return found


class Cast(NamedTuple):
    """The cast of a leaf that autocast makes once for all uses.

    part : number of the part of the leaf's gradient, in the order in which `additions` add them up, that comes through it.
    node : makes that part of the cast's own gradient, or a slice of it.
    adds : the nodes that add up the cast's gradient, if several ops read the cast.
    """

    part: int
    dtype: torch.dtype
    node: fx.Node
    adds: tuple[fx.Node, ...]

    @property
    def uses(self) -> int:
        """How many parts the cast's own gradient has."""
        return len(self.adds) + 1


def casts(c: Captured) -> dict[fx.Node, Cast]:
    """Placeholder -> its cast by autocast, of those whose gradient comes through it in one part that can be told."""
    sums, shared, found = additions(c), Counter(c.gradients.values()), {}
    for p, gradient in c.gradients.items():
        name = c.params.get(p, c.inputs.get(p))
        if name is None or not c.cast.get(name) or shared[gradient] > 1:
            continue
        adds = sums.get(p, [])
        parts = [
            unaliased(x) for x in ([adds[-1].args[0], *(n.args[1] for n in reversed(adds))] if adds else [gradient])
        ]
        through = [(i, x) for i, x in enumerate(map(_whole, parts)) if x.target is torch.ops.aten._to_copy.default]
        if len(through) == 1:
            part, node = through[0]
            inner = [unaliased(node.args[0])]
            while _adds_up(inner[-1]):
                inner.append(unaliased(inner[-1].args[0]))
            found[p] = Cast(part, node.args[0].meta["val"].dtype, node, tuple(inner[:-1]))
    return found


def unaliased(node: Any) -> Any:
    """The node that makes the tensor which this node only renames."""
    while isinstance(node, fx.Node) and node.op == "call_function" and node.target in rules.PASS_THROUGH:
        node = node.args[0]
    return node


def _whole(node: Any) -> Any:
    """A node that makes a slice of the tensor, where it is put together of slices; else the node itself."""
    if isinstance(node, fx.Node) and SLICE in node.meta and node.target in _PUT_TOGETHER:
        node = node.args[0][0] if node.target is torch.ops.aten.cat.default else node.args[1]  # type: ignore[index]
    return unaliased(node)


def _uses(node: fx.Node) -> int:
    """How often eager's forward reads a tensor, itself or through its views; equal ops have been merged."""
    readers = [u for u in node.users if u.op == "call_function" and not u.meta.get("autograd_backward")]
    return sum(_leaves(u).count(node) * (max(1, _uses(u)) if _is_view(u) else u.meta.get("merged", 1)) for u in readers)


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
