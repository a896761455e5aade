"""Leaves results out of the graph of a forward that the training loop does not read, as their names in `unused` say.

Dynamo's graph does not name its outputs. So the traced function passes each result to one of two functions, which Dynamo puts
into the graph as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from ..capture.left_out import TakenApart, no_such_results, taken_apart


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
        _mark(result, "", unused, False, marks)
        return result, marks

    return run


def _mark(x: Any, at: str, unused: Sequence[str], is_unread: bool, marks: list[torch.Tensor]) -> None:
    """at : the name of the place of x in the result."""
    is_unread = is_unread or at in unused
    if isinstance(x, torch.Tensor):
        marks.append(unread(x) if is_unread else read(x))
    elif isinstance(x, Mapping):
        for k in x:
            _mark(x[k], f"{at}.{k}" if at else f"{k}", unused, is_unread, marks)
    elif isinstance(x, tuple | list):
        fields = getattr(x, "_fields", ())
        for i, y in enumerate(x):
            own = f"{i}"
            is_named = len(fields) > i and (f"{at}.{fields[i]}" if at else fields[i]) in unused
            _mark(y, f"{at}.{own}" if at else own, unused, is_unread or is_named, marks)
    elif dataclasses.is_dataclass(x):
        for f in dataclasses.fields(x):
            _mark(getattr(x, f.name), f"{at}.{f.name}" if at else f.name, unused, is_unread, marks)


def leave_out(graph: fx.Graph) -> None:
    """Put None in place of the outputs that are marked as not read, and nowhere as read, and of the marks."""
    marks: dict[Any, list[fx.Node]] = {read: [], unread: []}
    for node in graph.nodes:
        if node.op == "call_function" and node.target in marks:
            marks[node.target].append(node)
    of_read, of_unread = ({n.args[0] for n in marks[mark]} for mark in (read, unread))
    gone = (of_unread - of_read) | {n for found in marks.values() for n in found}
    output = graph.output_node()
    output.args = (tuple(None if x in gone else x for x in output.args[0]),)  # type: ignore[union-attr]
    for node in (n for found in marks.values() for n in found):
        graph.erase_node(node)


def check_names(result: Any, unused: Sequence[str], loss: str, module_name: str) -> None:
    """Check that the names fit results. loss : as in `rekindle.trace`.

    Raises
    ------
    UsageError : one fits none, or is of the loss, or nothing is left from which a gradient could come back.
    """
    found: TakenApart = taken_apart(result, {}, unused, loss)
    if found.no_results:
        raise no_such_results(found.no_results, found.spec, module_name)
