"""Results that the training loop does not read, as `unused` names them: they are taken out of the graph of a forward.

Dynamo's graph does not name its outputs. So the traced function passes each result to one of two functions, which Dynamo puts
into the graph as they are.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from ...errors import UsageError
from ..capture.left_out import no_such_results, taken_apart
from ..tensors import tree
from .cuts import draws, is_fixed


@torch.compiler.allow_in_graph
def read(t: torch.Tensor) -> torch.Tensor:
    """Mark a result that the loop reads."""
    return t.new_empty(0)


@torch.compiler.allow_in_graph
def unread(t: torch.Tensor) -> torch.Tensor:
    """Mark a result that the loop does not read."""
    return t.new_empty(0)


def marking(forward: Callable[..., Any], unused: Sequence[str]) -> Callable[..., Any]:
    """The function of (module, *arguments), with a mark for each tensor of its result. unused : names of results."""

    def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = forward(module, *args, **kwargs)
        marks: list[torch.Tensor] = []
        _mark(result, ("",), unused, False, marks)
        return result, marks

    return run


def _mark(x: Any, at: tuple[str, ...], unused: Sequence[str], is_unread: bool, marks: list[torch.Tensor]) -> None:
    """at : the names of the place of x in the result; a field of a named tuple has a name and a number."""
    is_unread = is_unread or any(name in unused for name in at)
    inside: list[tuple[tuple[str, ...], Any]] = []
    if isinstance(x, torch.Tensor):
        marks.append(unread(x) if is_unread else read(x))
    elif isinstance(x, Mapping):
        inside = [((f"{k}",), x[k]) for k in x]
    elif isinstance(x, tuple | list):
        fields = getattr(x, "_fields", ())
        inside = [((f"{i}", fields[i]) if i < len(fields) else (f"{i}",), y) for i, y in enumerate(x)]
    elif dataclasses.is_dataclass(x):
        inside = [((f.name,), getattr(x, f.name)) for f in dataclasses.fields(x)]
    for own, y in inside:
        _mark(y, tuple(f"{a}.{b}" if a else b for a in at for b in own), unused, is_unread, marks)


def leave_out(graph: fx.Graph) -> int:
    """Take the results out of the graph that are marked as not read, and the marks; gives how many results, inputs
    apart. One that also stands where the loop reads it stays."""
    marks: dict[Any, list[fx.Node]] = {read: [], unread: []}
    effects = {n for n in graph.nodes if not n.users}  # nobody reads them either, and they run: an assertion, say
    for node in graph.nodes:
        if node.op == "call_function" and node.target in marks:
            marks[node.target].append(node)
    of_read, of_unread = ({n.args[0] for n in marks[mark]} for mark in (read, unread))
    gone = of_unread - of_read
    every = gone | {n for found in marks.values() for n in found}
    output = graph.output_node()
    output.args = (tuple(None if x in every else x for x in output.args[0]),)  # type: ignore[union-attr]
    for node in reversed(graph.nodes):  # a softmax that nobody needs now would still read the logits
        computes = node.op in ("call_function", "call_method") and not (is_fixed(node) or draws(node))
        if computes and not node.users and node not in effects:
            graph.erase_node(node)
    return sum(isinstance(x, fx.Node) and x.op != "placeholder" for x in gone)


def count_unused(result: Any, given: Any, unused: Sequence[str], loss: str, module_name: str) -> list[weakref.ref[Any]]:
    """The tensors of a result that can be left out. given : those of the arguments and of the module, which always stay.

    Raises
    ------
    UsageError : a name fits no result, or is the loss's, or nothing is left from which a gradient could come back.
    """
    found = taken_apart(result, {}, unused, loss)
    if found.no_results:
        raise no_such_results(found.no_results, found.spec, module_name)
    stays = {id(t) for t in (*found.tensors, *given)}
    return [weakref.ref(t) for t in tree.tensors_in(result) if id(t) not in stays]


def cannot(unused: Sequence[str], why: str) -> UsageError:
    """The error for results that compiled stages cannot leave out."""
    return UsageError(
        f"unused={list(unused)}: compiled stages cannot leave these results out, as {why}. Leave out `unused`, or `compile`"
    )
