"""The results that a part's forward saves for backward: partitioners of torch.compile, one for each way, and a rule for parts
that run again.

The shapes of a part that cannot be captured may change from step to step, so a rule does not name results: it says how many
FLOPs a byte must have cost. This is selective activation checkpointing (`torch.utils.checkpoint`), with a rule that is chosen
by what it saves and costs.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from ...parts.plan import SaveRule
from ..operators.pieces import tensor_bytes
from ..operators.rules import draws_random
from ..private import TorchDispatchMode
from .compiler import min_cut

VERSION = 9  # raise it whenever a way saves other results: what was compiled and measured before is then not used
_BLOCK = "rekindle block"  # under "custom" in the notes of a node, which torch.compile copies to the nodes made of it
aten = torch.ops.aten
_DIGITS = 2  # of a price: results whose prices differ by less are saved together


def _row(i: int) -> Callable[[Sequence[Any]], int]:
    return lambda args: args[i].shape[-1]


# operator -> the length of the sum behind each number of its result
_SUMMED: dict[Any, Callable[[Sequence[Any]], int]] = {
    aten.mm: _row(0),
    aten.bmm: _row(0),
    aten.addmm: _row(1),
    aten.baddbmm: _row(1),
    **{getattr(aten, name): _row(0) for name in ("_scaled_mm", "_grouped_mm") if hasattr(aten, name)},
    aten.convolution: lambda args: math.prod(args[1].shape[1:]),
    **{
        getattr(aten, name): lambda args: 2 * args[1].shape[-2]
        for name in (
            "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
        )
        if hasattr(aten, name)
    },
}  # fmt: skip
PRODUCTS = frozenset(_SUMMED)  # operators whose results are worth saving


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
        if self.saves == "half":
            # Below a budget of 1, backward may draw other random numbers than forward did. The measured call drew none, but a
            # later one may, as where dropout is switched on.
            draws = any(draws_random(_operator(n)) for n in forward if n.op == "call_function")
            return min_cut(gm, joint_inputs, budget=1.0 if draws else 0.5, **kwargs)
        saved = self._saved(gm.graph, forward)
        blocks = {n: block for n in forward if (block := block_number(n)) is not None}  # of a forward in one piece
        for node in forward:
            op = _operator(node)
            runs_again = node.op == "call_function" and (node in blocks or not blocks)
            if runs_again and "inductor_seed" not in str(op):  # torch.compile saves the seeds
                # Random numbers that are drawn anew would be others, or cost the saving of the generator's state.
                keeps = node in saved or draws_random(op)
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE
                node.meta["ac_graph_id"] = blocks.get(node, 0)
        return min_cut(gm, joint_inputs, **kwargs)

    def uuid(self) -> Any:
        """A name of the way for torch.compile's caches."""
        return f"rekindle.saving/{VERSION} {self.saves}"

    def _saved(self, graph: fx.Graph, forward: Collection[fx.Node]) -> set[fx.Node]:
        if self.saves == "all":
            return set(forward)
        packet = {n: getattr(_operator(n), "overloadpacket", None) for n in graph.nodes if n in forward}
        products = [n for n, p in packet.items() if p in PRODUCTS]
        if self.saves == "products":
            return set(products)
        if self.saves == "attention":
            return {n for n in products if "attention" in str(packet[n])}
        if self.saves == "costly":
            return _costly(products, graph, forward)
        return set()  # the inputs alone, of a part or of its blocks


def mark_block(node: fx.Node, number: int) -> None:
    """Note the block in which a node of a forward lies, for this graph and the graphs that torch.compile makes of it."""
    node.meta["custom"] = {**(node.meta.get("custom") or {}), _BLOCK: number}


def block_number(node: fx.Node) -> int | None:
    """The number of the block in which a node lies, as `mark_block` noted it; None: no block."""
    return (node.meta.get("custom") or {}).get(_BLOCK)


def _forward_of(graph: fx.Graph) -> dict[fx.Node, None]:
    """The nodes that need no gradient of a result, in order."""
    backward: set[fx.Node] = set()
    for node in graph.nodes:
        is_gradient = node.op == "placeholder" and "tangents" in str(node.target)
        if is_gradient or node.op == "output" or any(n in backward for n in node.all_input_nodes):
            backward.add(node)
    return {n: None for n in graph.nodes if n not in backward}


def _made(node: fx.Node) -> fx.Node:
    """The node of the call that made the node's value, also where that is one of several results."""
    return node.args[0] if node.target is operator.getitem and isinstance(node.args[0], fx.Node) else node


def _operator(node: fx.Node) -> Any:
    return _made(node).target


def _costly(products: Sequence[fx.Node], graph: fx.Graph, forward: Container[fx.Node]) -> set[fx.Node]:
    """Of the products that backward needs, those with the most FLOPs per byte, up to half of the bytes of all."""
    needed: set[fx.Node] = set()
    stack = [x for n in graph.nodes if n not in forward and n.op != "output" for x in n.all_input_nodes if x in forward]
    while stack:
        if (node := stack.pop()) not in needed:
            needed.add(node)
            stack += node.all_input_nodes
    sizes = {n: tensor_bytes(n.meta["val"]) for n in products if n in needed and hasattr(n.meta.get("val"), "numel")}
    left, saved = sum(sizes.values()) / 2, set[fx.Node]()
    for n in sorted(sizes, key=_price, reverse=True):
        if sizes[n] <= left:
            saved.add(n)
            left -= sizes[n]
    return saved


def _price(node: fx.Node) -> float:
    """FLOPs that make one byte of the node's value."""
    made = _made(node)
    args, kwargs = fx.node.map_arg((made.args, made.kwargs), lambda n: n.meta["val"])
    return price(made.target, args, kwargs)


def price(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """FLOPs that make one byte of the operator's result; 0.0: the result is cheap, or must not be saved."""
    summed = _SUMMED.get(getattr(op, "overloadpacket", None))
    if summed is None or _draws(op, args, kwargs):
        return 0.0
    return float(f"{2.0 * summed(args) / args[0].element_size():.{_DIGITS}g}")


def _draws(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call draws random numbers. If it did not run again, later ones would draw others than before."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | dict(kwargs)
    return given.get("dropout_p", 0.0) != 0.0


class Prices(TorchDispatchMode):
    """Notes the prices of the results of operators that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[float] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.add(price(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Once:
    """Gives saved results back in the first backward, which uses them up; a further one (`retain_graph`) makes all again."""

    def __init__(self, cached: contextlib.AbstractContextManager[Any]):
        self._cached = cached
        self._entered: list[contextlib.AbstractContextManager[Any]] = []
        self._used = False

    def __enter__(self) -> None:
        now = contextlib.nullcontext() if self._used else self._cached
        self._used = True
        self._entered.append(now)
        now.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._entered.pop().__exit__(*error)


def contexts(rule: SaveRule) -> tuple[Any, Any]:
    """Context managers for `torch.utils.checkpoint`: of the first run, which saves, and of the runs in backward."""

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        dear = price(op, args, kwargs) >= rule.least
        return CheckpointPolicy.MUST_SAVE if dear else CheckpointPolicy.PREFER_RECOMPUTE

    saving, cached = create_selective_checkpoint_contexts(policy)
    return saving, _Once(cached)
