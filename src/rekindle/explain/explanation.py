"""`Explanation`: where a plan's memory goes, by module, and who holds its peak."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..model.graph import Graph
from ..model.judge import simulate
from ..model.op_names import op_words
from ..model.rewriting import Rewriting
from ..model.schedule import Schedule
from .holding import Holder, holders, peak
from .loss import loss_ops
from .modules import folded_paths
from .rows import Row, forward_tree, rewriting_row, rows
from .screen import OnScreen, any_moved, holders_screen, remarks_screen, table_screen, table_unit, title
from .words import remarks

if TYPE_CHECKING:
    from ..model.plan import Plan

FORMAT = "rekindle.explanation/1"
HOLDERS_SHOWN = 10


@dataclass(frozen=True)
class Explanation(OnScreen):
    """Where a plan's memory goes, by module, and who holds its peak. Printed, it is one screen of 80 columns.

    name : of the graph.
    baseline_peak_bytes, peak_bytes : of the plain step and of the planned one, as the judge says, resident bytes included.
    resident_bytes : held during the whole step, in both: parameters, gradients, buffers, inputs.
    state_bytes : of the optimizer's state, within the resident bytes; None: not counted.
    added_seconds, seconds : that the plan adds, and of the whole planned step.
    cost, overhead : the unit of the plan's extra cost, and that cost as a share of the plain step's.
    rows : the table by module; for a rewritten step the last one is what the rewrites alone save. Their `saved_bytes` add up
        to `saved_bytes`, exactly.
    peak_op : the op at the planned peak in words; "" where nothing runs.
    holders : all holders at the planned peak, the largest first, those of repeated layers as one.
    remarks : sentences about the peak, with a remedy where one is known.
    """

    name: str
    baseline_peak_bytes: int
    peak_bytes: int
    resident_bytes: int
    state_bytes: int | None
    added_seconds: float
    seconds: float
    cost: str
    overhead: float
    rows: tuple[Row, ...]
    peak_op: str
    holders: tuple[Holder, ...]
    remarks: tuple[str, ...]

    @property
    def saved_bytes(self) -> int:
        """The plain peak less the planned one."""
        return self.baseline_peak_bytes - self.peak_bytes

    def to_json(self) -> dict[str, Any]:
        """The document `rekindle.explanation/1`: every field, and the derived ones."""
        return {
            "format": FORMAT, "name": self.name, "baseline_peak_bytes": self.baseline_peak_bytes, "peak_bytes": self.peak_bytes,
            "saved_bytes": self.saved_bytes, "resident_bytes": self.resident_bytes, "state_bytes": self.state_bytes,
            "added_seconds": self.added_seconds, "seconds": self.seconds, "cost": self.cost, "overhead": self.overhead,
            "rows": [r.to_json() for r in self.rows], "peak_op": self.peak_op,
            "holders": [h.to_json() for h in self.holders], "remarks": list(self.remarks),
        }  # fmt: skip

    def lines(self) -> list[str]:
        """The screen, line by line."""
        sizes = "kept from forward for backward, recomputed, and saved at the peak"
        if any_moved(self.rows):
            sizes = "kept for backward, copied to the host, recomputed, saved at the peak"
        return [
            *title(self),
            "",
            f"In {table_unit(self.rows)[0]}: {sizes}.",
            *table_screen(self.rows),
            "",
            "Held at the planned peak:",
            *holders_screen(self.holders, self.peak_bytes, HOLDERS_SHOWN),
            "",
            *remarks_screen(self.remarks),
        ]


def explain(plan: Plan) -> Explanation:
    """The explanation of a plan. O(steps + edges); needs no torch.

    Raises
    ------
    FormatError : the plan's schedule is none for its graph.
    """
    trace = plan.trace
    state = plan.captured.state_bytes if trace is None else getattr(trace, "state_bytes", None)
    found = explain_schedule(plan.graph, plan.schedule, plan.cost, state or None, plan.rewriting)
    return found if plan.rewriting is None else replace(found, overhead=plan.overhead)


def explain_schedule(
    graph: Graph,
    schedule: Schedule,
    cost: str = "seconds",
    state_bytes: int | None = None,
    rewriting: Rewriting | None = None,
) -> Explanation:
    """The explanation of a schedule for a graph.

    cost : the unit of `overhead`. state_bytes : of the optimizer's state, within the graph's resident bytes.
    rewriting : how the graph was made from a captured step, whose peak and seconds are then the plain ones.

    Raises
    ------
    FormatError : the schedule is none for the graph.
    """
    base = Schedule.baseline(graph)
    plain, planned = peak(graph, base), peak(graph, schedule)
    loss = loss_ops(graph)
    tree = forward_tree(graph, loss)
    largest = holders(graph, planned, folded_paths(tree))
    judged = simulate(graph, schedule, cost)
    table = rows(graph, plain, planned, tree, loss)
    plain_bytes, plain_seconds = plain.bytes, simulate(graph, base).seconds
    if rewriting is not None:
        table += (rewriting_row(graph, plain.bytes, rewriting.plain),)
        plain_bytes, plain_seconds = rewriting.plain.peak_bytes, rewriting.plain.seconds
    return Explanation(
        graph.name, plain_bytes, planned.bytes, graph.resident_bytes, state_bytes,
        judged.seconds - plain_seconds, judged.seconds, cost, judged.overhead,
        table, "" if planned.op is None else op_words(graph.ops[planned.op]),
        tuple(largest), remarks(graph, plain, planned, largest, loss, state_bytes, rewriting),
    )  # fmt: skip
