"""How a plan's step was rewritten, in words: rows of a table, a clause of the plan's sentence, all of it in one line.

Torch-free: `Rewrite.where` was written when the rewrite was found.
"""

from __future__ import annotations

from ..printed import name
from .rewriting import CONVOLUTIONS, PICKED, SAVES, SLICES, Rewriting

STEP = "this rewritten step"  # for which claims of a plan with rewrites hold
NAMED_MOST = 3  # parameters that are named

Row = tuple[str, str]


def rows(r: Rewriting) -> list[Row]:
    """One row for each rewrite, and one for the gradients that it changes: ("in slices", "29 ops in 8 slices: features.0-16,
    along the batch")."""
    found = []
    for s in r.steps:
        n = len(s.ops)
        label, words = {
            SAVES: ("smaller saves", f"for {_ops(n)}"),
            CONVOLUTIONS: ("convolutions", f"backward of {n:,} in two calls"),
            PICKED: ("picked first", f"log-probabilities of {n:,} {'loss' if n == 1 else 'losses'}"),
            SLICES: ("in slices", f"{_ops(n)} in {s.slices:,} slices"),
        }[s.kind]
        found.append((label, f"{words}: {name(s.where)}" if s.where else words))
    return [*found, *([("up to rounding", sums(r))] if r.sums else [])]


def sums(r: Rewriting) -> str:
    """The parameters whose gradients are added up in another order, and how far off that was measured to be."""
    named = ", ".join(name(x) for x in r.sums[:NAMED_MOST])
    more = f" and {len(r.sums) - NAMED_MOST:,} more" if len(r.sums) > NAMED_MOST else ""
    off = "not measured" if r.sums_error is None else f"largest relative difference {r.sums_error:.1e}"
    return f"gradients of {named}{more}; {off}"


def clause(r: Rewriting) -> str:
    """What was rewritten, in a few words: "18 smaller saves and 29 ops in 8 slices, 2 gradients up to rounding"."""
    found = []
    if saves := r.ops_of(SAVES):
        found.append(f"{saves:,} smaller save{'' if saves == 1 else 's'}")
    if sliced := r.ops_of(SLICES):
        counts = {s.slices for s in r.slices}
        found.append(f"{_ops(sliced)} in {f'{counts.pop():,} ' if len(counts) == 1 else ''}slices")
    if not found:
        found.append(f"{_ops(sum(len(s.ops) for s in r.steps))} rewritten")
    rounded = f", {len(r.sums):,} gradient{'' if len(r.sums) == 1 else 's'} up to rounding" if r.sums else ""
    return " and ".join(found) + rounded


def line(r: Rewriting) -> str:
    """The rows in one line: "smaller saves (for 18 ops: …), in slices (29 ops in 8 slices: features.0-16, along the batch)"."""
    return ", ".join(f"{label} ({words})" for label, words in rows(r))


def short(r: Rewriting) -> str:
    """What was rewritten, in a cell of a narrow table: "29 ops in slices"."""
    sliced = r.ops_of(SLICES)
    return f"{_ops(sliced)} in slices" if sliced else "smaller saves" if r.ops_of(SAVES) else "yes"


def _ops(n: int) -> str:
    return f"{n:,} op{'' if n == 1 else 's'}"
