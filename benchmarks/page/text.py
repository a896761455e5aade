"""Numbers and tables as Markdown; a missing figure is a dash."""

from __future__ import annotations

import html
import re
import statistics
from collections.abc import Iterable, Sequence

import pandas as pd


def table(lines: Iterable[dict[str, str]], texts: Sequence[str] = ()) -> str:
    """A Markdown table. The first column and the columns in `texts` are left-aligned words, the others right-aligned
    numbers."""
    frame = pd.DataFrame(list(lines))
    rule = ["---" if i == 0 or c in texts else "---:" for i, c in enumerate(frame.columns)]
    cells = [list(frame.columns), rule, *frame.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(str(c).replace("|", "\\|") for c in line) + " |" for line in cells)


def escaped(name: str) -> str:
    """A name inside HTML and Markdown: no character of it starts a tag, a link or a picture."""
    return re.sub(r"([\\`*_\[\]!|])", r"\\\1", html.escape(name))


def slug(name: str) -> str:
    """A name as part of a file name: letters, digits, point, dash and underscore."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "x"


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean; None without values."""
    return statistics.mean(values) if len(values) else None


def geometric(values: Sequence[float]) -> float | None:
    """The geometric mean of values above 0; None without values."""
    return statistics.geometric_mean(values) if len(values) else None


def formatted(x: float | None, form: str) -> str:
    """A figure in a format of Python; a dash if it is missing."""
    return "-" if x is None or pd.isna(x) else format(x, form)


def mb(x: float | None) -> str:
    """A size in MB: whole MB from 100 on, three digits below."""
    return formatted(x, ",.0f" if x is not None and x >= 100 else ".3g")


def whole(x: float | None) -> str:
    return formatted(x, ",.0f")


def percent(x: float | None) -> str:
    return formatted(x, ".1%")


def plus(x: float | None) -> str:
    """An extra cost: 0.081 -> "+8.1%"."""
    return formatted(x, "+.1%")


def ratio(x: float | None) -> str:
    return formatted(x, ".2f")


def short(text: str, most: int = 300) -> str:
    """The text on one line, cut after `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 2] + " …"


def listed(values: pd.Series) -> str:
    """The distinct values, in order."""
    return "; ".join(dict.fromkeys(v for v in values.dropna() if v)) or "not recorded"


def span(dates: pd.Series) -> str:
    """First and last day of ISO dates."""
    days = sorted({d[:10] for d in dates.dropna()})
    return "not recorded" if not days else days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
