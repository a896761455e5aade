"""Inner results: results of forward from which forward itself computes other results.

In eager such a result is a node of autograd's graph, at which its whole gradient comes together: from the loss, and from the
results that forward computes from it. Hooks on it, `retain_grad` and `autograd.grad(loss, result)` see that gradient, so the
planned step must have such a node too. Here its place in the joint graph is found.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.fx.traceback as fx_traceback
from torch import fx
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from ...errors import TraceError
from ...saying.frames import in_short, line_of, users_frame
from ..tensors.objects import values_set

_MARK = "rekindle_result"


class Inner(NamedTuple):
    """The whole gradient of an inner result. output : its number. uses : how many nodes of autograd take the result."""

    output: int
    uses: int


def inner_results(results: Sequence[torch.Tensor], ends: Iterable[torch.Tensor]) -> dict[int, int]:
    """Number of each inner result -> how many nodes of autograd's graph behind `ends` take it."""
    at: dict[Any, int] = {}
    for i, t in enumerate(results):
        if t.requires_grad:
            at.setdefault(tuple(get_gradient_edge(t))[:2], i)
    return dict(Counter(at[edge] for *_, edge in edges_behind(t.grad_fn for t in ends) if edge in at))


def leads_to(result: torch.Tensor, given: Iterable[torch.Tensor]) -> bool:
    """Backward from the result makes a gradient of one of the given tensors."""
    ends = {tuple(get_gradient_edge(t)[:2]) for t in given if t.requires_grad}
    return any(edge in ends for *_, edge in edges_behind([result.grad_fn]))


def edges_behind(nodes: Iterable[Any], stops: Container[Any] = ()) -> Iterator[tuple[Any, int, Any]]:
    """(node, place among its gradients, the node and the place there to which that gradient goes), in autograd's graph from
    these nodes on; not beyond the edges `stops`."""
    seen, stack = set(), [*nodes]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            for place, edge in enumerate(node.next_functions):
                yield node, place, edge
                if edge not in stops:
                    stack.append(edge[0])


def mark(result: torch.Tensor, number: int, uses: int) -> None:
    """Let a trace of backward put a node for the whole gradient of this result into its graph."""

    def renamed(gradient: torch.Tensor) -> torch.Tensor:
        with fx_traceback.annotate({_MARK: Inner(number, uses)}):
            return torch.ops.aten.alias.default(gradient)

    result.register_hook(renamed)


def take_marks(
    nodes: list[fx.Node], gradients: dict[fx.Node, fx.Node], tangents: Mapping[fx.Node, int]
) -> tuple[dict[fx.Node, Inner], set[int]]:
    """(the nodes of whole gradients, numbers of results to which no gradient comes from other results). Arguments as in
    `Captured`. A mark stays as a node only where another op reads the same gradient, not through the result; other marks leave
    the graph, `nodes` and `gradients`."""
    found, ends = {}, set()
    for n in [n for n in nodes if _MARK in n.meta.get("custom", {})]:
        inner, gradient = n.meta["custom"].pop(_MARK), n.all_input_nodes[0]
        alone = tangents.get(gradient) == inner.output
        if alone or gradient.op == "call_function" and len(gradient.users) == 1:
            n.replace_all_uses_with(gradient)
            gradients.update({p: gradient for p, g in gradients.items() if g is n})
            nodes.remove(n)
            n.graph.erase_node(n)
            n = gradient
        if alone:
            ends.add(inner.output)
        else:
            found[n] = inner
    return found, ends


@contextlib.contextmanager
def hooks_noted(found: list[Any], given: Iterable[torch.Tensor], real: Iterable[torch.Tensor]) -> Iterator[None]:
    """Inside, `found` learns the functions that are hung on tensors, or on what autograd saves, and that run in backward. Hooks
    on the tensors given, which stand for the real ones, are refused, and so is `retain_grad`: in eager they see what comes from
    outside of forward too. Other threads are left alone."""
    every, made = {id(t) for t in given}, {id(t) for t, r in zip(given, real, strict=True) if not r.is_leaf}
    refused: dict[tuple[type, str], set[int]] = {
        (torch.Tensor, "register_hook"): every, (torch.Tensor, "register_post_accumulate_grad_hook"): every,
        (torch.Tensor, "retain_grad"): made, (saved_tensors_hooks, "__init__"): set(),
    }  # fmt: skip
    here = threading.get_ident()

    def noting(kind: type, name: str) -> Any:
        own = getattr(kind, name)

        def note(t: Any, *hooks: Any, **named: Any) -> Any:
            if threading.get_ident() == here:
                if id(t) in refused[kind, name]:
                    frame, words = users_frame(), f"calls {name} of an argument"
                    line = line_of(frame) if frame is not None else "an unknown line"
                    why = (
                        f"forward {words} at {line}. Do so outside of forward, or with a view of it (x = x.view_as(x))"
                    )
                    raise TraceError(why, line=in_short(line), reason=words)
                found.extend((*hooks, *named.values()))
            return own(t, *hooks, **named)

        return note

    with values_set([(*place, noting(*place)) for place in refused]):
        yield
