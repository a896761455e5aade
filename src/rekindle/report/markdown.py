"""Tables and numbers as Markdown; what is not known is a dash."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

Table = list[list[str]]


def slug(name: str) -> str:
    """A name as part of a file's: letters, digits, point, dash and underscore."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "x"


def table(lines: Table, texts: Sequence[int] = ()) -> str:
    """Markdown; the first line is the head; the first column and those in `texts` are words, the others numbers."""
    rule = ["---" if i == 0 or i in texts else "---:" for i in range(len(lines[0]))]
    whole = [lines[0], rule, *lines[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in whole)


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def geometric(values: Sequence[float]) -> float | None:
    """The geometric mean of values above 0."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def mb(x: float | None) -> str:
    """A size in MB, to the whole MB, or to three digits where it is small."""
    return "-" if x is None else f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def whole(x: float | None) -> str:
    return "-" if x is None else f"{x:,.0f}"


def percent(x: float | None) -> str:
    return "-" if x is None else f"{x:.1%}"


def share(part: float | None, whole: float | None) -> str:
    return percent(part / whole) if part is not None and whole else "-"


def plus(x: float | None) -> str:
    """An extra cost: 0.081 -> "+8.1%"."""
    return "-" if x is None else f"{x:+.1%}"


def seconds(x: float | None) -> str:
    return "-" if x is None else f"{x:.2f}"


def short(text: str, most: int = 300) -> str:
    """On one line, and cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 2] + " …"


def listed(values: Iterable[str | None]) -> str:
    return "; ".join(dict.fromkeys(v for v in values if v)) or "not recorded"


def span(values: Iterable[str | None]) -> str:
    """First and last day of dates as ISO writes them."""
    known = sorted({v[:10] for v in values if v})
    return "not recorded" if not known else known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}"
