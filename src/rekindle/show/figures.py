"""Single figures as the tables of the terminal show them."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from ..printed import printable
from ..shares import percent
from ..sizes import format_bytes


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
