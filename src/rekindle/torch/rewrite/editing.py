"""A copy of a captured step that may be edited: new ops beside the old ones, and old ones replaced."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from ..capture.captured import Captured, Writing, joint_fake_mode
from ..operators import rules
from ..operators.eager_strides import eager_strides
from ..operators.node_tensors import tensors_of
from ..private import FakeTensorMode, disable_autocast
from .fresh_results import FreshResults, value

Key = tuple[float, ...]


class Editor:
    """Edits a copy of a captured step, and leaves the original as it is; with copy=False, edits the step itself.

    captured : the step that is edited. new : node of the original -> node of the copy.
    """

    def __init__(self, original: Captured, copy: bool = True):
        self.captured, self.new = copied(original) if copy else (original, {})
        self._graph = self.captured.nodes[0].graph
        self._place: dict[fx.Node, Key] = {n: (float(i),) for i, n in enumerate(self.captured.nodes)}
        self._mode: Any = joint_fake_mode(self.captured.graph_module) or FakeTensorMode(allow_non_fake_inputs=True)
        self._left: list[fx.Node] = []  # nodes that have lost a reader
        self._results = FreshResults()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, `call` may be used: shapes, strides and storages of results follow from the rules of capture."""
        FakeTensorMode.cache_clear()  # as before a capture: a result that another mode cached has lost its storage
        with torch.no_grad(), disable_autocast(), eager_strides(self._mode), self._mode:
            yield

    def call(
        self, target: Any, args: Sequence[Any], like: fx.Node, at: Key, kwargs: Mapping[str, Any] | None = None
    ) -> fx.Node:
        """A new op. like : the op that it stands for, whose module and phase it gets. at : its place in the order of ops."""
        c = self.captured
        n = self._graph.create_node("call_function", target, tuple(args), dict(kwargs or {}))
        n.meta = {k: x for k, x in like.meta.items() if k not in ("val", "tensor_meta")}
        n.meta["val"] = self._results.of(n)
        c.nodes.append(n)
        self._place[n] = at
        for table in (c.module_path, c.source):
            if like in table:
                table[n] = table[like]
        return n

    def place(self, n: fx.Node) -> Key:
        """The place of a node in the order of ops; places are compared as tuples. Placeholders stand before all ops."""
        return self._place.get(n, (-1.0,))

    def replace(self, old: fx.Node, new: fx.Node) -> None:
        """Let everything that reads `old`, or returns it, take `new`."""
        c = self.captured
        old.replace_all_uses_with(new)
        c.outputs = [new if n is old else n for n in c.outputs]
        c.mutations = {p: new if n is old else n for p, n in c.mutations.items()}
        c.gradients = {p: new if n is old else n for p, n in c.gradients.items()}
        for n, w in c.writing.items():
            if any(a is old for a in w.args):
                c.writing[n] = Writing(w.target, tuple(new if a is old else a for a in w.args))
        self._left.append(old)
        gone = _memory(old) - _memory(new)
        if gone:
            self._look_again(new, gone)

    def _look_again(self, base: fx.Node, gone: set[int]) -> None:
        """Let views of tensors that were replaced be views of what replaced them."""
        for u in base.users:
            if u.op == "call_function" and _memory(u) & gone:
                u.meta["val"] = value(u)
                self._look_again(u, gone)

    def set_argument(self, n: fx.Node, position: int, value: Any) -> None:
        """Let the op take another argument."""
        old = n.args[position]
        n.update_arg(position, value)
        if isinstance(old, fx.Node):
            self._left.append(old)

    def leave(self, n: fx.Node) -> None:
        """Let a node go if nothing reads it when the edit is finished."""
        self._left.append(n)

    def finish(self) -> Captured:
        """The edited step: ops that lost all their readers are dropped, the others come in order of place."""
        c = self.captured
        wanted = {*c.outputs, *c.gradients.values(), *c.mutations.values(), *c.writing}
        wanted |= {a for w in c.writing.values() for a in w.args if isinstance(a, fx.Node)}
        gone: set[fx.Node] = set()
        while self._left:
            n = self._left.pop()
            if n.op == "call_function" and n not in wanted and n not in gone and not n.users:
                gone.add(n)
                self._left += n.all_input_nodes
                self._graph.erase_node(n)
        c.nodes[:] = _in_order([n for n in c.nodes if n not in gone], self._place)
        last = next(n for n in reversed(self._graph.nodes) if n.op == "output")
        for n in c.nodes:  # the graph too, whose readers expect that a node comes after its arguments
            last.prepend(n)
        return c


def _memory(n: fx.Node) -> set[int]:
    """The storages of a node's tensors."""
    return {t.untyped_storage()._cdata for _, t in tensors_of(n)}


def without_aliases(c: Captured) -> Captured:
    """A copy of the step without the names that autograd gives tensors for backward: its ops read the tensors themselves."""
    edit = Editor(c)
    kept = {*edit.captured.outputs, *edit.captured.gradients.values(), *edit.captured.mutations.values()}
    for n in edit.captured.nodes:
        if n.target in rules.PASS_THROUGH and n not in kept and isinstance(n.args[0], fx.Node):
            edit.replace(n, n.args[0])
    return edit.finish()


def _in_order(nodes: Sequence[fx.Node], place: Mapping[fx.Node, Key]) -> list[fx.Node]:
    """The nodes in order of place, each after the nodes that it reads."""
    waits = {n: sum(a in place and a.op == "call_function" for a in n.all_input_nodes) for n in nodes}
    ready = [(place[n], i, n) for i, n in enumerate(nodes) if not waits[n]]
    heapq.heapify(ready)
    number = {n: i for i, n in enumerate(nodes)}
    found = []
    while ready:
        *_, n = heapq.heappop(ready)
        found.append(n)
        for u in n.users:
            if u in waits:
                waits[u] -= 1
                if not waits[u]:
                    heapq.heappush(ready, (place[u], number[u], u))
    if len(found) != len(nodes):
        raise ValueError("the edited step has a cycle")
    return found


def copied(c: Captured) -> tuple[Captured, dict[fx.Node, fx.Node]]:
    """A captured step with nodes of its own, on the same fake tensors; and old node -> new node."""
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    every = c.nodes[0].graph.nodes
    known = set(c.nodes)
    given, ended = ([n for n in every if n not in known and (n.op == "output") == last] for last in (False, True))
    for n in [*given, *c.nodes, *ended]:  # new ops stand at the end of an edited graph, whatever their place is
        new[n] = graph.node_copy(n, new.__getitem__)
        new[n].meta = dict(n.meta)

    def to(n: Any) -> Any:
        return new.get(n, n) if isinstance(n, fx.Node) else n

    writing = {new[n]: Writing(w.target, tuple(fx.node.map_arg(w.args, to))) for n, w in c.writing.items()}
    by_node: Any = {k: {new[n]: x for n, x in getattr(c, k).items() if n in new} for k in _BY_NODE}
    made = replace(
        c,
        nodes=[new[n] for n in c.nodes],
        **by_node,
        outputs=[to(n) for n in c.outputs],
        mutations={new[p]: to(n) for p, n in c.mutations.items()},
        gradients={new[p]: to(n) for p, n in c.gradients.items()},
        writing=writing,
        graph_module=SimpleNamespace(graph=graph),
    )  # fmt: skip
    return made, new


_BY_NODE = ("params", "buffers", "inputs", "constants", "tangents", "module_path", "source")
