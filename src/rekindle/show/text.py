"""Tables for the terminal, as rich renderables."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..estimates.batches import BatchRow
from ..estimates.estimate import PARTS, PATH_MOST, Estimate, format_seconds, rate, short
from ..model.op_names import op_words_of
from ..model.plan import Plan
from ..model.verdict import AT_BEST, AT_BEST_EXTRA, LEAST_SAID, bound_words, least_cost_words, splitting_claim
from ..parts.plan import PartsPlan
from ..printed import name, printable
from ..problem import Solver
from ..saying.shares import COST_WORDS, percent, percent_down
from ..saying.sizes import format_bytes

if TYPE_CHECKING:
    from ..zoo import Listed

# The name of the captured step's own memory, which is not the plain step's: "plain" is eager PyTorch everywhere.
BASELINE = (
    "baseline: the step with each op once and no value kept past its last use; plain PyTorch takes as much or more"
)


def plan_table(plan: Plan | PartsPlan) -> Table:
    """The memory and the cost of a plan, beside the baseline's."""
    if plan.kind == "parts":
        table = table_of(f"{name(plan.module_name)}: planned in parts", "", "", numbers=False)
        table.show_header = False
        for row in plan._rows():
            table.add_row(*row)
        return table
    table = table_of(f"{name(plan.graph.name)}: {len(plan.graph.ops):,} ops", "", "baseline", "planned")
    table.caption, table.caption_justify = BASELINE, "left"
    table.add_row("peak", format_bytes(plan.baseline_peak_bytes), format_bytes(plan.peak_bytes))
    table.add_row(
        "  of which activations",
        format_bytes(plan.baseline_activation_bytes),
        format_bytes(plan.activation_peak_bytes),
    )
    table.add_row("  laid out in one block", "", format_bytes(plan.arena_bytes))
    runs = plan.schedule.runs
    table.add_row("op runs", "" if plan.rewriting else f"{len(set(runs)):,}", f"{len(runs):,}")
    table.add_row(f"extra {COST_WORDS[plan.cost]}", "", percent(plan.overhead))
    if least := least_cost_words(plan):
        table.add_row(AT_BEST_EXTRA, "", least)
    if plan.cost != "flops":
        table.add_row("extra FLOPs", "", percent(plan.flops_overhead))
    if plan.moved_bytes:
        table.add_row("copied to the host", "", format_bytes(plan.moved_bytes))
        table.add_row("  at once, at most", "", format_bytes(plan.host_bytes))
    table.add_row(AT_BEST, "", bound_words(plan, with_op=False))
    if plan.bound_op:
        table.add_row("  set by", "", op_words_of(plan.graph, plan.bound_op))
    if plan.splitting_op:
        table.add_row("to go lower, split", "", splitting_claim(plan))
    for label, words in () if plan.rewriting is None else plan.rewriting.rows():
        table.add_row(label, "", words)
    table.add_row("solver", "", f"{name(plan.solver)}, {plan.status}{plan.doubt}")
    return table


def graph_table(figures: Mapping[str, Any]) -> Table:
    """The figures of a captured step, as `cli.planning.graph_figures` gives them."""
    table = table_of(f"{name(figures['name'])}: one training step", "", "")
    table.show_header = False
    table.add_row("ops", f"{figures['ops']:,}")
    table.add_row("values", f"{figures['values']:,}")
    table.add_row("peak", format_bytes(figures["baseline_peak_bytes"]))
    table.add_row("  of which activations", format_bytes(figures["baseline_activation_bytes"]))
    table.add_row("  held throughout", format_bytes(figures["resident_bytes"]))
    table.add_row("time", f"{1e3 * figures['seconds']:,.4g} ms")
    table.add_row("arithmetic", f"{figures['flops'] / 1e9:,.4g} GFLOP")
    table.add_row("graph", figures["graph_hash"][:12])
    return table


