"""How the graph of a plan was made from the captured step, and the words for it: smaller saves, and ops that run in slices.

Torch-free: `torch.rewrite` makes a step from it again. It names ops by their places, so that a plan's file holds no code.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import FormatError
from ..printed import name, value
from .formats import Reader

CONVOLUTIONS, SAVES, PICKED, SLICES = "convolutions", "saves", "picked", "slices"
KINDS = (CONVOLUTIONS, SAVES, PICKED, SLICES)
WHERE_MOST_LETTERS = 200
STEP = "this rewritten step"  # for which claims of a plan with rewrites hold
NAMED_MOST = 3  # parameters that are named
Dims = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Rewrite:
    """One rewrite of a captured step.

    kind : "convolutions": each op, the backward of a convolution, becomes two; "saves": backward reads a smaller save in place
        of the tensor that each op reads; "picked": a loss takes log-probabilities that were picked before; "slices": the ops
        run in slices.
    ops : places of the ops in the captured order, as the rewrites before this one left it.
    slices : how many slices there are.
    cuts : for each op in slices the dimensions of its tensor arguments and of its results that are cut; None: whole; "sum":
        each slice gives a part of the result, and the parts are added up.
    kept : places of the ops in slices that run whole too.
    where : which ops these are, in words for people: "features.0-16, along the batch". Nothing reads it but printing.
    """

    kind: str
    ops: tuple[int, ...]
    slices: int = 0
    cuts: tuple[tuple[Dims, Dims], ...] = ()
    kept: tuple[int, ...] = ()
    where: str = field(default="", compare=False)


@dataclass(frozen=True)
class Plain:
    """The captured step without rewrites and without recomputation: its peak, and its cost in each unit."""

    peak_bytes: int
    seconds: float
    flops: float
    unit: float


@dataclass(frozen=True)
class Rewriting:
    """The rewrites of a step, in order. captured_hash : hash of the graph of the captured step. plain : its figures.

    sums : names of the parameters whose gradients may differ from the plain step's by rounding: they depend on results that are
        added up from slices, or on slices that are not proven to give the same bits.
    sums_error : the largest difference measured, relative to the largest element of its gradient; None: not measured.
    """

    captured_hash: str
    plain: Plain
    steps: tuple[Rewrite, ...]
    sums: tuple[str, ...] = ()
    sums_error: float | None = None

    @property
    def slices(self) -> tuple[Rewrite, ...]:
        """The rewrites by which ops run in slices."""
        return tuple(s for s in self.steps if s.kind == SLICES)

    def ops_of(self, kind: str) -> int:
        """How many ops the rewrites of a kind name."""
        return sum(len(s.ops) for s in self.steps if s.kind == kind)

    def figures(self) -> dict[str, Any]:
        """The rewrites without places of ops: for `plan --json`."""
        steps = [{"kind": s.kind, "ops": len(s.ops), "slices": s.slices, "where": s.where} for s in self.steps]
        return {
            "steps": steps,
            "sums": list(self.sums),
            "sums_error": self.sums_error,
            "captured_hash": self.captured_hash,
        }

    def to_json(self) -> dict[str, Any]:
        """The field `rewriting` of a plan's file."""
        steps = [
            asdict(s) | {"ops": [*s.ops], "cuts": [[[*ins], [*outs]] for ins, outs in s.cuts], "kept": [*s.kept]}
            for s in self.steps
        ]
        return asdict(self) | {"steps": steps, "sums": [*self.sums]}

    def rows(self) -> list[tuple[str, str]]:
        """One row for each rewrite, and one for the gradients that it changes:
        ("in slices", "29 ops in 8 slices: features.0-16, along the batch")."""
        found = []
        for s in self.steps:
            n = len(s.ops)
            label, words = {
                SAVES: ("smaller saves", f"for {_ops(n)}"),
                CONVOLUTIONS: ("convolutions", f"backward of {n:,} in two calls"),
                PICKED: ("picked first", f"log-probabilities of {n:,} {'loss' if n == 1 else 'losses'}"),
                SLICES: ("in slices", f"{_ops(n)} in {s.slices:,} slices"),
            }[s.kind]
            found.append((label, f"{words}: {name(s.where)}" if s.where else words))
        return [*found, *([("up to rounding", self.sums_words())] if self.sums else [])]

    def sums_words(self) -> str:
        """The parameters whose gradients are added up in another order, and how far off that was measured to be."""
        named = ", ".join(name(x) for x in self.sums[:NAMED_MOST])
        more = f" and {len(self.sums) - NAMED_MOST:,} more" if len(self.sums) > NAMED_MOST else ""
        off = "not measured" if self.sums_error is None else f"largest relative difference {self.sums_error:.1e}"
        return f"gradients of {named}{more}; {off}"

    def clause(self) -> str:
        """The rewrites in a few words: "18 smaller saves and 29 ops in 8 slices, 2 gradients up to rounding"."""
        found = []
        if saves := self.ops_of(SAVES):
            found.append(f"{saves:,} smaller save{'' if saves == 1 else 's'}")
        if sliced := self.ops_of(SLICES):
            counts = {s.slices for s in self.slices}
            found.append(f"{_ops(sliced)} in {f'{counts.pop():,} ' if len(counts) == 1 else ''}slices")
        if not found:
            found.append(f"{_ops(sum(len(s.ops) for s in self.steps))} rewritten")
        rounded = (
            f", {len(self.sums):,} gradient{'' if len(self.sums) == 1 else 's'} up to rounding" if self.sums else ""
        )
        return " and ".join(found) + rounded

    def line(self) -> str:
        """The rows in one line: "smaller saves (for 18 ops: …), in slices (29 ops in 8 slices: features.0-16)"."""
        return ", ".join(f"{label} ({words})" for label, words in self.rows())

    def short(self) -> str:
        """The rewrites in a cell of a narrow table: "29 ops in slices"."""
        sliced = self.ops_of(SLICES)
        return f"{_ops(sliced)} in slices" if sliced else "smaller saves" if self.ops_of(SAVES) else "yes"


