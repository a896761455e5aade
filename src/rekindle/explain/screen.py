"""The lines of an explanation on a terminal of 80 columns."""

from __future__ import annotations

import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, chop_cells

from ..printed import printable
from ..saying.shares import COST_WORDS, percent
from ..saying.sizes import format_bytes
from .holding import Holder
from .rows import MODULE, OTHERS, OWN, Row

if TYPE_CHECKING:
    from .explanation import Explanation

COLUMNS = 80
MIB = 2**20
GIB = 2**30
SIZES = ("kept_bytes", "recomputed_bytes", "saved_bytes")
SIZES_AND_COPIES = ("kept_bytes", "moved_bytes", "recomputed_bytes", "saved_bytes")
LONGEST_CELL = 400  # letters of a name that are looked at


class OnScreen(ABC):
    """Something that is printed as lines of at most 80 columns."""

    @abstractmethod
    def lines(self) -> list[str]:
        """The screen, line by line."""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def title(e: Explanation) -> list[str]:
    """The lines on the bytes that the plan saves, and on their price."""
    name = shortened(e.name, 40)
    price = f"{percent(e.overhead)} {COST_WORDS[e.cost]}"
    return [
        f"{name}: {format_bytes(e.peak_bytes)} at the peak, baseline {format_bytes(e.baseline_peak_bytes)},",
        f"{format_bytes(e.saved_bytes)} saved for {price}",
    ]


def table_screen(rows: Sequence[Row]) -> list[str]:
    """The table by module, with a line of sums. The figures of its column "MiB saved" add up to the saving within 1 %.

    Large sizes are in GiB, so that the names of modules have room.
    """
    unit, unit_bytes = table_unit(rows)
    heads = [
        "module",
        "×",
        "kept",
        *(["copied"] if any_moved(rows) else []),
        "recomputed",
        f"{unit} saved",
        added_head(rows),
    ]
    digits = decimals(abs(sum(r.saved_bytes for r in rows)) / unit_bytes)
    more = decimals(abs(sum(added(r, rows) for r in rows)))
    cells = [heads]
    for r in rows:
        count = f"{r.count:,}" if r.count > 1 and r.kind != OTHERS else ""
        cells.append([row_words(r), count, *_figures([r], rows, digits, more)])
    cells.append(["total", "", *_figures(rows, rows, digits, more)])
    return ruled(cells)