def frontier_table(plans: Sequence[Plan]) -> Table:
    """The memory/time curve: the cheapest plan of each peak that reads differently. "Extra at best" bounds the extra
    cost within the plan's peak, "peak at best" the peak within the plan's extra cost."""
    unit = COST_WORDS[plans[0].cost] if plans else "step time"
    shown = {format_bytes(p.peak_bytes): p for p in reversed(plans)}  # the cheapest plan of each peak comes last
    left_out = len(plans) - len(shown)
    title = f"{name(plans[0].graph.name)}: memory against {unit}" if plans else "no plan"
    columns = ("peak", "of baseline", f"extra {unit}", "extra at best", "extra FLOPs", "peak at best", "status")
    table = table_of(title, *columns)
    for p in reversed(shown.values()):
        share = p.activation_peak_bytes / p.baseline_activation_bytes if p.baseline_activation_bytes else 1.0
        least = percent_down(p.least_overhead) if p.least_overhead >= LEAST_SAID else "-"
        table.add_row(
            format_bytes(p.peak_bytes), f"{100 * share:.0f} %", percent(p.overhead), least, percent(p.flops_overhead),
            format_bytes(p.bound_bytes), p.status + ("" if p.verified else "?"),
        )  # fmt: skip
    notes = ["extra at best: no plan of that peak costs less; peak at best: none of that extra cost takes less"]
    notes += [f"{left_out} more plans take as much to the last digit: --json lists them"] if left_out else []
    notes += [] if all(p.verified for p in plans) else ["? as its file says: not verified"]
    table.caption, table.caption_justify = "\n".join(notes), "left"
    return table


def solvers_table(solvers: Iterable[Solver]) -> Table:
    """One line per solver: the graphs that it takes, and what it is."""
    table = table_of("solvers", "name", "graphs", "", numbers=False)
    for s in solvers:
        table.add_row(s.name, s.graphs, _clause(s.doc.partition("\n")[0]))
    return table


def _clause(line: str, most: int = 54) -> str:
    """The beginning of a sentence, up to the last mark that leaves it short enough."""
    if len(line) <= most:
        return line
    ends = [m.start() for m in re.finditer(r"[:;,.] ", line) if m.start() <= most]
    return line[: ends[-1]] if ends else textwrap.shorten(line, most, placeholder="…")


def solver_table(s: Solver) -> Table:
    """All that is known of one solver."""
    table = table_of(s.name, "", "", numbers=False)
    table.show_header = False
    for label, words in (
        ("", " ".join(s.doc.split())), ("graphs", "chains; others as a series of blocks" if s.graphs == "chain" else "any"),
        ("minimises", s.objective), ("optimal", s.optimal or "no claim"), ("complexity", s.complexity),
        ("citation", s.citation),
    ):  # fmt: skip
        table.add_row(label, words)
    return table


def zoo_table(models: Iterable[Listed]) -> Table:
    """One line per model of the zoo."""
    table = table_of("zoo", "name", "suite", "batch", "parameters")
    table.columns[1].justify = "left"
    for m in models:
        table.add_row(m.name, m.suite or "-", f"{m.batch:,}", f"{m.parameters / 1e6:,.1f} M")
    return table


BENCH_COLUMNS = {
    "peak_mb": "peak MB", "of_plain": "of plain", "flops_overhead": "FLOPs", "overhead": "cost", "gap": "gap",
    "published_ogc_mb": "OGC MB",
}  # fmt: skip


def bench_table(rows: Sequence[Mapping[str, Any]], title: str = "bench") -> Table:
    """One row per method below each model, and the notes of those that failed at the end. FLOPs and cost are the extra ones,
    OGC the published solver's peak. `--json` prints the other fields of the rows."""
    rows = [{**row, "of_plain": _share(row.get("peak_mb"), row.get("plain_mb"))} for row in rows]
    shown = [c for c in BENCH_COLUMNS if any(row.get(c) not in (None, "") for row in rows)]
    table = table_of(title, "model, method", *(BENCH_COLUMNS[c] for c in shown))
    for column in table.columns[1:]:
        column.no_wrap = True
    last = None
    for row in rows:
        if row.get("model") != last:
            last = row.get("model")
            batch = f" (batch {row['batch']:,})" if row.get("batch") else ""
            table.add_row(Text(printable(f"{last}{batch}"), "bold"))
        table.add_row(f"  {printable(str(row.get('method')))}", *(_bench_figure(c, row.get(c)) for c in shown))
    notes = [
        f"{r.get('model')} {r.get('method')}: {r['note']}" for r in rows if r.get("status") != "ok" and r.get("note")
    ]
    if notes:
        table.caption, table.caption_justify = Text("\n".join(map(printable, notes))), "left"
    return table


def _share(part: float | None, whole: float | None) -> str | None:
    return f"{100 * part / whole:.0f} %" if part is not None and whole else None


def _bench_figure(column: str, x: Any) -> str:
    if isinstance(x, float) and column.endswith("_mb"):
        return f"{x:,.0f}" if x >= 100 else f"{x:,.2f}"
    return figure(column, x)


DEMO_NOTE = (
    "Predicted time counts the ops that run again, against the baseline. Measured time compares whole steps with plain "
    "PyTorch's: a planned step has less work around its ops, and can even be faster."
)


