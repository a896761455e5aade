"""Makes the captured step of another length or batch from the captured steps of a few, without running forward.

A capture takes a second, and for each new length it finds the same ops again, with other sizes. Several captures of one module
that differ in one size show how each constant and each shape depends on it (see `pattern`). The graph of a further size follows
by arithmetic. That is a conjecture: forward may take another way at that size. So whoever uses such a step must see the ops of
one plain step at that size (see `measure.witness`), and must compare the bits of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from ..capture.captured import Captured, Writing
from ..operators.node_tensors import span, storage_bytes
from ..private import FakeTensor, FakeTensorMode, fake_like
from ..situation.recorded_ops import Question
from ..situation.values import constants
from ..tensors.op_tensors import content_bytes

CONTENT_MOST_ELEMENTS = 4096  # of a constant tensor that is compared by its content; a guess


class Anatomy:
    """A captured step as one row of values, and a way back from such a row to a captured step.

    values : every constant, edge, shape and stride of the step, in one order. They are equal for two steps that differ in
        nothing, and of the same number for two that differ in sizes alone.
    """

    def __init__(self, captured: Captured):
        self._like = captured
        self._nodes = list(captured.graph_module.graph.nodes)
        self._place = {n: i for i, n in enumerate(self._nodes)}
        self._storages: dict[int, int] = {}
        self._tensors: dict[int, int] = {}
        self.values: list[Any] = []
        for n in self._nodes:
            self.values += [n.op, n.target if n.op == "call_function" else None]
            self._take((n.args, n.kwargs))
            self._take(n.meta.get("val"))
        self._rest()

    # -- taking apart ------------------------------------------------------------------------------------------------
    def _take(self, taken: Any) -> None:
        self.values.append(repr(map_aggregate(taken, lambda x: None)))
        map_aggregate(taken, self._member)

    def _member(self, t: Any) -> None:
        if not isinstance(t, torch.Tensor):
            self.values.append(("node", self._place[t]) if isinstance(t, fx.Node) else t)
            return
        known = self._tensors.setdefault(id(t), len(self._tensors))
        storage = t.untyped_storage()
        place = self._storages.setdefault(storage._cdata, len(self._storages))
        self.values += [
            ("tensor", known, place, t.dtype, t.device, t.dim(), t.is_contiguous(), span(t) == (0, storage_bytes(t)))
        ]
        self.values += [storage.nbytes(), t.storage_offset(), *t.shape, *t.stride()]

    def _rest(self) -> None:
        """The roles of the nodes, and all else that a captured step knows."""
        c, at = self._like, self._place

        def places(nodes: Any) -> tuple[Any, ...]:
            return tuple(at.get(n) for n in nodes)

        self.values += [
            places(c.nodes), places(c.outputs), places(c.mutations), places(c.mutations.values()), places(c.gradients),
            places(c.gradients.values()),
        ]  # fmt: skip
        for table in (c.params, c.buffers, c.inputs, c.tangents, c.module_path):
            self.values.append(tuple((at.get(n), x) for n, x in table.items()))
        for n, w in c.writing.items():
            self.values += [("writes", at[n]), w.target]
            self._take(w.args)
        for q in c.questions:
            self._take((q.ops, q.answer))
        self.values += [
            constants(c.output_spec), *map(constants, c.fills),
            tuple(sorted(c.aliased_inputs.items())), tuple(sorted(c.ignored_outputs.items())),
            tuple((k, a.output, a.source) for k, a in c.assigned.items()), c.settles, tuple(c.effects), tuple(c.dropped),
            tuple(sorted(c.changed)), tuple((at[n], tuple(t.shape), t.dtype, content(t)) for n, t in c.constants.items()),
        ]  # fmt: skip

    # -- putting together --------------------------------------------------------------------------------------------
    def resized(self, values: Sequence[Any] | None) -> Captured | None:
        """The captured step of which these are the values, as a pattern gives them; None: the pattern gives none, or the shapes
        contradict each other."""
        return None if values is None else _Assembly(self, values).captured()


class _Assembly:
    """A captured step that is being put together from the values of an `Anatomy`."""

    def __init__(self, like: Anatomy, values: Sequence[Any]):
        self.anatomy, self.like = like, like._like
        self.given: Iterator[Any] = iter(values)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.tensors: dict[int, FakeTensor] = {}
        self.made: list[fx.Node] = []
        self.sound = True

    def captured(self) -> Captured | None:
        graph = fx.Graph()
        for n in self.anatomy._nodes:
            next(self.given), next(self.given)
            # Given arguments, it would look through them for symbolic sizes.
            copied = graph.create_node(n.op, n.target, name=n.name)
            copied.args, copied.kwargs = self._next((n.args, n.kwargs))
            copied.meta = {k: x for k, x in n.meta.items() if k != "tensor_meta"}
            val = self._next(n.meta.get("val"))
            if "val" in n.meta:
                copied.meta["val"] = val
            self.made.append(copied)
        return self._with_roles(graph, dict(zip(self.anatomy._nodes, self.made, strict=True))) if self.sound else None

    def _next(self, taken: Any) -> Any:
        next(self.given)
        return map_aggregate(taken, self._member)

    def _member(self, old: Any) -> Any:
        if not isinstance(old, torch.Tensor):
            x = next(self.given)
            return self.made[x[1]] if isinstance(old, fx.Node) else x
        _, known, place, dtype, device, dim, contiguous, fills = next(self.given)
        size, offset = next(self.given), next(self.given)
        shape = [next(self.given) for _ in range(dim)]
        strides = [next(self.given) for _ in range(dim)]
        if known in self.tensors:
            return self.tensors[known]
        if not isinstance(old, FakeTensor):  # a constant of the graph
            return old
        if min([size, offset, *shape, *strides]) < 0:
            self.sound = False
            return old
        storage = self.storages.get(place)
        if storage is None:
            storage = self.storages[place] = torch.UntypedStorage(size, device="meta")
        elem = torch.empty(0, dtype=dtype, device="meta").set_(storage, offset, shape, strides)
        t = self.tensors[known] = fake_like(self.mode, elem, device)
        # Strides and sizes were found one by one; where they hang together, they must still do so.
        self.sound &= (
            storage.nbytes() == size and elem.is_contiguous() == contiguous and (span(elem) == (0, size)) == fills
        )
        return t

    def _with_roles(self, graph: fx.Graph, new: dict[fx.Node, fx.Node]) -> Captured:
        c = self.like
        for _ in range(11):
            next(self.given)
        writing: dict[fx.Node, Writing] = {}
        for n, w in c.writing.items():
            next(self.given), next(self.given)
            writing[new[n]] = Writing(w.target, self._next(w.args))
        questions = [Question(*self._next((q.ops, q.answer))) for q in c.questions]
        return replace(c.on(graph, new), writing=writing, questions=questions)


def content(t: torch.Tensor) -> Any:
    """The content of a constant tensor, for comparisons; an object that equals nothing where the content is too long."""
    if isinstance(t, FakeTensor) or t.layout is not torch.strided or t.numel() > CONTENT_MOST_ELEMENTS:
        return object()
    try:
        return content_bytes(t)
    except Exception:  # of a dtype or a class that has no bytes to look at
        return object()
