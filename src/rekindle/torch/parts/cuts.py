"""Cuts the graph of a forward where its repeated blocks begin and end, and tells which of the stages are equal.

Code between two blocks belongs to the block before it, unless it uses weights: then it is a stage of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from ..capture.surroundings import surroundings
from .blocks import chain_of_leaves, find_blocks
from .compiler import is_operator

DIGITS = 16
_SELF, _NAME = re.compile(r"^L\['[^']*'\]\.?"), re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|(\d+))\]")


class Cuts:
    """Where the graph of a forward is cut. paths : of the stages, in their order."""

    def __init__(self, model: nn.Module, graph: fx.GraphModule):
        blocks = find_blocks(model)
        if not blocks and (chain := chain_of_leaves(model)) is not None:
            blocks = [*chain]
        inside = {id(b) for b in blocks}
        self._blocks = {name for name, m in model.named_modules() if id(m) in inside}
        self._of: dict[fx.Node, int] = {}
        nodes = [n for n in graph.graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
        runs = self._runs(nodes)
        self.paths = self._named([block for block, _ in runs])
        for number, (_, inside_run) in enumerate(runs):
            self._of.update(dict.fromkeys(inside_run, number))

    def number(self, node: fx.Node) -> int:
        """The stage of a node."""
        return self._of[node]

    def _runs(self, nodes: Sequence[fx.Node]) -> list[tuple[str, list[fx.Node]]]:
        """(path of a block, or "" between blocks; nodes) of each stage."""
        runs: list[tuple[Any, list[fx.Node]]] = []
        for node in nodes:
            call = self._block(node)
            if not runs or runs[-1][0] != call:
                runs.append((call, []))
            runs[-1][1].append(node)
        joined: list[tuple[Any, list[fx.Node]]] = []
        for i, (call, inside) in enumerate(runs):
            is_between = 0 < i < len(runs) - 1 and call is None
            if joined and (is_between and not _uses_weights(inside) or joined[-1][0] == call):
                joined[-1][1].extend(inside)
            else:
                joined.append((call, inside))
        return [("" if call is None else call[0], inside) for call, inside in _whole_results(joined)]

    def _block(self, node: fx.Node) -> tuple[str, str] | None:
        """(path, key of the call) of the block in which the node lies."""
        for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
            path = _NAME.sub(lambda m: f".{m[1] or m[2] or m[3]}", _SELF.sub("", path)).lstrip(".")
            path = path.replace("._modules.", ".").replace("_modules.", "", 1) if "_modules" in path else path
            if path in self._blocks:
                return path, key
        return None

    @staticmethod
    def _named(blocks: Sequence[str]) -> list[str]:
        names: list[str] = []
        for i, block in enumerate(blocks):
            following = next((b for b in blocks[i:] if b), "")
            name = block or (
                f"before {following}" if following else f"after {next((b for b in blocks[::-1] if b), 'all')}"
            )
            times = sum(n == name or n.startswith(f"{name} #") for n in names)
            names.append(f"{name} #{times + 1}" if times else name)
        return names


def _uses_weights(nodes: Sequence[fx.Node]) -> bool:
    return any(isinstance(x.meta.get("example_value"), nn.Parameter) for n in nodes for x in n.all_input_nodes)


def _whole_results(runs: Sequence[tuple[Any, list[fx.Node]]]) -> Iterator[tuple[Any, list[fx.Node]]]:
    """The runs, joined where a result that is no tensor would go from one to another."""
    at = {n: i for i, (_, nodes) in enumerate(runs) for n in nodes}
    last = list(range(len(runs)))
    for n, i in at.items():
        if not isinstance(n.meta.get("example_value"), torch.Tensor):
            last[i] = max([last[i], *(at[u] for u in n.users if u in at)])
    i = 0
    while i < len(runs):
        until, nodes, j = last[i], [*runs[i][1]], i
        while j < until:
            j += 1
            nodes += runs[j][1]
            until = max(until, last[j])
        yield runs[i][0], nodes
        i = j + 1


def kind_of(body: fx.GraphModule) -> str:
    """A digest of the graph, of its inputs and of the state that shapes what is compiled."""
    text = repr((_lines(body), surroundings()))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _lines(body: fx.GraphModule) -> list[Any]:
    at: dict[fx.Node, int] = {}
    storages: dict[Any, int] = {}
    lines: list[Any] = []
    for i, n in enumerate(body.graph.nodes):
        at[n] = i
        if n.op == "placeholder":
            t = n.meta.get("example_value")
            told: Any = repr(t)
            if isinstance(t, torch.Tensor):
                shared = storages.setdefault(t.untyped_storage()._cdata, len(storages))
                told = type(t).__name__, tuple(t.shape), t.stride(), t.dtype, str(t.device), t.requires_grad, shared
            lines.append(told)
            continue
        target = n.target if isinstance(n.target, str) else f"{getattr(n.target, '__module__', '')}.{n.target!r}"
        if n.op == "get_attr":
            lines.append(_attribute(body, str(n.target)))
            continue
        if not isinstance(n.target, str) and not is_operator(n.target):
            target = f"{getattr(n.target, '__module__', '')}.{getattr(n.target, '__qualname__', n.target)}"
        lines.append((n.op, target, repr(fx.node.map_arg((n.args, n.kwargs), lambda x: _At(at[x])))))
    return lines


def _attribute(body: fx.GraphModule, name: str) -> Any:
    found: Any = body
    for part in name.split("."):
        found = getattr(found, part)
    if isinstance(found, fx.GraphModule):
        return _lines(found)
    if isinstance(found, torch.Tensor):
        return str(found.dtype), tuple(found.shape), hashlib.sha256(repr(found.tolist()).encode()).hexdigest()
    return repr(found)


class _At(int):
    """The number of a node, which no number in the arguments looks like."""

    def __repr__(self) -> str:
        return f"%{int(self)}"
