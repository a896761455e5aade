"""Tables of an estimate and of the batches that fit, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ..estimates.batches import BatchRow
from ..estimates.estimate import PARTS, PATH_MOST, Estimate, format_seconds, rate, short
from ..printed import name
from ..saying.shares import percent
from ..saying.sizes import format_bytes
from .text import table_of


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


def batches_table(rows: Sequence[BatchRow], budget: int) -> Table:
    """One row per batch: the plain step, the planned one, its extra time, and which of them fits."""
    table = table_of(
        f"by batch, within {format_bytes(budget)}", "batch", "plain", "planned within", "extra time", "fits"
    )
    for r in rows:
        planned = "-" if r.planned_bytes is None else format_bytes(r.planned_bytes)
        extra = "-" if r.overhead is None else percent(r.overhead)
        table.add_row(f"{r.batch:,}", format_bytes(r.plain_bytes), planned, extra, r.fits)
    return table
