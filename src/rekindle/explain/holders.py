"""The largest holders of memory at a plan's peak; equal values of repeated layers are one holder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..model.graph import Graph, Op
from ..model.op_names import does
from .holding import Peak
from .modules import pattern_of

RESIDENT = "resident"


@dataclass(frozen=True)
class Holder:
    """Bytes that are held at the peak.

    bytes : all of them together. count : how many values.
    role : as in `holding.Held`; "resident" for what is held during the whole step.
    module : pattern of the modules that made the values. operator : e.g. "addmm". shape : of one value, e.g. "f32[8192,4096]".
    """

    bytes: int
    count: int
    role: str
    module: str
    operator: str
    shape: str

    @property
    def words(self) -> str:
        """The holder in one line, for a terminal: "transformer.h.*.mlp.act tanh f32[8,1024,4096]"."""
        return " ".join(part for part in (self.module, self.operator, self.shape) if part)

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def holders(graph: Graph, p: Peak, patterns: dict[str, str]) -> list[Holder]:
    """All holders at the peak, the largest first; their bytes add up to `p.bytes`.

    patterns : module path -> its folded pattern, as `folded_paths` gives it.
    """
    found: dict[tuple[str, str, str, str], list[int]] = {}
    for h in p.held:
        op = graph.ops[h.op]
        key = h.role, pattern_of(op.module, patterns), does(op), _shape(graph, op, h.value)
        found.setdefault(key, []).append(h.bytes)
    every = [Holder(sum(sizes), len(sizes), *key) for key, sizes in found.items()]
    if graph.resident_bytes:
        every.append(Holder(graph.resident_bytes, 1, RESIDENT, "", "parameters, gradients, buffers, inputs", ""))
    return sorted(every, key=lambda h: -h.bytes)


def _shape(graph: Graph, op: Op, value: int | None) -> str:
    """The shape of a value, as far as the graph says it: of the first output."""
    if value is None:
        return op.shape
    place = op.outputs.index(value)
    return op.shape if place == 0 else f"(output {place + 1})"
