"""The result of lowering a captured step: its `Graph`, and the way back from ops and values to ATen calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import fx

from ...model.graph import Graph
from ..capture.captured import Captured
from ..operators.node_tensors import Part, is_member
from .writes import Writes


@dataclass
class OpCall:
    """The call behind an op of the Graph.

    kind : one of `model.graph.KINDS`, as in the op.
    node : the ATen call; for copy_ and snapshot the placeholder written or read; for accumulate the placeholder whose
        gradient is handed over.
    over : value over which the result may be written -> position of the argument that lies in that value.
    """

    kind: str
    node: fx.Node | None = None
    over: dict[int, int] = field(default_factory=dict)


@dataclass
class Lowered:
    """A Graph, and the calls and tensors that its ids stand for.

    calls : the call behind each op.
    parts : for each value, the tensors that live in its storage, as the producing node returns them.
    value_of : tensor -> value id, for placeholders and for the tensors that ops produce.
    views : nodes that are views, or take a member of the result of another node.
    snapshots : placeholder, or view of what forward writes in place -> value id of its copy from before the mutation.
    reads_snapshot : nodes that read such a copy.
    writes : the writes in place.
    """

    captured: Captured
    graph: Graph
    calls: list[OpCall] = field(default_factory=list)
    parts: list[list[Part]] = field(default_factory=list)
    value_of: dict[Part, int] = field(default_factory=dict)
    views: set[fx.Node] = field(default_factory=set)
    snapshots: dict[fx.Node, int] = field(default_factory=dict)
    reads_snapshot: set[fx.Node] = field(default_factory=set)
    writes: Writes = field(default_factory=Writes)

    def part_of(self, n: fx.Node) -> Part:
        """The tensor, as an op or the caller makes it, that this tensor is or is a view of."""
        while n in self.views and (n.args[0], n.args[1] if is_member(n) else None) not in self.value_of:
            n = n.all_input_nodes[0]
        return (n.args[0], n.args[1]) if is_member(n) else (n, 0)  # type: ignore[return-value]
