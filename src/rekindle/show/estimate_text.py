"""Tables of an estimate and of the batches that fit, for the terminal."""

from __future__ import annotations

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
