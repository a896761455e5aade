"""The graph of one training step: values (storages) and the ops that read and produce them.

Immutable, validated on construction, hashed; knows no torch. The format is `rekindle.graph/1`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import index

import numpy as np

from ..errors import FormatError, UsageError
from ..kernels.arrays import Arrays
from ..printed import name
from ..printed import value as printed
from .resident import HoldsResident

# Kinds of ops. A traced op calls an operator or is one of the others, which `torch.lowering.normalise` explains.
OPERATOR, BOUNDARY, SNAPSHOT, COPY, ACCUMULATE = "aten", "boundary", "snapshot", "copy_", "accumulate"
KINDS = (OPERATOR, BOUNDARY, SNAPSHOT, COPY, ACCUMULATE)
DESCRIBING = ("module", "kind", "target", "shape")  # the optional fields of an `Op`, "" where unknown
COSTS = ("seconds", "flops", "unit")
MOST_BYTES_PER_S = 1e18  # of a link
MOST_SECONDS = 1e18  # of all ops together: sums and products of costs stay far from the largest float
MOST_BYTES = 2**53  # of all values together, 8 PiB: certificates count bytes in floats, exact up to here
MOST_FLOPS = 2**62  # of all ops together: the most that a 64-bit count holds


@dataclass(frozen=True, slots=True)
class Value:
    """A storage of `bytes` bytes. A value that no op produces is an input, held by the caller."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Op:
    """One operator call of the step, or one of the other `KINDS` of ops.

    name : for messages and for the graph's hash; an op named "boundary" ends forward.
    inputs, outputs : value ids. Every output is produced by this op alone.
    seconds, flops : cost of one run.
    workspace : bytes the op needs only while it runs.
    backward : marks the phase, for reports.
    recompute : False forbids running the op twice.
    inplace : inputs over which the op may write its first output.

    Five optional fields describe the op; tracing sets them, and "" means unknown. They are not hashed.

    module : path of the module that makes the op, e.g. "layer1.0.conv1"; for "accumulate" the parameter's name.
    kind : one of `KINDS`.
    target : the operator, e.g. "aten.convolution.default"; only where `kind` is "aten".
    shape : dtype and shape of the first output, e.g. "f32[8,64,56,56]".
    source : the line of the user's code that makes the op, e.g. "models/train.py:88". It says nothing about what the op
        does, so it is not compared either.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    seconds: float = 0.0
    flops: int = 0
    workspace: int = 0
    backward: bool = False
    recompute: bool = True
    inplace: tuple[int, ...] = ()
    module: str = field(default="", kw_only=True)
    kind: str = field(default="", kw_only=True)
    target: str = field(default="", kw_only=True)
    shape: str = field(default="", kw_only=True)
    source: str = field(default="", kw_only=True, compare=False)

    @property
    def described(self) -> bool:
        """Whether any of the optional fields is set."""
        return any(getattr(self, key) for key in DESCRIBING)

    @property
    def signature(self) -> tuple[str, str, str] | None:
        """(kind, target, shape), equal for ops that do the same in different modules; None where neither kind nor target is
        known."""
        return (self.kind, self.target, self.shape) if self.kind or self.target else None


@dataclass(frozen=True, slots=True)
class Link:
    """How fast values are copied between the device and the host's memory.

    out_bytes_per_s, in_bytes_per_s : to the host and back.
    copy_s : seconds that a copy takes beside them.
    both_at_once : copies to the host and back run at the same time; else they take turns.
    """

    out_bytes_per_s: float
    in_bytes_per_s: float
    copy_s: float = 0.0
    both_at_once: bool = True

    @property
    def rates(self) -> tuple[float, float, float, bool]:
        """The link as compiled loops take it: (seconds per byte to the host, back, seconds of a copy, both at once)."""
        return 1 / self.out_bytes_per_s, 1 / self.in_bytes_per_s, float(self.copy_s), bool(self.both_at_once)


@dataclass(frozen=True)
class Graph(HoldsResident):
    """The values and ops of one training step. `ops` stand in a valid order, which is the baseline order.

    values, ops : ids are positions in these.
    keep : ids of the values that must be live at the end.
    resident_bytes : bytes held during the whole step: parameters, buffers, gradients, inputs.
    name : for reports.
    link : how fast the device that the seconds are of copies values to the host and back; None: not measured. Not hashed.

    Raises
    ------
    FormatError : an id is out of range, a value has two producers, an op reads a value before it is produced, a size is
        negative, an op's kind is unknown, or something is not made of Values, Ops, whole numbers and strings.
    """

    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    keep: tuple[int, ...]
    resident_bytes: int = 0
    name: str = "graph"
    link: Link | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "values", tuple(self.values))
            object.__setattr__(self, "ops", tuple(self.ops))
            object.__setattr__(self, "keep", tuple(self.keep))
            _validate(self)
        except (TypeError, AttributeError) as e:
            raise FormatError(
                f"graph {self.name!r} is no graph ({e}); give values as Value(bytes), ops as Op(name, inputs, outputs), ids "
                "and sizes as whole numbers"
            ) from None

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.ops)} ops, {len(self.values)} values, hash {self.hash[:12]})"

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the structure: names of ops, edges, sizes. Measured costs, the graph's own name and the fields that
        describe an op are left out, so that a plan made on one machine is recognised on another."""
        doc = [
            [v.bytes for v in self.values],
            [[o.name, o.inputs, o.outputs, o.backward, o.recompute, o.inplace] for o in self.ops],
            self.keep,
        ]
        return hashlib.sha256(json.dumps(doc, separators=(",", ":")).encode()).hexdigest()

    @cached_property
    def pattern(self) -> str:
        """SHA-256 of the structure without sizes: equal for graphs that differ in sizes and costs alone. Of an op that says its
        kind or operator the name is left out, since it holds sizes."""
        doc = [
            [o.kind, o.target, o.module, "" if o.signature else o.name, o.inputs, o.outputs, o.inplace, o.backward, o.recompute]
            for o in self.ops
        ]  # fmt: skip
        return hashlib.sha256(json.dumps([doc, len(self.values), self.keep]).encode()).hexdigest()

    @cached_property
    def arrays(self) -> Arrays:
        """Flat arrays for compiled loops."""
        producer = np.full(len(self.values), -1, np.int64)
        for i, op in enumerate(self.ops):
            for v in op.outputs:
                producer[v] = i
        size = np.array([v.bytes for v in self.values], np.int64)
        size[producer < 0] = 0
        keep = np.zeros(len(self.values), np.bool_)
        keep[list(self.keep)] = True
        in_ptr, in_ids = _rows([tuple(dict.fromkeys(o.inputs)) for o in self.ops])
        out_ptr, out_ids = _rows([o.outputs for o in self.ops])
        inplace_ptr, inplace_ids = _rows([o.inplace for o in self.ops])
        return Arrays(
            size, producer, in_ptr, in_ids, out_ptr, out_ids, inplace_ptr, inplace_ids,
            np.array([o.workspace for o in self.ops], np.int64),
            np.array([o.recompute for o in self.ops], np.bool_),
            keep, self.boundary if self.boundary is not None else -1,
        )  # fmt: skip

    @cached_property
    def boundary(self) -> int | None:
        """Id of the op where forward ends, or None."""
        return next((i for i, o in enumerate(self.ops) if o.name == BOUNDARY), None)

    @cached_property
    def needed(self) -> np.ndarray:
        """bool [ops]: whether `keep` depends on the op."""
        a = self.arrays
        need = np.zeros(len(self.ops), np.bool_)
        for v in self.keep:
            if a.producer[v] >= 0:
                need[a.producer[v]] = True
        for i in range(len(self.ops) - 1, -1, -1):
            if need[i]:
                for v in self.ops[i].inputs:
                    if a.producer[v] >= 0:
                        need[a.producer[v]] = True
        return need

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each value, the ids of the ops that read it, in baseline order."""
        rows: list[list[int]] = [[] for _ in self.values]
        for i, op in enumerate(self.ops):
            for v in dict.fromkeys(op.inputs):
                rows[v].append(i)
        return tuple(tuple(r) for r in rows)

    @cached_property
    def shared(self) -> np.ndarray:
        """bool [values]: the values that the boundary reads or makes. The caller may hold them, so no op writes over them."""
        found = np.zeros(len(self.values), np.bool_)
        if self.boundary is not None:
            op = self.ops[self.boundary]
            found[[*op.inputs, *op.outputs]] = True
        return found

    def weights(self, cost: str = "seconds") -> np.ndarray:
        """float64 [ops]: the cost of one run of each op.

        cost : "seconds", "flops", or "unit" (1 for an op that produces at least a byte, else 0).

        Raises
        ------
        UsageError : another cost.
        """
        if not isinstance(cost, str) or cost not in COSTS:
            raise UsageError(f"cost={printed(cost)} is unknown; choose one of {', '.join(COSTS)}")
        if cost == "seconds":
            return np.array([o.seconds for o in self.ops], np.float64)
        if cost == "flops":
            return np.array([o.flops for o in self.ops], np.float64)
        return np.array([float(any(self.values[v].bytes for v in o.outputs)) for o in self.ops])

    def with_costs(self, seconds: Sequence[float], workspace: Sequence[int] | None = None) -> Graph:
        """The same graph with other measured costs per op; the hash stays.

        seconds, workspace : one per op; workspace in bytes, None leaves it as it is.
        """
        ws = workspace if workspace is not None else [o.workspace for o in self.ops]
        ops = tuple(
            replace(o, seconds=float(s), workspace=int(w)) for o, s, w in zip(self.ops, seconds, ws, strict=True)
        )
        return replace(self, ops=ops)


def _rows(rows: Iterable[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    rows = list(rows)
    ptr = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(r) for r in rows], out=ptr[1:])
    return ptr, np.array([x for r in rows for x in r], np.int64)


def _validate(g: Graph) -> None:
    n = len(g.values)
    graph = f"graph {name(g.name)!r}"
    for i, value in enumerate(g.values):
        if index(value.bytes) < 0:
            raise FormatError(f"{graph}: value {i} has {value.bytes} bytes; a size cannot be negative")
    produced: dict[int, int] = {}
    all_outputs = {v for o in g.ops for v in o.outputs}
    for i, op in enumerate(g.ops):
        where = f"{graph}: op {i} ({name(op.name)})"
        for v in (*op.inputs, *op.outputs, *op.inplace):
            if not 0 <= index(v) < n:
                raise FormatError(f"{where} names value {v}, but the graph has values 0 to {n - 1}")
        for v in op.inputs:
            if v in all_outputs and v not in produced:
                raise FormatError(f"{where} reads value {v} before it is produced; ops must stand in a valid order")
        for v in op.outputs:
            if v in produced:
                raise FormatError(f"{where} produces value {v}, which op {produced[v]} produces already")
            produced[v] = i
        if not set(op.inplace) <= set(op.inputs):
            raise FormatError(f"{where}: inplace {list(op.inplace)} must be inputs of the op")
        if op.inplace and not op.outputs:
            raise FormatError(f"{where} has inplace but no output")
        for key in (*DESCRIBING, "source"):
            if not isinstance(text := getattr(op, key), str):
                raise FormatError(f"{where}: {key!r} should be a string, not {printed(text)}")
        if op.kind and op.kind not in KINDS:
            raise FormatError(f"{where} is of kind {printed(op.kind)}; the kinds are {', '.join(KINDS)}")
        if not op.seconds >= 0 or index(op.flops) < 0 or index(op.workspace) < 0:
            raise FormatError(f"{where}: seconds, flops and workspace must be numbers of at least 0")
        if not op.seconds <= MOST_SECONDS:
            raise FormatError(f"{where} takes {op.seconds} seconds; that is no time of an op")
    for v in g.keep:
        if not 0 <= index(v) < n:
            raise FormatError(f"{graph}: keep names value {v}, but the graph has values 0 to {n - 1}")
    most = max((o.workspace for o in g.ops), default=0)
    if g.with_resident(2 * sum(v.bytes for v in g.values) + most) >= MOST_BYTES:
        raise FormatError(f"{graph} holds more bytes than can be counted; sizes are in bytes")
    if sum(o.flops for o in g.ops) >= MOST_FLOPS:
        raise FormatError(f"{graph} takes more FLOPs than can be counted")
    if not sum(o.seconds for o in g.ops) <= MOST_SECONDS:
        raise FormatError(f"{graph} takes more than {MOST_SECONDS:g} seconds; that is no time of a step")
    if g.link is not None:
        rates = (g.link.out_bytes_per_s, g.link.in_bytes_per_s)
        if not all(0 < x <= MOST_BYTES_PER_S for x in rates) or not 0 <= g.link.copy_s <= MOST_SECONDS:
            raise FormatError(f"{graph}: {g.link} is no link; bytes per second are above 0 and seconds at least 0")
    if g.resident_bytes < 0:
        raise FormatError(f"{graph}: resident_bytes is {g.resident_bytes}; it cannot be negative")