def ruled(cells: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table with a rule below its heads, and one above its sums."""
    lines = aligned(cells)
    rule = "─" * max(map(cell_len, lines))
    return [lines[0], rule, *lines[1:-1], rule, lines[-1]]


def table_unit(rows: Sequence[Any]) -> tuple[str, int]:
    """(unit of a table's sizes, its bytes): GiB from one TiB on. rows : of modules or of parts; their sums are shown too."""
    most = max(sum(abs(getattr(r, key)) for r in rows) for key in sizes_shown(rows))
    return ("MiB", MIB) if most < MIB * MIB else ("GiB", GIB)


def holders_screen(every: Sequence[Holder], peak_bytes: int, shown: int) -> list[str]:
    """The largest holders at the peak, and one line for all others."""
    if not every:
        return ["Nothing is held at the peak."]
    most, rest = every[:shown], every[shown:]
    cells = [["holds", "share", "×", "as", "value"]]
    for h in most:
        count = f"{h.count:,}" if h.count > 1 else ""
        cells.append(
            [format_bytes(h.bytes), _share(h.bytes, peak_bytes), count, h.role, printable(h.words[:LONGEST_CELL])]
        )
    if rest:
        left = sum(h.bytes for h in rest)
        cells.append(
            [format_bytes(left), _share(left, peak_bytes), f"{sum(h.count for h in rest):,}", "", "all others"]
        )
    return aligned(cells, left=(3, 4), free=4)


def remarks_screen(remarks: Sequence[str]) -> list[str]:
    """Sentences, each wrapped to the width of the screen."""
    return [line for remark in remarks for line in wrapped(remark)]


def wrapped(text: str) -> list[str]:
    """A text in lines of at most 80 columns; a word that is longer is cut into lines."""
    lines: list[str] = []
    for line in textwrap.wrap(printable(text), COLUMNS, break_long_words=False, break_on_hyphens=False) or [""]:
        lines += chop_cells(line, COLUMNS)
    return lines


def aligned(cells: Sequence[Sequence[str]], left: Sequence[int] = (0,), free: int = 0) -> list[str]:
    """Rows of cells as lines of at most 80 columns, with two blanks between cells.

    left : columns that are aligned to the left; the others are figures. free : the column that is shortened to fit.
    """
    widths = [max(cell_len(row[i]) for row in cells) for i in range(len(cells[0]))]
    widths[free] = max(4, min(widths[free], COLUMNS - sum(widths) + widths[free] - 2 * (len(widths) - 1)))
    lines = []
    for row in cells:
        parts = []
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            text = shortened(cell, width) if i == free else cell
            blank = " " * (width - cell_len(text))
            parts.append(text + blank if i in left else blank + text)
        lines.append("  ".join(parts).rstrip())
    return lines


def shortened(text: str, width: int) -> str:
    """The end of a text, with "…" before it where it is wider than `width` columns; safe to print."""
    text = printable(text[-LONGEST_CELL:])
    if cell_len(text) <= width:
        return text
    while cell_len(text) > width - 1:
        text = text[1:]
    return f"…{text}"


def row_words(r: Row) -> str:
    """The words for the modules of a row of the table."""
    if r.kind not in (MODULE, OWN):
        others = "1 other module" if r.count == 1 else f"{r.count:,} other modules"
        return others if r.kind == OTHERS else r.pattern
    if not r.pattern:
        return "(own ops)" if r.kind == OWN else "(the whole model)"
    return f"{r.pattern} (own ops)" if r.kind == OWN else r.pattern


def decimals(total: float, rows: int = 20) -> int:
    """Decimals with which figures of so many rows, each rounded, add up to `total` within 1 %: 1 to 6."""
    return min(6, max(1, math.ceil(math.log10(50 * rows / total)))) if total > 0 else 1


def added_head(rows: Sequence[Row]) -> str:
    """The unit of the last column: milliseconds, or what the graph knows in their place."""
    if any(r.added_seconds for r in rows):
        return "ms added"
    return "GFLOP added" if any(r.added_flops for r in rows) else "runs added"


def added(r: Row, rows: Sequence[Row]) -> float:
    """The cost that the plan adds in a row, in the unit of `added_head`."""
    head = added_head(rows)
    return (
        r.added_seconds * 1e3 if head == "ms added" else r.added_flops / 1e9 if head == "GFLOP added" else r.added_runs
    )


def any_moved(rows: Sequence[Any]) -> bool:
    """Whether a row says that the plan copies values to the host. rows : as in `table_unit`."""
    return any(getattr(r, "moved_bytes", 0) for r in rows)


def sizes_shown(rows: Sequence[Any]) -> tuple[str, ...]:
    """The fields of rows that their table shows."""
    return SIZES_AND_COPIES if any_moved(rows) else SIZES


def _figures(some: Sequence[Row], rows: Sequence[Row], digits: int, more: int) -> list[str]:
    sizes = [sum(getattr(r, key) for r in some) for key in sizes_shown(rows)]
    cost = sum(added(r, rows) for r in some)
    unit_bytes = table_unit(rows)[1]
    return [
        *(number(x / unit_bytes, digits) for x in sizes),
        number(cost, 0 if added_head(rows) == "runs added" else more),
    ]


def number(x: float, digits: int) -> str:
    """A figure with so many decimals; "-" for nothing."""
    return f"{round(x, digits) + 0.0:,.{digits}f}" if x else "-"  # adding 0.0 makes -0.0 positive


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else ""
