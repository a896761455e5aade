"""Two plans side by side on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..explain.comparison import Comparison, Difference, Sizes
from ..explain.screen import MIB, aligned, decimals, number, wrapped
from ..saying.shares import percent, percent_down
from ..saying.sizes import format_bytes
from .text import figure

MODULES_MOST = 16
LONGEST_WORD = 24  # letters of a figure
LABELS = {
    "activation_peak_bytes": "  of which activations", "baseline_peak_bytes": "baseline peak",
    "resident_bytes": "held throughout",
    "measured_bytes": "peak as measured", "seconds": "ms a step", "overhead": "extra cost", "flops_overhead": "extra FLOPs",
   
    "moved_bytes": "copied to the host", "host_bytes": "  at once, at most",
    "bound_bytes": "peak at best, at this cost", "least_overhead": "extra cost at best", "cost": "unit of cost",
}  # fmt: skip
CERTIFIED = ("bound_bytes", "gap", "least_overhead", "status")  # figures that are a plan's certificate
COPIES = ("moved_bytes", "host_bytes")  # figures of plans that copy values to the host
DOUBT = ", not verified"  # in place of `Plan.doubt`, for which a column has no room


def compared_view(c: Comparison) -> list[str]:
    """The figures of both plans, then the modules that differ, then where the graphs differ: lines of at most 80 columns."""
    lines = [*wrapped(f"a: {c.a}"), *wrapped(f"b: {c.b}"), "", *_figures(c), ""]
    if modules := [d for d in c.modules if _shown(d.a) != _shown(d.b)]:
        lines += ["Modules that differ, in MiB:", *_modules(modules), ""]
    elif not c.graphs:
        same = (
            "Every module keeps and recomputes the same in both plans"
            if c.modules
            else "No module is treated differently"
        )
        lines += [f"{same}.", ""]
    for sentence in c.graphs or ("Both plans are for the same graph, with the same costs.",):
        lines += wrapped(sentence)
    return lines


def _figures(c: Comparison) -> list[str]:
    cells = [["", "a", "b", ""]]
    for key, (x, y) in c.figures.items():
        if key != "covered" and (x, y) != (None, None) and not (key in COPIES and not x and not y):
            label = LABELS.get(key, key.removesuffix("_bytes").replace("_", " "))
            doubts = [key in CERTIFIED and v is False for v in c.figures.get("verified", (None, None))]
            words = [_words(key, value, doubt) for value, doubt in zip((x, y), doubts, strict=True)]
            cells.append([label, *words, "" if x == y else "*"])
    lines = [*aligned(cells), "* differs"]
    if False in c.figures.get("verified", ()):
        lines.append("not verified: the file says so, and it was not proven again in short time")
    return lines


def _words(key: str, x: Any, doubt: bool) -> str:
    """A figure in at most `LONGEST_WORD` letters. doubt : it belongs to a certificate that was not verified."""
    if key == "goal":
        return _goal(x)
    if key == "seconds" and x is not None:
        return f"{1e3 * x:,.4g}"
    text = percent_down(x) if key == "least_overhead" and x is not None else figure(key, x)
    if doubt and x is not None:
        return text + DOUBT
    return text if len(text) <= LONGEST_WORD else text[: LONGEST_WORD - 1] + "…"


def _goal(goal: dict[str, Any]) -> str:
    if "budget" in goal:
        return f"within {format_bytes(goal['budget'])}"
    if "fraction" in goal:
        return f"within {goal['fraction']:.0%} of baseline".replace("%", " %")
    return f"{percent(goal['max_overhead'])} at most" if "max_overhead" in goal else "least memory"


def _modules(differences: Sequence[Difference]) -> list[str]:
    shown, others = differences[:MODULES_MOST], differences[MODULES_MOST:]
    copies = any(d.a.moved_bytes or d.b.moved_bytes for d in differences)
    digits = decimals(max(max(_shown(x)) for d in differences for x in (d.a, d.b)) / MIB)
    cells = [["module", "×", "kept a", "b", "recomputed a", "b", *(["copied a", "b"] if copies else [])]]
    cells += [_row(d.pattern, d.count, d.a, d.b, digits, copies) for d in shown]
    if others:
        a, b = (sum((getattr(d, side) for d in others), Sizes()) for side in ("a", "b"))
        cells.append(_row(f"{len(others)} other{'s' if len(others) > 1 else ''}", 1, a, b, digits, copies))
    return aligned(cells)


def _row(pattern: str, count: int, a: Sizes, b: Sizes, digits: int, copies: bool) -> list[str]:
    sizes = [s for pair in zip(_shown(a), _shown(b), strict=True) for s in pair][: 6 if copies else 4]
    return [pattern, f"{count:,}" if count > 1 else "", *(number(s / MIB, digits) for s in sizes)]


def _shown(x: Sizes) -> tuple[int, int, int]:
    return x.kept_bytes, x.recomputed_bytes, x.moved_bytes
