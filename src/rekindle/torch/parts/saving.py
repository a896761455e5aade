"""Partitioners of torch.compile, one for each way: they decide which results forward saves for backward."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

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


_SAVED = {
    "inputs": frozenset[Any](),
    "attention": _operators(_ATTENTION),
    "products": _operators(_ATTENTION + _PRODUCTS),
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
        saved, backward = _SAVED[self.saves], set[fx.Node]()
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                if "tangents" in str(node.target):
                    backward.add(node)
            elif any(n in backward for n in node.all_input_nodes):
                backward.add(node)
            elif node.op == "call_function" and (policy := _policy(node, saved)) is not None:
                node.meta["recompute"], node.meta["ac_graph_id"] = policy, 0
        return min_cut(gm, joint_inputs, **kwargs)

    def uuid(self) -> Any:
        """Of torch.compile's caches."""
        return f"rekindle.saving/1 {self.saves}"


def _policy(node: fx.Node, saved: frozenset[Any]) -> CheckpointPolicy | None:
    """None: torch.compile decides, as of seeds, which it saves."""
    first = node.args[0] if node.args else None
    op = first.target if node.target is operator.getitem and isinstance(first, fx.Node) else node.target
    if op is torch.ops.prims.inductor_seeds.default:
        return None
    is_random = torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())
    # Random numbers that are drawn anew would be others, or cost the saving of the generator's state.
    return CheckpointPolicy.MUST_SAVE if op in saved or is_random else CheckpointPolicy.PREFER_RECOMPUTE