def _ops(n: int) -> str:
    return f"{n:,} op{'' if n == 1 else 's'}"


def from_json(r: Reader) -> Rewriting:
    """The rewriting that `to_json` wrote. Whether it fits a step is seen when it is applied.

    Raises
    ------
    FormatError : a field is missing, or of another type.
    """
    p = Reader(r.table("plain"), f"{r.where}: plain")
    plain = Plain(p.whole("peak_bytes"), p.number("seconds"), p.number("flops"), p.number("unit"))
    if min(asdict(plain).values()) < 0:
        raise FormatError(f"{r.where}: a figure of the plain step is below 0")
    steps = steps_from_json(r.items("steps"), r.where)
    names = r.items("sums")
    if not all(isinstance(x, str) for x in names):
        raise FormatError(f"{r.where}: 'sums' should be a list of strings")
    error = None if r.doc.get("sums_error") is None else r.number("sums_error")
    return Rewriting(r.text("captured_hash"), plain, steps, tuple(names), error)


def steps_from_json(doc: Any, where: str) -> tuple[Rewrite, ...]:
    """The rewrites in the field `steps` of a rewriting. where : names the document in errors.

    Raises
    ------
    FormatError : as `from_json`.
    """
    if not isinstance(doc, list):
        raise FormatError(f"{where} should be a list of rewrites, not {value(doc)}")
    return tuple(_step(Reader(s, f"{where}: step {i}")) for i, s in enumerate(doc))


def _step(r: Reader) -> Rewrite:
    kind, cuts = r.text("kind"), r.items("cuts")
    if kind not in KINDS:
        raise FormatError(f"{r.where} is of kind {value(kind)}; the kinds are {', '.join(KINDS)}")
    if not all(isinstance(c, list) and len(c) == 2 for c in cuts):
        raise FormatError(f"{r.where}: 'cuts' should be a list of pairs")
    made = tuple((_dims(r, one), _dims(r, two)) for one, two in cuts)
    where = r.text("where", "")
    if not where.isprintable() or len(where) > WHERE_MOST_LETTERS:
        raise FormatError(f"{r.where}: 'where' should be at most {WHERE_MOST_LETTERS} printable letters")
    step = Rewrite(kind, r.ints("ops"), r.whole("slices"), made, r.ints("kept"), where)
    if (kind == SLICES) != (step.slices > 1) or len(made) != (len(step.ops) if kind == SLICES else 0):
        raise FormatError(f"{r.where} has other slices or cuts than its kind and its ops ask for")
    if len(set(step.ops)) < len(step.ops):
        raise FormatError(f"{r.where} names an op twice")
    if not set(step.kept) <= set(step.ops):
        raise FormatError(f"{r.where} keeps ops whole that it does not name")
    return step


def _dims(r: Reader, given: Any) -> Dims:
    ok = isinstance(given, list) and all(x is None or x == "sum" or type(x) is int for x in given)
    if not ok:
        raise FormatError(f"{r.where}: {value(given)} is no list of dimensions")
    return tuple(given)
