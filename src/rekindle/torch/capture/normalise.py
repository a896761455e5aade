"""A captured joint graph as a `Graph` of storages, and the way back from ops and values to ATen calls.

What PyTorch does implicitly becomes explicit ops here, so that one simulator sees everything:

- views are no ops: they share their base's storage and are made again wherever they are read;
- `boundary` stands for the user's loss: it reads every result and produces the gradients that come back;
- what the module mutates is written once: by the first run of the op that makes it (see `in_place`), else by a `copy_` op
  at the end of forward; then an op that may run again reads a `snapshot` taken before;
- `accumulate` ops hand a finished gradient over to autograd; the executor cuts the backward into stages there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import fx

from ...errors import TraceError
from ...model.graph import BOUNDARY, Graph, Op, Value
from . import rules
from .captured import Captured
from .module_paths import printable

ACCUMULATE = "accumulate"
Part = tuple[fx.Node, int]  # one tensor: member `index` of what a node returns (0 for a plain tensor)


@dataclass
class OpCall:
    """What an op of the Graph does. `kind`: "aten", "boundary", "copy_", "snapshot" or "accumulate".

    node : the ATen call, or for copy_ and snapshot the placeholder written or read, for accumulate the placeholder
        whose gradient is handed over.
    over : value over which the result may be written -> position of the argument that lies in it.
    """

    kind: str
    node: fx.Node | None = None
    over: dict[int, int] = field(default_factory=dict)


@dataclass
class Lowered:
    """A Graph and what its ids stand for.

    calls : per op what it does.
    parts : per value the tensors that live in its storage, as the producing node returns them.
    value_of : tensor -> value id, for tensors an op produces and for placeholders.
    views : nodes that are views, or take a member of what another returns.
    snapshots : placeholder -> value id of its copy from before the mutation.
    reads_snapshot : nodes that read such a copy.
    """

    captured: Captured
    graph: Graph
    calls: list[OpCall] = field(default_factory=list)
    parts: list[list[Part]] = field(default_factory=list)
    value_of: dict[Part, int] = field(default_factory=dict)
    views: set[fx.Node] = field(default_factory=set)
    snapshots: dict[fx.Node, int] = field(default_factory=dict)
    reads_snapshot: set[fx.Node] = field(default_factory=set)


def lower(c: Captured, name: str, resident_bytes: int, must_save: Iterable[str] = ()) -> Lowered:
    """The Graph of a captured step. Seconds, FLOPs and workspaces are 0: `costs` fills them in.

    resident_bytes : what the caller holds during the whole step: parameters, buffers, inputs, and a gradient for
        every trained parameter.
    must_save : patterns (`fnmatch`) of the paths of modules whose ops must run only once.
    """
    return _Lowering(c, tuple(must_save)).build(name, resident_bytes)


def storage_bytes(t: torch.Tensor) -> int:
    """Bytes of the whole storage behind a tensor, as the allocator counts them (fake tensors too)."""
    return int(t.untyped_storage().nbytes())


def tensors_of(n: fx.Node) -> list[tuple[int, torch.Tensor]]:
    """(member index, tensor) of everything a node returns."""
    val = n.meta.get("val")
    if isinstance(val, torch.Tensor):
        return [(0, val)]
    if isinstance(val, tuple | list):
        return [(i, t) for i, t in enumerate(val) if isinstance(t, torch.Tensor)]
    return []


def is_member(n: fx.Node) -> bool:
    """Whether the node takes one member out of what another returns."""
    return n.op == "call_function" and getattr(n.target, "__name__", "") == "getitem"


def is_marked(path: str, must_save: Iterable[str]) -> bool:
    """Whether the module of that path, or one that it lies in, is among those whose ops must run only once: by its name
    as it is, or by a pattern."""
    return any(
        path == m or path.startswith(f"{m}.") or fnmatchcase(path, m) or fnmatchcase(path, f"{m}.*") for m in must_save
    )


def base_part(n: fx.Node) -> Part | None:
    """The tensor a node stands for if it only names or takes a member of what an op returns, else None."""
    while n.op == "call_function" and n.target in rules.PASS_THROUGH:
        n = n.args[0]  # type: ignore[assignment]
    if is_member(n):
        source, index = n.args[0], n.args[1]
        return (source, int(index)) if isinstance(source, fx.Node) else None  # type: ignore[arg-type]
    return (n, 0) if n.op == "call_function" else None


def _ancestors(nodes: Iterable[fx.Node | None]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        n = stack.pop()
        if isinstance(n, fx.Node) and n not in found:
            found.add(n)
            stack += n.all_input_nodes
    return found


class _Lowering:
    def __init__(self, c: Captured, must_save: tuple[str, ...]):
        self.c, self.marks = c, must_save
        self.values: list[Value] = []
        self.parts: list[list[Part]] = []
        self.value_of: dict[Part, int] = {}
        self.by_storage: dict[int, int] = {}
        self.views: set[fx.Node] = set()
        self.ops: list[Op] = []
        self.calls: list[OpCall] = []
        self.keep: list[int] = []
        self.snapshots: dict[fx.Node, int] = {}
        self.reads_snapshot: dict[fx.Node, list[fx.Node]] = {}  # node -> placeholders
        self.tokens: list[int] = []  # what forward must have run before it ends, beside its results
        self.drawn: int | None = None  # token of the random op before: they draw in the model's order
        self.awaited: int | None = None  # the same, where nothing else makes forward run that op before it ends
        self.returned: set[fx.Node] = set()  # nodes that a result needs
        self.results: set[fx.Node] = set()  # nodes that a result or a mutation needs

    # -- values ----------------------------------------------------------------------------------------------------
    def new_value(self, size: int, part: Part | None = None, t: torch.Tensor | None = None) -> int:
        v = len(self.values)
        self.values.append(Value(size))
        self.parts.append([])
        if t is not None:
            self.by_storage[t.untyped_storage()._cdata] = v
        if part is not None:
            self.add_part(v, part)
        return v

    def add_part(self, v: int, part: Part) -> None:
        self.parts[v].append(part)
        self.value_of[part] = v

    def storage_value(self, t: torch.Tensor) -> int | None:
        return self.by_storage.get(t.untyped_storage()._cdata)

    def reads(self, n: fx.Node) -> list[int]:
        """Values behind every tensor argument of a node."""
        out: list[int] = []
        for a in n.all_input_nodes:
            for _, t in tensors_of(a):
                v = self.storage_value(t)
                assert v is not None, f"{a} is read before it is made"
                out.append(v)
        return list(dict.fromkeys(out))

    def values_behind(self, n: fx.Node) -> list[int]:
        return list(dict.fromkeys(v for _, t in tensors_of(n) if (v := self.storage_value(t)) is not None))

    # -- building --------------------------------------------------------------------------------------------------
    def build(self, name: str, resident_bytes: int) -> Lowered:
        c = self.c
        for n in c.placeholders:
            if isinstance(n.meta.get("val"), torch.Tensor):
                t = n.meta["val"]
                v = self.storage_value(t)
                if v is None:
                    self.new_value(storage_bytes(t), (n, 0), t)
                else:
                    self.add_part(v, (n, 0))
        after = self._depends_on_tangents()
        forward, backward = self._phases(after)
        last_mutation_only = self._only_for_mutations(forward)
        self._plan_snapshots(forward, backward, last_mutation_only)
        for n in forward:
            self.node(n, backward=False, once=n in last_mutation_only)
        self.copies(last_mutation_only)
        self.boundary(any(rules.draws_random(n.target) for n in backward))
        for n in backward:
            self.node(n, backward=True, once=rules.draws_random(n.target))
        if self.awaited is not None:
            self.keep.append(self.awaited)
        graph = self._with_accumulation(name, resident_bytes)
        return Lowered(
            c, graph, self.calls, self.parts, self.value_of, self.views, self.snapshots, set(self.reads_snapshot)
        )

    def _depends_on_tangents(self) -> set[fx.Node]:
        after: set[fx.Node] = set(self.c.tangents)
        for n in self.c.nodes:
            if any(a in after for a in n.all_input_nodes):
                after.add(n)
        return after

    def _phases(self, after: set[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
        """Forward ends where the first node stands that belongs to backward; what a result needs is forward."""
        self.returned = _ancestors(self.c.outputs)
        self.results = results = self.returned | _ancestors([*self.c.mutations.values(), *self.c.writing])
        if results & after:
            raise TraceError("a result of the model depends on its own gradient; such a step cannot be planned")
        end = next(
            (i for i, n in enumerate(self.c.nodes) if n in after or n.meta.get("partitioner_tag") == "is_backward"),
            len(self.c.nodes),
        )
        late = [n for n in self.c.nodes[end:] if n in results]
        return self.c.nodes[:end] + late, [n for n in self.c.nodes[end:] if n not in results]

    def _only_for_mutations(self, forward: list[fx.Node]) -> set[fx.Node]:
        """Forward nodes whose results go nowhere but into what the module mutates: they run once and read directly."""
        sinks = {*self.c.mutations.values(), *self.c.writing}
        wanted = set(self.c.outputs) | set(self.c.gradients.values())
        only: set[fx.Node] = set()
        for n in reversed(forward):
            if n not in wanted and (n in sinks or n.users) and all(u in only or u.op == "output" for u in n.users):
                only.add(n)
        return only

    def _plan_snapshots(self, forward: list[fx.Node], backward: list[fx.Node], direct: set[fx.Node]) -> None:
        """An op that may run after a mutation reads a copy taken before it."""
        behind: dict[fx.Node, set[fx.Node]] = {p: {p} for p in self.c.mutations}  # views of a mutated placeholder
        for n in [*forward, *backward]:
            for p, aliases in behind.items():
                if any(a in aliases for a in n.all_input_nodes):
                    if self._is_view(n):
                        aliases.add(n)
                    elif n not in direct:
                        self.reads_snapshot.setdefault(n, []).append(p)
                        self.snapshots.setdefault(p, -1)
        for p in list(self.snapshots):
            t = p.meta["val"]
            source = self.value_of[(p, 0)]
            s = self.new_value(storage_bytes(t))
            self.snapshots[p] = s
            self.ops.append(Op(f"|snapshot|{describe(t)}", (source,), (s,), recompute=False))
            self.calls.append(OpCall("snapshot", p))

    def _is_view(self, n: fx.Node) -> bool:
        """Whether every tensor the node returns lies in the storage of one of its arguments (or it takes a member)."""
        if is_member(n) or n.target in rules.PASS_THROUGH:
            return True
        inputs = {t.untyped_storage()._cdata for a in n.all_input_nodes for _, t in tensors_of(a)}
        outs = tensors_of(n)
        return bool(outs) and all(t.untyped_storage()._cdata in inputs for _, t in outs)

    def node(self, n: fx.Node, backward: bool, once: bool) -> None:
        if self._is_view(n):
            self.views.add(n)
            return
        inputs = self.reads(n)
        for p in self.reads_snapshot.get(n, ()):
            inputs = [v for v in inputs if v != self.value_of[(p, 0)]] + [self.snapshots[p]]
        outputs = []
        in_place = n in self.c.writing and isinstance(n.meta["val"], torch.Tensor)  # what it returns is what it writes
        for i, t in () if in_place else tensors_of(n):
            v = self.storage_value(t)
            if v is None:
                v = self.new_value(storage_bytes(t), (n, i), t)
                outputs.append(v)
            elif v in outputs:
                self.add_part(v, (n, i))
            else:
                raise TraceError(f"{n.target} returns both new tensors and views of its inputs; this cannot be planned")
        draws = rules.draws_random(n.target)
        writes = n in self.c.writing and n not in self.returned
        if draws and self.drawn is not None:
            inputs.append(self.drawn)
        if not outputs or draws or writes:
            # It has an effect beyond its results: a token lets the boundary wait for it, or the end of backward, and the
            # next random op. Each waits for the one before, so that the last one alone must be waited for.
            token = self.new_value(0)
            outputs.append(token)
            if draws:
                self.drawn, self.awaited = token, token if backward or n not in self.results else None
            elif not backward:
                self.tokens.append(token)
        path = self.c.module_path.get(n, "")
        marked = not backward and is_marked(path, self.marks)
        tensors = [t for x in (n, *n.all_input_nodes) for _, t in tensors_of(x)]
        run_once = once or marked or rules.must_save(n.target, {t.device.type for t in tensors if t.dim()})
        first = tensors_of(n)[0][1] if tensors_of(n) else None
        shape = describe(first) if first is not None else ""
        over = self._overwritable(n)
        self.ops.append(
            Op(
                f"{printable(path)}|{n.target}|{shape}", tuple(inputs), tuple(outputs),
                backward=backward, recompute=not run_once, inplace=tuple(over),
            )
        )  # fmt: skip
        self.calls.append(OpCall("aten", n, over))

    def _overwritable(self, n: fx.Node) -> dict[int, int]:
        """Value over which the op may write its result -> position of the argument. That argument, or what it is a view
        of, is the whole storage, laid out as the result."""
        out = n.meta.get("val")
        rows: dict[int, int] = {}
        for position in rules.OVERWRITES.get(n.target, {}) if n not in self.c.writing else ():
            a: Any = n.args[position] if position < len(n.args) else None
            v = self.sole_value(a)
            t = a.meta.get("val") if v is not None else None
            if v is None or not isinstance(t, torch.Tensor) or not isinstance(out, torch.Tensor):
                continue
            whole = storage_bytes(t) == t.numel() * t.element_size() == storage_bytes(out) and t.storage_offset() == 0
            same = (t.shape, t.stride(), t.dtype, t.device) == (out.shape, out.stride(), out.dtype, out.device)
            storage = t.untyped_storage()._cdata
            others = [x for o in n.all_input_nodes if o is not a for _, x in tensors_of(o)]
            apart = all(x.untyped_storage()._cdata != storage for x in others)
            if whole and same and apart:
                rows.setdefault(v, position)
        return rows

    def sole_value(self, a: Any) -> int | None:
        """The value that the tensor `a` lies in, if an op made it with a storage of its own and it is all of that; else
        None."""
        values = self.values_behind(a) if isinstance(a, fx.Node) else []
        parts = self.parts[values[0]] if len(values) == 1 else []
        if len(parts) != 1 or parts[0][0].op != "call_function":
            return None
        made_by = parts[0][0]
        return values[0] if made_by not in self.views and rules.returns_new(made_by.target) else None

    def copies(self, direct: set[fx.Node]) -> None:
        """Write what the module mutates, after everything that reads the old content directly."""
        for p, new in self.c.mutations.items():
            if new is p:
                continue
            readers = [o for u in p.users if u in direct for o in self.values_behind(u)]
            inputs = tuple(dict.fromkeys([*self.values_behind(new), self.value_of[(p, 0)], *readers,
                                          *([self.snapshots[p]] if p in self.snapshots else [])]))  # fmt: skip
            token = self.new_value(0)
            self.tokens.append(token)
            self.ops.append(Op(f"|copy_|{describe(p.meta['val'])}", inputs, (token,), recompute=False))
            self.calls.append(OpCall("copy_", p))

    def boundary(self, draws_after: bool) -> None:
        """draws_after : whether backward draws random numbers; then it does so after all that forward draws, and after
        what the user draws between them."""
        read: list[int] = []
        for o in self.c.outputs:
            if isinstance(o, fx.Node):
                read += self.values_behind(o)
        # A random op that backward alone reads belongs to forward too, since eager draws there.
        read += self.tokens if self.awaited is None else [*self.tokens, self.awaited]
        made = []
        for t in self.c.tangents:
            made.append(self.new_value(storage_bytes(t.meta["val"]), (t, 0), t.meta["val"]))
        if not self._depends_on_tangents() & set(self.c.gradients.values()):
            made.append(self.new_value(0))  # no gradient asks for the boundary, yet forward ends there
            self.keep.append(made[-1])
        self.awaited = None
        if draws_after:
            made.append(self.new_value(0))
            self.drawn = made[-1]
        self.ops.append(Op(BOUNDARY, tuple(dict.fromkeys(read)), tuple(made), recompute=False))
        self.calls.append(OpCall("boundary"))

    def _with_accumulation(self, name: str, resident_bytes: int) -> Graph:
        """Each gradient is handed over right after the op that finishes it."""
        made_by = {v: i for i, op in enumerate(self.ops) for v in op.outputs}
        boundary = next(i for i, call in enumerate(self.calls) if call.kind == "boundary")
        due: dict[int, list[fx.Node]] = {}
        for p, g in self.c.gradients.items():
            due.setdefault(max([boundary, *(made_by.get(v, 0) for v in self.values_behind(g))]), []).append(p)
        ops, calls = [], []
        for i, (op, call) in enumerate(zip(self.ops, self.calls, strict=True)):
            ops.append(op)
            calls.append(call)
            for p in due.get(i, []):
                token = self.new_value(0)
                values = self.values_behind(self.c.gradients[p])
                what = self.c.params.get(p) or self.c.buffers.get(p) or "input"
                ops.append(
                    Op(f"{printable(what)}|{ACCUMULATE}|", tuple(values), (token,), backward=True, recompute=False)
                )
                calls.append(OpCall(ACCUMULATE, p))
                self.keep.append(token)
                if p not in self.c.params:
                    self.keep += values  # the gradient of an input stays with the caller
        # What the caller may hold is never written over, whoever makes the schedule.
        held = {v for op in ops if op.name == BOUNDARY for v in (*op.inputs, *op.outputs)}
        ops = [replace(op, inplace=tuple(v for v in op.inplace if v not in held)) for op in ops]
        self.ops, self.calls = ops, calls
        return Graph(tuple(self.values), tuple(ops), tuple(dict.fromkeys(self.keep)), resident_bytes, name)


_SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b8",
    torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


def describe(t: torch.Tensor) -> str:
    """f32[64,3,224,224]"""
    return f"{_SHORT.get(t.dtype, str(t.dtype).removeprefix('torch.'))}[{','.join(map(str, t.shape))}]"
