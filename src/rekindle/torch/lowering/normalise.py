"""A captured joint graph as a `Graph` of storages.

Everything that PyTorch does implicitly becomes an explicit op here, so that one simulator sees all of it:

- views are no ops: they share their base's storage and are made again wherever they are read;
- `boundary` stands for the user's loss: it reads every result and produces the gradients that come back;
- a tensor that the module mutates is written once (see `writes`): by the first run of the op that makes its new content, by ops
  in place between those that read its contents, else by a `copy_` op at the end of forward; an op that may run again after a
  write reads a `snapshot` taken before;
- `accumulate` ops hand a finished gradient over to autograd; the executor cuts the backward into stages there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ...errors import TraceError
from ...model.graph import ACCUMULATE, BOUNDARY, COPY, OPERATOR, SNAPSHOT, Graph, Op
from ...model.op_names import traced_name
from ..capture.captured import Captured
from ..operators import rules
from ..operators.node_tensors import describe, is_view, same_layout, storage_bytes, tensors_of
from ..operators.record import EVERYWHERE
from ..operators.table import record_of
from ..situation.module_paths import is_marked, printable
from .lowered import Lowered, OpCall
from .phases import phases
from .storages import Storages
from .writes import writes_of


def lower(
    c: Captured, name: str, resident_bytes: int, must_save: Iterable[str] = (), gradients: str = "kept"
) -> Lowered:
    """The Graph of a captured step. Seconds, FLOPs and workspaces are 0: `costs` fills them in.

    name : of the graph, for reports.
    resident_bytes : bytes that the caller holds during the whole step: parameters, buffers, inputs, and a gradient for
        every trained parameter, if they are kept.
    must_save : patterns (`fnmatch`) of the paths of modules whose ops must run only once.
    gradients : "kept": the caller has a gradient for every parameter, to which it adds. "fresh": it takes each gradient, and
        holds it to the end of the step. "consumed": it takes each gradient, and frees it at once.

    Raises
    ------
    TraceError : an op returns both new tensors and views, or a result depends on its own gradient.
    """
    return _Lowering(c, tuple(must_save), gradients).build(name, resident_bytes)


class _Lowering:
    """The graph of one captured step, while it is being made.

    reads_snapshot : node -> the placeholders of which it reads a copy.
    tokens : values of 0 bytes that forward must have made before it ends, beside its results.
    drawn : token of the latest random op; the next one reads it, so that they draw in the model's order.
    awaited : the same token, where nothing else makes forward run that op before it ends.
    between : value that is written in place -> (the token of its latest write, those of the reads since).
    """

    def __init__(self, c: Captured, must_save: tuple[str, ...], gradients: str):
        self.c, self.must_save, self.gradients = c, must_save, gradients
        self.phases = phases(c)
        self.storages = Storages()
        self.ops: list[Op] = []
        self.calls: list[OpCall] = []
        self.keep: list[int] = []
        self.snapshots: dict[fx.Node, int] = {}
        self.reads_snapshot: dict[fx.Node, list[fx.Node]] = {}
        self.tokens: list[int] = []
        self.drawn: int | None = None
        self.awaited: int | None = None
        self.writes = writes_of(c, self.phases.forward, self.phases.backward)
        self.between: dict[int, tuple[list[int], list[int]]] = {}

    def build(self, name: str, resident_bytes: int) -> Lowered:
        c, s, parts = self.c, self.storages, self.phases
        for n in c.placeholders:
            if isinstance(t := n.meta.get("val"), torch.Tensor):
                s.add_input(t, (n, 0))
        self.between = {s.value_of[p, 0]: ([], []) for p in self.writes.home.values()}
        self._snapshots()
        for n in parts.forward:
            self._node(n, backward=False, once=n in parts.only_for_mutations)
            self._copies(n)
        self._copies(None)
        self._boundary(any(rules.draws_random(n.target) for n in parts.backward))
        for n in parts.backward:
            self._node(n, backward=True, once=rules.draws_random(n.target))
        if self.awaited is not None:
            self.keep.append(self.awaited)
        self._hand_over()
        graph = Graph(tuple(s.values), tuple(self.ops), tuple(dict.fromkeys(self.keep)), resident_bytes, name)
        return Lowered(
            c, graph, self.calls, s.parts, s.value_of, s.views, self.snapshots, set(self.reads_snapshot), self.writes
        )  # fmt: skip

    def _add(self, op: Op, call: OpCall) -> None:
        self.ops.append(op)
        self.calls.append(call)

    def _snapshots(self) -> None:
        """An op of backward that reads what forward has written over since reads a copy from before."""
        for n in self.phases.backward:
            for a in n.all_input_nodes if not is_view(n) else ():
                if self.writes.home.get(a) in self.writes.copied:
                    self._read_copy(n, a)

    def _read_copy(self, n: fx.Node, a: fx.Node) -> None:
        """Let op n read a copy of tensor a, which lies in memory that forward writes to."""
        self.reads_snapshot.setdefault(n, []).append(a)
        if a not in self.snapshots:
            t = a.meta["val"]
            self.snapshots[a] = self.storages.new(t.numel() * t.element_size())
            source = self.storages.value_of[self.writes.home[a], 0]
            read, made = self._in_turn([source], [self.snapshots[a]], False)
            self._add(_op(SNAPSHOT, read, made, shape=describe(t)), OpCall(SNAPSHOT, a))

    def _shielded(self, n: fx.Node) -> None:
        """Let an op that reads what forward writes in place read a snapshot, so that it may run again: where that takes less
        than its results, and is laid out so that it computes the same bits."""
        read = {
            a: t for a in n.all_input_nodes if a in self.writes.home and isinstance(t := a.meta["val"], torch.Tensor)
        }
        writes = n in self.writes.over or all(u in self.writes.over for u in n.users)
        if not read or writes or n in self.phases.only_for_mutations:
            return
        size = sum(t.numel() * t.element_size() for t in read.values())
        exact = record_of(str(getattr(n.target, "_schema", n).name)).exact == EVERYWHERE
        exact = exact or all(map(torch.ops.aten.is_non_overlapping_and_dense, read.values()))
        if exact and size < sum(storage_bytes(t) for _, t in tensors_of(n)):
            for a in read:
                self._read_copy(n, a)

    def _node(self, n: fx.Node, backward: bool, once: bool) -> None:
        s = self.storages
        if n in self.writes.home:
            s.lies_in(n, s.value_of[self.writes.home[n], 0])
        if is_view(n) or n in self.writes.back:
            s.views.add(n)
            return
        if not backward:
            self._shielded(n)
        read = [t for a in n.all_input_nodes for _, t in tensors_of(a)]
        inputs = s.read_by(n, read)
        for p in self.reads_snapshot.get(n, ()):
            inputs = [v for v in inputs if v not in s.behind(p)] + [self.snapshots[p]]
        in_turn = not backward and not self.between.keys().isdisjoint(inputs)
        outputs = self._made_by(n)
        inputs, outputs = self._in_order(n, inputs, outputs, backward, in_turn)
        path = self.c.module_path.get(n, "")
        marked = not backward and is_marked(path, self.must_save)
        made = tensors_of(n)
        devices = {t.device.type for t in (*(t for _, t in made), *read) if t.dim()}
        run_once = once or in_turn or marked or rules.must_save(n.target, devices)
        over = s.overwritable(n) if n not in self.c.writing and n not in self.writes.over else {}
        shape = describe(made[0][1]) if made else ""
        op = _op(
            OPERATOR, inputs, outputs, module=printable(path), target=str(n.target), shape=shape, backward=backward,
            recompute=not run_once, inplace=tuple(over), source=self.c.source.get(n, ""),
        )  # fmt: skip
        self._add(op, OpCall(OPERATOR, n, over))

    def _made_by(self, n: fx.Node) -> list[int]:
        """New values for the tensors that a node returns in storages of their own."""
        s = self.storages
        outputs: list[int] = []
        # An op that writes in place returns the tensor that it writes.
        in_place = n in self.c.writing and isinstance(n.meta["val"], torch.Tensor)
        for i, t in () if in_place or n in self.writes.over else tensors_of(n):
            v = s.find(t)
            if v is None:
                outputs.append(s.new_of(t, (n, i)))
            elif v in outputs:
                s.add_part(v, (n, i))
            else:
                why = "returns both new tensors and views of its inputs"
                raise TraceError(f"{n.target} {why}; this cannot be planned", reason=f"calls {n.target}, which {why}")
        return outputs

    def _in_order(
        self, n: fx.Node, inputs: list[int], outputs: list[int], backward: bool, in_turn: bool
    ) -> tuple[list[int], list[int]]:
        """The inputs and outputs of an op with tokens for its effects beyond its results.

        Random ops wait for each other, so only the last must be waited for. The boundary waits for the other ops, or the
        end of backward does. in_turn : as `_in_turn`.
        """
        draws = rules.draws_random(n.target)
        writes = n in self.c.writing and n not in self.phases.returned
        if draws and self.drawn is not None:
            inputs = [*inputs, self.drawn]
        if in_turn:
            inputs, outputs = self._in_turn(inputs, outputs, n in self.writes.over)
        if not outputs or draws or writes:
            token = self.storages.new(0)
            outputs = [*outputs, token]
            if draws:
                self.drawn, self.awaited = token, token if backward or n not in self.phases.results else None
            elif not backward:
                self.tokens.append(token)
        return inputs, outputs

    def _in_turn(self, inputs: list[int], outputs: list[int], writes: bool) -> tuple[list[int], list[int]]:
        """The inputs and outputs of an op that reads or writes what is written in place: a write waits for the reads of the
        content before it, and a read for the write of its content."""
        token = self.storages.new(0)
        self.tokens.append(token)
        for v in [v for v in inputs if v in self.between]:
            write, reads = self.between[v]
            inputs = [*inputs, *write, *(reads if writes else [])]
            self.between[v] = ([token], []) if writes else (write, [*reads, token])
        return list(dict.fromkeys(inputs)), [*outputs, token]

    def _copies(self, last: fx.Node | None) -> None:
        """Copy contents over what the module mutates, once this node has run."""
        s = self.storages
        for p in [p for p, n in self.writes.copied.items() if n is last]:
            read, token = self._in_turn([*s.behind(self.c.mutations[p]), s.value_of[p, 0]], [], True)
            self._add(_op(COPY, read, token, shape=describe(p.meta["val"])), OpCall(COPY, p))

    def _boundary(self, draws_after: bool) -> None:
        """draws_after : whether backward draws random numbers. If so, it draws after forward, and after the user's draws
        between the two."""
        s = self.storages
        read = [v for o in self.c.outputs if isinstance(o, fx.Node) for v in s.behind(o)]
        # A random op that backward alone reads belongs to forward too, since eager draws there.
        read += self.tokens if self.awaited is None else [*self.tokens, self.awaited]
        made = [s.new_of(t.meta["val"], (t, 0)) for t in self.c.tangents]
        if not self.phases.gradients_wait:
            made.append(s.new(0))  # no gradient asks for the boundary, yet forward ends there
            self.keep.append(made[-1])
        self.awaited = None
        if draws_after:
            made.append(s.new(0))
            self.drawn = made[-1]
        self._add(_op(BOUNDARY, list(dict.fromkeys(read)), made), OpCall(BOUNDARY))

    def _hand_over(self) -> None:
        """Add an `accumulate` op for each gradient, right after the op that finishes it."""
        s = self.storages
        made_by = {v: i for i, op in enumerate(self.ops) for v in op.outputs}
        boundary = next(i for i, call in enumerate(self.calls) if call.kind == BOUNDARY)
        due: dict[int, list[fx.Node]] = {}
        for p, g in self.c.gradients.items():
            due.setdefault(max([boundary, *(made_by.get(v, 0) for v in s.behind(g))]), []).append(p)
        # The caller may hold these values, so no op writes over them, whoever makes the schedule.
        held = {*self.ops[boundary].inputs, *self.ops[boundary].outputs}
        # The gradient of an input stays with the caller from the moment it is handed over. Where its op could run again, a
        # schedule would free it meanwhile and believe that it had gained its bytes.
        theirs = {v for p, g in self.c.gradients.items() if p not in self.c.params for v in s.behind(g)}
        # So does a tensor that forward sets an attribute to, from when it is made: the tensor before may be someone's still.
        outputs = [self.c.outputs[a.output] for a in self.c.assigned.values() if a.output is not None]
        assigned = [v for o in outputs if isinstance(o, fx.Node) for v in s.behind(o) if v in made_by]
        theirs |= {*assigned}
        self.keep += assigned
        sharing = Counter(v for g in self.c.gradients.values() for v in s.behind(g))
        before = list(zip(self.ops, self.calls, strict=True))
        self.ops, self.calls = [], []
        for i, (op, call) in enumerate(before):
            if not held.isdisjoint(op.inplace):
                op = replace(op, inplace=tuple(v for v in op.inplace if v not in held))
            self._add(op if theirs.isdisjoint(op.outputs) else replace(op, recompute=False), call)
            for p in due.get(i, []):
                values = s.behind(self.c.gradients[p])
                taken = [v for v in values if sharing[v] == 1 and v not in held]
                made, copied, over = self._given(p, taken)
                token = s.new(made)
                whose = self.c.params.get(p) or self.c.buffers.get(p) or "input"
                handed = _op(
                    ACCUMULATE, values, [token], module=printable(whose), backward=True, workspace=copied, inplace=over
                )
                self._add(handed, OpCall(ACCUMULATE, p))
                self.keep.append(token)
                if p not in self.c.params:
                    self.keep += values

    def _given(self, p: fx.Node, alone: list[int]) -> tuple[int, int, tuple[int, ...]]:
        """(bytes that `.grad` holds from the hand-over on, workspace of the hand-over, values that become `.grad`).

        Where there is no `.grad`, autograd takes the gradient itself if that is laid out as its parameter, and nothing else
        refers to it; else it makes a copy. alone : the values behind the gradient that it has for itself.
        """
        if self.gradients == "kept" or p not in self.c.params:
            return 0, 0, ()
        gradient, fresh = self.c.gradients[p].meta["val"], self.gradients == "fresh"
        if alone and same_layout(gradient, p.meta["val"]):
            return (sum(self.storages.values[v].bytes for v in alone), 0, tuple(alone)) if fresh else (0, 0, ())
        size = gradient.numel() * gradient.element_size()
        return (size, 0, ()) if fresh else (0, size, ())


def _op(kind: str, inputs: Sequence[int], outputs: Sequence[int], **more: Any) -> Op:
    """A traced op, named by its fields; it runs once unless `more`, the other fields, lets it run again."""
    name = traced_name(kind, more.get("module", ""), more.get("target", ""), more.get("shape", ""))
    return Op(name, tuple(inputs), tuple(outputs), kind=kind, **{"recompute": False, **more})
