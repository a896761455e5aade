"""Tables for the terminal, as rich renderables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ..model.plan import Plan
from ..model.verdict import bound_words, least_cost_words
from ..printed import name
from ..problem import Solver
from ..shares import COST_WORDS, percent, percent_down
from ..sizes import format_bytes
from .figures import figure, yes_no


def plan_table(plan: Plan) -> Table:
    """The memory and the cost of a plan, beside the plain step's."""
    table = _table(f"{name(plan.graph.name)}: {len(plan.graph.ops):,} ops", "", "plain", "planned")
    table.add_row("peak", format_bytes(plan.baseline_peak_bytes), format_bytes(plan.peak_bytes))
    table.add_row(
        "  of which activations",
        format_bytes(plan.baseline_activation_bytes),
        format_bytes(plan.activation_peak_bytes),
    )
    table.add_row("  these in one block", "", format_bytes(plan.arena_bytes))
    table.add_row("  these without sharing", "", format_bytes(plan.sum_bytes))
    runs = plan.schedule.runs
    table.add_row("op runs", f"{len(set(runs)):,}", f"{len(runs):,}")
    table.add_row(f"extra {COST_WORDS[plan.cost]}", "", percent(plan.overhead))
    if least := least_cost_words(plan):
        table.add_row("  at least, in this budget", "", least)
    if plan.cost != "flops":
        table.add_row("extra FLOPs", "", percent(plan.flops_overhead))
    table.add_row("no schedule below", "", bound_words(plan))
    if plan.splitting_op:
        table.add_row("to go lower, split", "", f"{plan.splitting_words}: it alone needs that much")
    table.add_row("solver", "", f"{name(plan.solver)}, {plan.status}{plan.doubt}")
    return table


def frontier_table(plans: Sequence[Plan]) -> Table:
    """The memory/time curve: one row per plan. "At least" bounds the extra cost within the plan's peak, "no schedule below"
    the peak within the plan's extra cost."""
    unit = COST_WORDS[plans[0].cost] if plans else "step time"
    title = f"{name(plans[0].graph.name)}: memory against {unit}" if plans else "no plan"
    columns = (
        "peak",
        "activations",
        "of plain",
        f"extra {unit}",
        "at least",
        "extra FLOPs",
        "no schedule below",
        "status",
    )
    table = _table(title, *columns)
    for p in plans:
        share = p.activation_peak_bytes / p.baseline_activation_bytes if p.baseline_activation_bytes else 1.0
        table.add_row(
            format_bytes(p.peak_bytes), format_bytes(p.activation_peak_bytes), f"{share:.0%}", percent(p.overhead),
            percent_down(p.least_overhead), percent(p.flops_overhead), format_bytes(p.bound_bytes),
            p.status + ("" if p.verified else ", not verified"),
        )  # fmt: skip
    return table


def solvers_table(solvers: Iterable[Solver]) -> Table:
    """One row per solver: graphs, objective, optimality, complexity, citation."""
    table = _table("solvers", "name", "graphs", "minimises", "optimal", "complexity", "citation", numbers=False)
    for s in solvers:
        table.add_row(s.name, s.graphs, s.objective, s.optimal or "no claim", s.complexity, s.citation)
    table.show_lines = True
    return table


BENCH_COLUMNS = (
    "model", "batch", "method", "peak_mb", "plain_mb", "flops_overhead", "seconds_overhead", "overhead", "gap",
    "published_ogc_mb", "measured_ogc_nonreentrant_mb", "solve_seconds", "status", "note",
)  # fmt: skip


def bench_table(rows: Sequence[Mapping[str, Any]], title: str = "bench") -> Table:
    """One row per model and method. Rows with more keys than `BENCH_COLUMNS` show only these; `--json` prints them all."""
    columns = list(dict.fromkeys(k for row in rows for k in row))
    if len(columns) > len(BENCH_COLUMNS):
        columns = [c for c in BENCH_COLUMNS if c in columns and any(row.get(c) not in (None, "") for row in rows)]
    table = _table(title, *(c.replace("_", " ") for c in columns))
    last = None
    for row in rows:
        if last is not None and row.get("model") != last:
            table.add_section()
        last = row.get("model")
        table.add_row(*(figure(c, row.get(c)) for c in columns))
    return table


def changes_table(changes: Sequence[Mapping[str, Any]]) -> Table:
    """The changes between two sets of benchmark rows; each entry is a `bench.regress.Change.to_json()`."""
    table = _table("changes", "model", "method", "cost", "field", "old", "new", "regression")
    for c in changes:
        values = (figure(c["field"], c[k]) for k in ("old", "new"))
        table.add_row(
            f"{c['suite']}: {c['model']}", c["method"], c["cost"] or "", c["field"], *values,
            Text("REGRESSION", "bold red") if c["regression"] else "",
        )  # fmt: skip
    return table


def demo_table(row: Mapping[str, Any]) -> Table:
    """Predicted beside measured figures of one model; `row` is an entry of `demo.run(...)["models"]`."""
    table = _table(f"{row['model']}, batch {row['batch']}", "", "predicted", "measured")
    peak = row["measured_peak_bytes"]
    table.add_row(
        "plain activation peak", *(format_bytes(row[k]) for k in ("modelled_plain_bytes", "plain_peak_bytes"))
    )
    table.add_row("budget for activations", format_bytes(row["budget_bytes"]), "")
    kept = Text(format_bytes(peak), "green" if peak <= row["budget_bytes"] else "bold red")
    table.add_row("planned activation peak", format_bytes(row["predicted_peak_bytes"]), kept)
    table.add_row("extra FLOPs", percent(row["flops_overhead"]), figure("overhead", row["measured_flops_overhead"]))
    table.add_row("extra time", percent(row["overhead"]), percent(row["measured_overhead"]))
    table.add_section()
    for key, compared in (("loss", "loss"), ("gradients", "gradients"), ("buffers", "buffers"), ("rng", "RNG state")):
        table.add_row(f"{compared} bitwise equal", "", yes_no(row[f"{key}_equal"]))
    table.add_row("weights after training bitwise equal", "", yes_no(row["weights_equal"]))
    return table


def losses_table(row: Mapping[str, Any]) -> Table:
    """The losses of one training, plain and planned, side by side."""
    table = _table(f"{row['model']}: training losses", "step", "plain", "planned", "bitwise equal")
    for i, (a, b) in enumerate(zip(row["plain_losses"], row["planned_losses"], strict=True), 1):
        table.add_row(str(i), f"{a:.9g}", f"{b:.9g}", yes_no(a == b))
    return table


def _table(title: str, *columns: str, numbers: bool = True) -> Table:
    """An empty table. numbers : every column but the first holds figures, aligned to the right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if numbers and i else "left", overflow="fold")
    return table
