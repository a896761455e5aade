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

_ALONE = {
    "float",
    "double",
    "half",
    "bfloat16",
    "to",
    "tanh",
    "mul",
    "div",
    "contiguous",
    "type",
}  # keep rows to themselves
_ALONE_FUNCTIONS = {torch.tanh, torch.mul, torch.div, operator.mul, operator.truediv}
_NAME = "_loss_in_slices"  # of the module in a stage's graph
_RESHAPES = {"view", "reshape", "flatten", torch.flatten, torch.reshape}


@dataclass(frozen=True)
class SliceSettings:
    """most : slices of a loss; each is compiled, so they take time. A guess."""

    most: int = 16


SETTINGS = SliceSettings()


@dataclass(frozen=True)
class _Rest:
    """What follows the product in each slice. steps : (name of a method or a function, arguments after the tensor, keywords).
    entropy : arguments of the cross entropy."""

    steps: Sequence[tuple[Any, tuple[Any, ...], dict[str, Any]]]
    entropy: dict[str, Any]
    rows: int  # of a slice


def sliced(body: fx.GraphModule, at_once: bool = False) -> fx.GraphModule | None:
    """The graph with its loss in slices; None: it has no such loss. at_once : forward makes the gradients too."""
    for loss in body.graph.nodes:
        found = _found(loss) if loss.op == "call_function" and loss.target is F.cross_entropy else None
        if found is not None and not (at_once and _value(found[0]).dtype is torch.float16):
            made = copy.deepcopy(body)
            _rewrite(made, next(n for n in made.graph.nodes if n.name == loss.name), at_once)
            made.recompile()
            return made
    return None


def _found(loss: fx.Node) -> tuple[fx.Node, list[fx.Node], dict[str, Any]] | None:
    """(the product, the nodes between it and the loss, the arguments of the cross entropy)."""
    given = inspect.signature(F.cross_entropy).bind(*loss.args, **loss.kwargs)
    given.apply_defaults()
    how = given.arguments
    target = how["target"]
    fits = all(how[k] is None for k in ("weight", "size_average", "reduce")) and how["reduction"] in ("mean", "sum")
    if not fits or not isinstance(target, fx.Node) or _value(target) is None or _value(target).dim() != 1:
        return None
    between: list[fx.Node] = []
    node: Any = how["input"]
    while isinstance(node, fx.Node) and len(node.users) == 1 and isinstance(_value(node), torch.Tensor):
        if _is_product(node):
            return node, between[::-1], how
        if not (_keeps_rows(node) or _moves_rows(node)):
            return None
        between.append(node)
        node = node.args[0]
    return None


def _value(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _is_product(node: fx.Node) -> bool:
    """Whether the node multiplies rows by a matrix."""
    if node.kwargs or not isinstance(weight := _value(node.args[1]) if len(node.args) > 1 else None, torch.Tensor):
        return False
    return weight.dim() == 2 and node.target in (F.linear, torch.matmul, operator.matmul)


def _keeps_rows(node: fx.Node) -> bool:
    """Whether each number of the result is made of the same number of the first argument alone."""
    known = node.op == "call_method" and node.target in _ALONE or node.target in _ALONE_FUNCTIONS
    others = [*node.args[1:], *node.kwargs.values()]
    return known and len(node.args) > 0 and not any(isinstance(x, fx.Node) for x in others)


def _moves_rows(node: fx.Node) -> bool:
    """Whether the node reshapes, or takes some rows, and leaves each row whole."""
    before, after = _value(node.args[0]), _value(node)
    if before is None or not before.dim() or not after.dim() or before.shape[-1] != after.shape[-1]:
        return False
    if node.op in ("call_method", "call_function") and node.target in _RESHAPES:
        return True
    index = node.args[1] if node.target is operator.getitem else None
    if not isinstance(index, tuple) or Ellipsis not in index or index[-1] != slice(None):
        return False
    return not any(isinstance(x, fx.Node) for i in index if isinstance(i, slice) for x in (i.start, i.stop, i.step))


def _rewrite(body: fx.GraphModule, loss: fx.Node, at_once: bool) -> None:
    """Put a call of a module in place of the loss."""
    found, graph = _found(loss), body.graph
    assert found is not None
    product, between, how = found
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
        rows = max(width, -(-count // SETTINGS.most))  # the logits of a slice are then about as large as the weight
        entropy = {k: how[k] for k in ("ignore_index", "reduction", "label_smoothing")}
        body.add_module(_NAME, _Loss(_Rest(steps, entropy, rows), at_once))
        new = graph.call_module(_NAME, (x, weight, bias, how["target"]))
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
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return (total / _count(target, rest)).to(parts[0].dtype)


def _count(target: torch.Tensor, rest: _Rest) -> Any:
    """By what the sum of the losses is divided."""
    return (target != rest.entropy["ignore_index"]).sum() if rest.entropy["reduction"] == "mean" else 1
