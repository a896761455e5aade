"""A stage whose projection and cross entropy run in slices of rows, so that the logits are never whole.

The pattern is a product with a weight, then steps that keep each row to itself, then a cross entropy, as in language models. It
needs logits that nothing else reads (`unused=["logits"]`). In the way "slices", backward makes the logits of one slice at a
time again. In the way "gradients", forward makes the gradients of each slice, and backward scales them (as Liger's fused linear
cross entropy does): not with float16, where gradients need the loss's scale.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from .cuts import is_fixed

# functions that make each number of their result of the same number of their argument
_ALONE = {
    "float", "double", "half", "bfloat16", "to", "tanh", "mul", "div", "contiguous", "type", torch.tanh, torch.mul, torch.div,
    operator.mul, operator.truediv,
}  # fmt: skip
_NAME = "_loss_in_slices"  # of a module in a stage's graph
_RESHAPES = {"view", "reshape", "flatten", torch.flatten, torch.reshape}
SLICES_MOST = 16  # of a loss; each is compiled, so they take time; a guess


@dataclass(frozen=True)
class _Rest:
    """The steps that follow the product in each slice.

    steps : (name of a method or a function, arguments after the tensor, keywords). entropy : arguments of the cross entropy.
    rows : of a slice.
    """

    steps: Sequence[tuple[Any, tuple[Any, ...], dict[str, Any]]]
    entropy: dict[str, Any]
    rows: int


def has_slices(body: fx.GraphModule, at_once: bool) -> bool:
    """Whether the graph has a loss that can run in slices. at_once : forward makes the gradients too."""
    return any(_found(n, at_once) for n in body.graph.nodes)


def sliced(body: fx.GraphModule, at_once: bool) -> fx.GraphModule:
    """The graph with its losses in slices, where they can be."""
    made = copy.deepcopy(body)
    for i, node in enumerate([*made.graph.nodes]):
        if (found := _found(node, at_once)) is not None:
            _rewrite(made, node, found, f"{_NAME}_{i}", at_once)
    made.recompile()
    return made


_Found = tuple[fx.Node, list[fx.Node], dict[str, Any]]


def _found(loss: fx.Node, at_once: bool) -> _Found | None:
    """(the product, the nodes between it and the loss, the arguments of the cross entropy); None: the loss stays whole."""
    if loss.op != "call_function" or loss.target is not F.cross_entropy:
        return None
    given = inspect.signature(F.cross_entropy).bind(*loss.args, **loss.kwargs)
    given.apply_defaults()
    how, target, rows = given.arguments, _value(given.arguments["target"]), _value(given.arguments["input"])
    plain = all(how[k] is None for k in ("weight", "size_average", "reduce")) and how["reduction"] in ("mean", "sum")
    if not plain or rows is None or target is None or rows.dim() != 2 or target.dim() != 1:
        return None
    between: list[fx.Node] = []
    node: Any = how["input"]
    while _value(node) is not None and len(node.users) == 1 and _value(node).is_floating_point():
        if _is_product(node):
            is_fine = not (at_once and _value(node).dtype is torch.float16) and _may_move(node, loss)
            return (node, between[::-1], how) if is_fine else None
        if node.op == "placeholder" or not (_keeps_rows(node) or _moves_rows(node)):
            return None
        between.append(node)
        node = node.args[0]
    return None


def _may_move(product: fx.Node, loss: fx.Node) -> bool:
    """Whether the product has the same result right before the loss."""
    node = product.next
    while node is not loss:
        if is_fixed(node):
            return False
        node = node.next
    return True


def _value(node: Any) -> Any:
    found = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None


def _is_product(node: fx.Node) -> bool:
    """Whether the node multiplies rows by a matrix."""
    if node.target not in (F.linear, torch.matmul, operator.matmul) or node.kwargs or _value(node.args[0]) is None:
        return False
    return (weight := _value(node.args[1])) is not None and weight.dim() == 2


def _keeps_rows(node: fx.Node) -> bool:
    """Whether each number of the result is made of the same number of the first argument alone."""
    others = [*node.args[1:], *node.kwargs.values()]
    known = node.target in _ALONE and bool(node.args) and _value(node.args[0]) is not None
    return known and not any(isinstance(x, fx.Node) for x in others)


def _moves_rows(node: fx.Node) -> bool:
    """Whether the node reshapes, or takes some rows, and leaves each row whole."""
    before, after = _value(node.args[0]) if node.args else None, _value(node)
    if before is None or not before.dim() or not after.dim() or before.shape[-1] != after.shape[-1]:
        return False
    if node.target in _RESHAPES:
        return before.dtype == after.dtype
    return node.target is operator.getitem and _takes_rows(node.args[1], before.dim())


def _takes_rows(index: Any, dims: int) -> bool:
    """Whether the index leaves the last of so many dimensions whole."""
    index = index if isinstance(index, tuple) else (index,)
    parts = [x for i in index for x in ((i.start, i.stop, i.step) if isinstance(i, slice) else (i,))]
    if not all(x is None or x is Ellipsis or type(x) is int for x in parts):
        return False
    used = [i for i in index if i is not None]
    reaches = len([i for i in used if i is not Ellipsis]) == dims or Ellipsis in used and used[-1] is not Ellipsis
    return not reaches or used[-1] == slice(None)


def _rewrite(body: fx.GraphModule, loss: fx.Node, found: _Found, name: str, at_once: bool) -> None:
    """Put a call of a module in place of the loss."""
    (product, between, how), graph = found, body.graph
    x, weight, bias = (*product.args, None)[:3]
    if product.target in (torch.matmul, operator.matmul):
        with graph.inserting_before(product):
            weight = graph.call_function(torch.t, (weight,))
    steps = []
    with graph.inserting_before(loss):
        for node in between:
            if not _moves_rows(node):
                steps.append((node.target, tuple(node.args[1:]), dict(node.kwargs)))
            elif node.target is operator.getitem:
                x = graph.call_function(operator.getitem, (x, node.args[1]))
            elif _value(node).shape != _value(node.args[0]).shape:
                x = graph.call_method("reshape", (x, (*_value(node).shape[:-1], -1)))
        width = _value(product.args[0]).shape[-1]
        count = _value(product.args[0]).numel() // width
        rows = max(width, -(-count // SLICES_MOST))  # the logits of a slice are then about as large as the weight
        entropy = {k: how[k] for k in ("ignore_index", "reduction", "label_smoothing")}
        body.add_module(name, _Loss(_Rest(steps, entropy, rows), at_once))
        new = graph.call_module(name, (x, weight, bias, how["target"]))
    loss.replace_all_uses_with(new)
    for node in (loss, *between[::-1], product):
        graph.erase_node(node)


class _Loss(nn.Module):
    """The loss in slices, as a function of (rows, weight, bias, target)."""

    def __init__(self, rest: _Rest, at_once: bool):
        super().__init__()
        self._rest, self._at_once = rest, at_once

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: Any, target: torch.Tensor) -> torch.Tensor:
        if self._at_once:
            return _AtOnce.apply(x, weight, bias, target, self._rest)  # type: ignore[no-any-return]
        exact = weight.float() if weight.element_size() < 4 else weight  # gradients of slices are added up in its dtype
        parts = [
            _of_slice(rows, exact.to(weight.dtype), bias, wanted, self._rest)
            for rows, wanted in zip(x.split(self._rest.rows), target.split(self._rest.rows), strict=True)
        ]
        return _reduced(parts, target, self._rest)


class _AtOnce(torch.autograd.Function):
    """The loss in slices. Forward makes the gradients too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, target: torch.Tensor, rest: _Rest) -> Any:
        ctx.dtypes = [None if t is None else t.dtype for t in (x, weight, bias)]
        exact = [None if t is None else torch.promote_types(t.dtype, torch.float32) for t in (weight, bias)]
        sums = [None if t is None else torch.zeros_like(t, dtype=d) for t, d in zip((weight, bias), exact, strict=True)]
        parts, of_rows = [], []
        for rows, wanted in zip(x.split(rest.rows), target.split(rest.rows), strict=True):
            given = [None if t is None else t.detach().requires_grad_() for t in (rows, weight, bias)]
            with torch.enable_grad():
                part = _of_slice(given[0], given[1], given[2], wanted, rest)  # type: ignore[arg-type]
            scale = torch.ones_like(part) / _count(target, rest)
            made = iter(torch.autograd.grad(part, [t for t in given if t is not None], scale))
            parts.append(part.detach())
            of_rows.append(next(made))
            sums = [None if t is None else t + next(made) for t in sums]
        ctx.save_for_backward(torch.cat(of_rows), *sums)
        return _reduced(parts, target, rest)

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:  # type: ignore[override]
        made = [None if t is None else (t * given).to(d) for t, d in zip(ctx.saved_tensors, ctx.dtypes, strict=True)]
        return *made, None, None


def _of_slice(rows: torch.Tensor, weight: torch.Tensor, bias: Any, wanted: torch.Tensor, rest: _Rest) -> torch.Tensor:
    z = F.linear(rows, weight, bias)
    for what, args, kwargs in rest.steps:
        z = getattr(z, what)(*args, **kwargs) if isinstance(what, str) else what(z, *args, **kwargs)
    return F.cross_entropy(z, wanted, **{**rest.entropy, "reduction": "sum"})


def _reduced(parts: Sequence[torch.Tensor], target: torch.Tensor, rest: _Rest) -> torch.Tensor:
    exact = torch.promote_types(parts[0].dtype, torch.float32)
    total = parts[0].to(exact)
    for part in parts[1:]:
        total = total + part.to(exact)
    return (total / _count(target, rest)).to(parts[0].dtype)


def _count(target: torch.Tensor, rest: _Rest) -> Any:
    """By what the sum of the losses is divided."""
    return (target != rest.entropy["ignore_index"]).sum() if rest.entropy["reduction"] == "mean" else 1
