"""The table by module: where the bytes between the plain step's peak and the planned peak come from.

A row's saving is the bytes that its values hold at the plain peak, less those that they hold at the planned peak. Every byte
beside the resident ones belongs to one row, so the savings add up to the difference of the two peaks exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ..model.graph import Graph
from ..model.rewriting import Plain
from .holding import WORKSPACE, Peak, is_gradient
from .modules import Node, module_tree

MODULE, OWN, OTHERS, LOSS, GRADIENTS, REWRITING, WAITS = (
    "module", "own ops", "others", "loss", "gradients", "rewriting", "waits",
)  # fmt: skip


ROWS_MOST = 12  # of modules; a guess
ROW_LEAST_SHARE = 0.004  # of all bytes and seconds, for a row of its own; a guess


@dataclass(frozen=True)
class Row:
    """One row of the table: modules of one pattern, or what belongs to no module.

    pattern : of the modules, e.g. "transformer.h.*.attn"; else what the row is in words.
    kind : "module" (with all below it), "own ops" (of a module whose submodules have rows of their own), "others" (modules
        that weigh little), "loss", "gradients" (all that backward makes, and what comes back from the loss), "workspace",
        "rewriting" (by how much the peak of the captured step is above the rewritten one's, where each runs its ops once),
        "waits" (seconds that the step waits for copies to the host and back).
    count : modules of the pattern.
    kept_bytes : held from the end of forward until backward, by the plan; plain_kept_bytes : by the plain step.
    recomputed_bytes : made again, over all runs after the first.
    plain_bytes, planned_bytes : held at the plain peak and at the planned one.
    added_runs, added_seconds, added_flops : runs of ops beyond the plain step's, and what they cost.
    moved_bytes : copied to the host by the plan, over all copies.
    """

    pattern: str
    kind: str
    count: int
    kept_bytes: int
    plain_kept_bytes: int
    recomputed_bytes: int
    plain_bytes: int
    planned_bytes: int
    added_runs: int
    added_seconds: float
    added_flops: int
    moved_bytes: int = 0

    @property
    def saved_bytes(self) -> int:
        """Bytes at the plain peak less bytes at the planned peak: negative where the plan holds more."""
        return self.plain_bytes - self.planned_bytes

    def to_json(self) -> dict[str, Any]:
        """The fields by name, and `saved_bytes`."""
        return asdict(self) | {"saved_bytes": self.saved_bytes}


class Sums:
    """Figures of single ops, to be added up for rows."""

    def __init__(self, graph: Graph, plain: Peak, planned: Peak):
        self.graph = graph
        size, producer = graph.arrays.bytes.tolist(), graph.arrays.producer.tolist()
        self.plain, self.planned = _by_op(plain), _by_op(planned)
        self.kept, self.plain_kept, self.moved = Counter[int](), Counter[int](), Counter[int]()
        for v, times in planned.moved.items():
            self.moved[producer[v]] += times * size[v]
        for counter, p in ((self.kept, planned), (self.plain_kept, plain)):
            for v in p.saved:
                counter[producer[v]] += size[v]
        self.again = (planned.runs - plain.runs).tolist()
        self.made = [sum(size[v] for v in op.outputs) for op in graph.ops]
        self.seconds = [abs(n) * op.seconds for n, op in zip(self.again, graph.ops, strict=True)]
        self.all_bytes = sum(map(self._bytes, range(len(graph.ops)))) or 1
        self.all_seconds = sum(self.seconds) or 1.0

    def _bytes(self, i: int) -> int:
        held = self.plain[i] + self.planned[i] + self.kept[i] + self.plain_kept[i]
        return held + self.moved[i] + abs(self.again[i]) * self.made[i]

    def weight(self, i: int) -> float:
        """How much the figures of an op say, as a share of all: the more, the more a row of its own is worth."""
        return self._bytes(i) / self.all_bytes + self.seconds[i] / self.all_seconds

    def row(self, pattern: str, kind: str, count: int, ops: Iterable[int]) -> Row:
        ops = list(ops)
        return Row(
            pattern, kind, count,
            kept_bytes=sum(self.kept[i] for i in ops),
            plain_kept_bytes=sum(self.plain_kept[i] for i in ops),
            recomputed_bytes=sum(self.again[i] * self.made[i] for i in ops),
            plain_bytes=sum(self.plain[i] for i in ops),
            planned_bytes=sum(self.planned[i] for i in ops),
            added_runs=sum(self.again[i] for i in ops),
            added_seconds=sum(self.again[i] * self.graph.ops[i].seconds for i in ops),
            added_flops=sum(self.again[i] * self.graph.ops[i].flops for i in ops),
            moved_bytes=sum(self.moved[i] for i in ops),
        )  # fmt: skip


def forward_tree(graph: Graph, loss: frozenset[int]) -> Node:
    """The modules of all ops that belong to forward and not to the loss."""
    return module_tree(graph, (i for i in range(len(graph.ops)) if i not in loss and not is_gradient(graph, i)))


def rows(graph: Graph, plain: Peak, planned: Peak, tree: Node, loss: frozenset[int]) -> tuple[Row, ...]:
    """The rows of the table: modules in the order of forward, then the loss, gradients and workspace.

    tree : as `forward_tree` gives it. loss : the ops of the loss.
    Their `saved_bytes` add up to `plain.bytes - planned.bytes`, and their `added_seconds` to the seconds that the plan adds.
    """
    sums = Sums(graph, plain, planned)
    found = _module_rows(sums, tree, ROWS_MOST)
    if loss:
        found.append(sums.row("the loss", LOSS, 1, loss))
    backward = [i for i in range(len(graph.ops)) if is_gradient(graph, i)]
    found.append(sums.row("gradients, in backward", GRADIENTS, 1, backward))
    workspaces = [sum(h.bytes for h in p.held if h.role == WORKSPACE) for p in (plain, planned)]
    if any(workspaces):
        found.append(Row("workspace of one op", WORKSPACE, 1, 0, 0, 0, workspaces[0], workspaces[1], 0, 0.0, 0))
    if planned.waited > 0:
        found.append(Row("waits for copies", WAITS, 1, 0, 0, 0, 0, 0, 0, planned.waited, 0))
    return tuple(found)


def rewriting_row(graph: Graph, plain_bytes: int, captured: Plain) -> Row:
    """The row of a step's rewrites: by how much the rewritten step differs from the captured one, each running its ops once.

    plain_bytes : the former's peak. The saving is negative where the rewritten step takes more.
    """
    less = captured.peak_bytes - plain_bytes
    seconds, flops = (float(graph.weights(cost)[graph.needed].sum()) for cost in ("seconds", "flops"))
    return Row(
        "the rewrites alone", REWRITING, 1, 0, 0, 0, max(0, less), max(0, -less), 0, seconds - captured.seconds,
        round(flops - captured.flops),
    )  # fmt: skip


def _by_op(p: Peak) -> Counter[int]:
    held = Counter[int]()
    for h in p.held:
        if h.role != WORKSPACE:
            held[h.op] += h.bytes
    return held


@dataclass
class _Drafted:
    """A row in the making: a node, with all below it or alone."""

    node: Node
    whole: bool
    ops: list[int]
    weight: float


def _module_rows(sums: Sums, root: Node, most: int) -> list[Row]:
    """At most `most` rows: the heaviest module is opened as long as they suffice for its submodules."""
    shown = [_entry(sums, root, True)]
    least = max(1e-12, ROW_LEAST_SHARE * shown[0].weight)
    opened = True
    while opened:
        opened = False
        for e in sorted(shown, key=lambda e: -e.weight):
            inner = _opened(sums, e) if e.weight >= least else []
            heavy = [x.weight for x in (*shown, *inner) if x is not e and x.weight >= least]
            has_light = len(heavy) < len(shown) - 1 + len(inner)
            # Submodules that weigh little each would all go to one row, which says less than this one.
            says_more = 2 * sum(x.weight for x in inner if x.weight >= least) >= e.weight
            if inner and says_more and len(heavy) + has_light <= most:
                shown = [x for x in shown if x is not e] + inner
                opened = True
                break
    shown.sort(key=lambda e: (min(e.ops, default=0), e.node.pattern, not e.whole))
    found = [_row(sums, e) for e in shown if e.weight >= least]
    if light := [e for e in shown if e.weight < least and e.ops]:
        count = sum(e.node.count for e in light)
        found.append(sums.row("other modules", OTHERS, count, [i for e in light for i in e.ops]))
    return found


def _entry(sums: Sums, node: Node, whole: bool) -> _Drafted:
    ops = list(node.all_ops()) if whole else node.ops
    return _Drafted(node, whole, ops, sum(sums.weight(i) for i in ops))


def _opened(sums: Sums, e: _Drafted) -> list[_Drafted]:
    """The submodules of an entry, and its own ops as one more; [] where it has no submodules."""
    if not e.whole or not e.node.children or not e.weight:
        return []
    own = [_entry(sums, e.node, False)] if e.node.ops else []
    return [*own, *(_entry(sums, child, True) for child in e.node.children.values())]


def _row(sums: Sums, e: _Drafted) -> Row:
    alone = not e.whole and bool(e.node.children)
    return sums.row(e.node.pattern, OWN if alone else MODULE, e.node.count, e.ops)
