"""Edits of a captured step: new ops beside the old ones, and old ones replaced.

Slices of one op have results that are laid out alike, so one of them is asked for its fake result: a fake kernel may take
milliseconds (the backward of a batch norm runs its decomposition), an empty fake tensor microseconds.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ..capture.captured import Captured, Writing, fake_result, joint_fake_mode, memory_of
from ..operators import rules
from ..operators.eager_strides import eager_strides
from ..operators.node_tensors import span, storage_bytes, tensors_of
from ..private import FakeTensorMode, OpOverload, disable_autocast

Key = tuple[float, ...]
Layout = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


class Editor:
    """Edits a copy of a captured step, and leaves the original as it is; with copy=False, edits its nodes, after which the
    original is of no use.

    captured : the step as it is so far.
    writing, inner : as in `captured`; the edits themselves change them.
    """

    def __init__(self, original: Captured, copy: bool = True):
        c = _copied(original) if copy else original
        self._nodes, self._outputs, self.writing = list(c.nodes), list(c.outputs), dict(c.writing)
        self._mutations, self._gradients, self.inner = dict(c.mutations), dict(c.gradients), dict(c.inner)
        self._module_path, self._source = dict(c.module_path), dict(c.source)
        self.captured = replace(
            c, nodes=self._nodes, outputs=self._outputs, writing=self.writing, mutations=self._mutations,
            gradients=self._gradients, inner=self.inner, module_path=self._module_path, source=self._source,
        )  # fmt: skip
        self._graph = c.nodes[0].graph
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
        n = self._graph.create_node("call_function", target, tuple(args), dict(kwargs or {}))
        n.meta = {k: x for k, x in like.meta.items() if k not in ("val", "tensor_meta")}
        n.meta["val"] = self._results.of(n)
        self._nodes.append(n)
        self._place[n] = at
        for table in (self._module_path, self._source):
            if like in table:
                table[n] = table[like]
        return n

    def place(self, n: fx.Node) -> Key:
        """The place of a node in the order of ops; places are compared as tuples. Placeholders stand before all ops."""
        return self._place.get(n, (-1.0,))

    def replace(self, old: fx.Node, new: fx.Node) -> None:
        """Let everything that reads `old`, or returns it, take `new`."""
        old.replace_all_uses_with(new)
        self._outputs[:] = [new if n is old else n for n in self._outputs]
        for table in (self._mutations, self._gradients):
            table.update({p: new for p, n in table.items() if n is old})
        if old in self.inner:
            self.inner[new] = self.inner.pop(old)
        for n, w in self.writing.items():
            if any(a is old for a in w.args):
                self.writing[n] = Writing(w.target, tuple(new if a is old else a for a in w.args))
        self._left.append(old)
        gone = memory_of(old) - memory_of(new)
        if gone:
            self._look_again(new, gone)

    def _look_again(self, base: fx.Node, gone: set[int]) -> None:
        """Let views of tensors that were replaced be views of what replaced them."""
        for u in base.users:
            if u.op == "call_function" and memory_of(u) & gone:
                u.meta["val"] = fake_result(u)
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
                self.inner.pop(n, None)
                self._left += n.all_input_nodes
                self._graph.erase_node(n)
        self._nodes[:] = _in_order([n for n in self._nodes if n not in gone], self._place)
        last = next(n for n in reversed(self._graph.nodes) if n.op == "output")
        for n in self._nodes:  # the graph too, whose readers expect that a node comes after its arguments
            last.prepend(n)
        return c


def without_aliases(c: Captured) -> Captured:
    """A copy of the step without the names that autograd gives tensors for backward: its ops read the tensors themselves."""
    edit = Editor(c)
    kept = {*edit.captured.outputs, *edit.captured.gradients.values(), *edit.captured.mutations.values(), *edit.inner}
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


def _copied(c: Captured) -> Captured:
    """A captured step with nodes of its own, on the same fake tensors."""
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    every = c.nodes[0].graph.nodes
    known = set(c.nodes)
    given, ended = ([n for n in every if n not in known and (n.op == "output") == last] for last in (False, True))
    for n in [*given, *c.nodes, *ended]:  # new ops stand at the end of an edited graph, whatever their place is
        new[n] = graph.node_copy(n, new.__getitem__)
        new[n].meta = dict(n.meta)
    return c.on(graph, new)


class FreshResults:
    """Results of ops in memory of their own, remembered by op and arguments. Used inside `Editor.at_work`."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bool, list[Layout | None]]] = {}

    def of(self, n: fx.Node) -> Any:
        """The fake result of an op."""
        if not isinstance(n.target, OpOverload):
            return fake_result(n)
        key = f"{n.target} {fx.map_arg((n.args, n.kwargs), _described)}"
        if key in self._known:
            several, layouts = self._known[key]
            made = [x and torch.empty_strided(x[0], x[1], dtype=x[2], device=x[3]) for x in layouts]
            return tuple(made) if several else made[0]
        found = fake_result(n)
        several = isinstance(found, tuple | list)
        members = list(found) if several else [found]
        if _in_own_memory(members, n):
            self._known[key] = several, [None if t is None else _layout(t) for t in members]
        return found


def _described(n: fx.Node) -> Any:
    """The facts on which the layout of a result may depend, as text can show them."""
    tensors = tensors_of(n)
    return [(i, *_layout(t)) for i, t in tensors] if tensors else n.meta.get("val")


def _layout(t: torch.Tensor) -> Layout:
    return t.shape, t.stride(), t.dtype, t.device


def _in_own_memory(members: list[Any], n: fx.Node) -> bool:
    """Whether an empty tensor of its layout can stand for each member of a result: each fills a storage of its own."""
    taken = set().union(*map(memory_of, n.all_input_nodes))
    for t in members:
        if t is None:
            continue
        if not isinstance(t, torch.Tensor) or t.layout is not torch.strided:
            return False
        storage = t.untyped_storage()._cdata
        if storage in taken or span(t) != (0, storage_bytes(t)):
            return False
        taken.add(storage)
    return True