def demo_table(row: Mapping[str, Any]) -> Table:
    """Predicted beside measured figures of one model; `row` is an entry of `demo.run(...)["models"]`."""
    table = table_of(f"{row['model']}, batch {row['batch']}", "", "predicted", "measured")
    peak = row["measured_peak_bytes"]
    table.add_row("plain activation peak", "", format_bytes(row["plain_peak_bytes"]))
    table.add_row("baseline: each op once", format_bytes(row["modelled_plain_bytes"]), "")
    table.add_row("budget for activations", format_bytes(row["budget_bytes"]), "")
    kept = Text(format_bytes(peak), "green" if peak <= row["budget_bytes"] else "bold red")
    table.add_row("planned activation peak", format_bytes(row["predicted_peak_bytes"]), kept)
    table.add_row("extra FLOPs", percent(row["flops_overhead"]), figure("overhead", row["measured_flops_overhead"]))
    table.add_row("extra time", percent(row["overhead"]), percent(row["measured_overhead"]))
    table.add_section()
    for key, compared in (("loss", "loss"), ("gradients", "gradients"), ("buffers", "buffers"), ("rng", "RNG state")):
        table.add_row(f"{compared} bitwise equal", "", yes_no(row[f"{key}_equal"]))
    table.add_row("weights after training bitwise equal", "", yes_no(row["weights_equal"]))
    table.caption, table.caption_justify = DEMO_NOTE, "left"
    return table


def losses_table(row: Mapping[str, Any]) -> Table:
    """The losses of one training, plain and planned, side by side."""
    table = table_of(f"{row['model']}: training losses", "step", "plain", "planned", "bitwise equal")
    for i, (a, b) in enumerate(zip(row["plain_losses"], row["planned_losses"], strict=True), 1):
        table.add_row(str(i), f"{a:.9g}", f"{b:.9g}", yes_no(a == b))
    return table


def table_of(title: str, *columns: str, numbers: bool = True) -> Table:
    """An empty table. numbers : every column but the first holds figures, aligned to the right."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if numbers and i else "left", overflow="fold")
    return table


def figure(name: str, x: Any) -> str:
    """A value in the unit that the end of its name tells: `_bytes`, a share (`overhead`, `gap`), or plain."""
    if x is None:
        return "-"
    if isinstance(x, bool):
        return "yes" if x else "no"
    if not isinstance(x, int | float):
        return printable(str(x))
    if name.endswith("_bytes"):
        return format_bytes(x)
    if name.endswith("overhead"):
        return percent(x)
    if name == "gap":
        return f"{100 * x:.1f} %"
    return f"{x:,}" if isinstance(x, int) else f"{x:,.4g}" if abs(x) < 1000 else f"{x:,.1f}"


def yes_no(x: bool | None) -> Text:
    """A coloured yes or NO; "not compared" for None."""
    if x is None:
        return Text("not compared", "yellow")
    return Text("yes", "green") if x else Text("NO", "bold red")


def estimate_table(e: Estimate) -> Table:
    """The memory at the peak, by what takes it, and the peak of each phase."""
    table = table_of(f"{name(e.model)}: memory of a plain step", "", "bytes", "")
    for words, field in PARTS:
        if size := getattr(e, field):
            table.add_row(words, format_bytes(size), f"{100 * size / e.peak_bytes:.0f} %")
    table.add_section()
    table.add_row("peak", format_bytes(e.peak_bytes), "100 %")
    for phase, size in e.phases:
        table.add_row(f"  in the {phase}", format_bytes(size), f"{100 * size / e.peak_bytes:.0f} %")
    return table


def modules_table(e: Estimate) -> Table:
    """The heaviest modules by bytes that they save for backward."""
    table = table_of("heaviest modules", "module", "saved for backward", "recompute", "bytes per second")
    table.columns[0].max_width = PATH_MOST
    for m in e.modules:
        table.add_row(short(m.path), format_bytes(m.saved_bytes), format_seconds(m.recompute_seconds), rate(m))
    return table


def batches_table(budget: int, row: BatchRow | None = None) -> Table:
    """The table of batches with one row, or none: the plain step, the planned one, its extra time, and which of them fits.

    Its columns are as wide for every row, so that rows can be printed one after another.
    """
    table = table_of(
        f"by batch, within {format_bytes(budget)}", "batch", "plain", "planned within", "extra time", "fits"
    )
    for column, width in zip(table.columns, (9, 10, 14, 10, 11), strict=True):
        column.width = width
    if row is not None:
        planned = "-" if row.planned_bytes is None else format_bytes(row.planned_bytes)
        extra = "-" if row.overhead is None else percent(row.overhead)
        table.add_row(f"{row.batch:,}", format_bytes(row.plain_bytes), planned, extra, row.fits)
    return table
