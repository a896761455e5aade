"""Partitioners of torch.compile, one for each way: they decide which results forward saves for backward."""

from __future__ import annotations

import operator
from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from .compiler import min_cut

_aten = torch.ops.aten
_ATTENTION = (
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_attention_math",
)  # fmt: skip
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_mm", "_grouped_mm")


def _operators(names: tuple[str, ...]) -> frozenset[Any]:
    """Every overload of the operators that this torch has."""
    packets = [getattr(_aten, n, None) for n in names]
    return frozenset(getattr(p, o) for p in packets if p is not None for o in p.overloads())


PRODUCTS = _operators(_ATTENTION + _PRODUCTS)
_SAVED = {
    "inputs": frozenset[Any](),
    "costly": frozenset[Any](),
    "attention": _operators(_ATTENTION),
    "products": PRODUCTS,
}


class Saving:
    """Cuts the graph of forward and backward where the fewest bytes are saved, among the cuts that a way allows.

    saves : the way, one of `compiling.SAVES` but "min-cut", which is torch.compile's own choice. Inductor copies, pickles and
    hashes its settings, so the object holds nothing else.
    """

    def __init__(self, saves: str):
        self.saves = saves

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any) -> Any:
        """(the graph of forward, the graph of backward)."""
        forward = _forward_of(gm.graph)
        saved = {n for n in forward if _operator(n) in _SAVED[self.saves]}
        if self.saves == "costly":
            saved = _costly([n for n in forward if _operator(n) in PRODUCTS], gm.graph, forward)
        for node in forward:
            if node.op == "call_function" and "inductor_seed" not in str(_operator(node)):  # seeds are saved
                node.meta["recompute"], node.meta["ac_graph_id"] = _policy(node, saved), 0
        return min_cut(gm, joint_inputs, **kwargs)

    def uuid(self) -> Any:
        """Of torch.compile's caches."""
        return f"rekindle.saving/2 {self.saves}"


def _policy(node: fx.Node, saved: set[fx.Node]) -> CheckpointPolicy:
    is_random = torch.Tag.nondeterministic_seeded in getattr(_operator(node), "tags", ())
    # Random numbers that are drawn anew would be others, or cost the saving of the generator's state.
    return CheckpointPolicy.MUST_SAVE if node in saved or is_random else CheckpointPolicy.PREFER_RECOMPUTE


def _forward_of(graph: fx.Graph) -> dict[fx.Node, None]:
    """The nodes that need no gradient of a result, in order."""
    backward: set[fx.Node] = set()
    for node in graph.nodes:
        is_gradient = node.op == "placeholder" and "tangents" in str(node.target)
        if is_gradient or node.op == "output" or any(n in backward for n in node.all_input_nodes):
            backward.add(node)
    return {n: None for n in graph.nodes if n not in backward}


def _operator(node: fx.Node) -> Any:
    """The operator that made the node's value, also where that is one of several results."""
    if node.target is operator.getitem and isinstance(made := node.args[0], fx.Node):
        return made.target
    return node.target


def _costly(products: Sequence[fx.Node], graph: fx.Graph, forward: Container[fx.Node]) -> set[fx.Node]:
    """Of the products that backward needs, those with the most FLOPs per byte, up to half of the bytes of all."""
    needed: set[fx.Node] = set()
    stack = [x for n in graph.nodes if n not in forward and n.op != "output" for x in n.all_input_nodes if x in forward]
    while stack:
        if (node := stack.pop()) not in needed:
            needed.add(node)
            stack += node.all_input_nodes
    sizes = {n: _bytes(n) for n in products if n in needed and isinstance(n.meta.get("val"), torch.Tensor)}
    flops = {n: _flops(n if _operator(n) is n.target else n.args[0]) for n in sizes}  # type: ignore[arg-type]
    left, saved = sum(sizes.values()) / 2, set[fx.Node]()
    for n in sorted(sizes, key=lambda n: flops[n] / max(1, sizes[n]), reverse=True):
        if sizes[n] <= left:
            saved.add(n)
            left -= sizes[n]
    return saved


def _bytes(node: fx.Node) -> int:
    t = node.meta["val"]
    return int(t.numel()) * int(t.element_size())


def _flops(node: fx.Node) -> int:
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is None:
        return 0
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    return int(count(*args, **kwargs, out_val=node.meta["val"]))
