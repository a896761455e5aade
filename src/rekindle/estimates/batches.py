"""The largest batch that fits: the search among batches, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..model.plan import Plan
from ..saying.shares import COST_WORDS, percent
from ..saying.sizes import format_bytes

MOST_BATCH = 2**20
STEP_RATIO = 1.25  # where a quick search said too little, as far above what fits the next batch is asked for
BY_LINE_MOST = 12  # batches that are tried where a line through two others meets the limit; then halving goes on


def largest(
    need: Callable[[int], int],
    limit: int,
    first: int,
    most: int = MOST_BATCH,
    exact: bool = True,
    empty: int | None = None,
) -> int:
    """The largest batch that needs at most `limit` bytes, where batch + 1 needs more; 0: none fits.

    Memory is nearly affine in the batch: the line through the two nearest batches tells which one to try next, until two
    neighbours are found of which one fits and the other does not. Each batch is asked for once.

    need : the bytes of a batch, rising with it. first : the batch to begin with. most : no larger batch is asked for. exact :
    False: of a batch that fits, `need` says no more than that. empty : about the bytes of a step without examples, which
    spares a try.

    >>> largest(lambda b: 1000 + 10 * b, 1995, first=8)
    99
    """
    asked: dict[int, int] = {}
    fits, too_large = 0, most + 1
    batch = min(max(1, first), most)
    while True:
        asked[batch] = need(batch)
        if asked[batch] <= limit:
            fits = max(fits, batch)
        else:
            too_large = min(too_large, batch)
        if too_large - fits <= 1:
            return fits
        points = {} if empty is None else {0: empty}
        points |= {b: x for b, x in asked.items() if exact or x > limit}
        line = _on_line(points, limit) if len(points) > 1 and len(asked) <= BY_LINE_MOST else None
        if line is not None:
            batch = line
        elif too_large <= most or len(asked) > BY_LINE_MOST:
            batch = (fits + too_large) // 2
        elif exact:
            batch = 2 * fits
        else:
            batch = fits + 1 if len(asked) == 1 else int(STEP_RATIO * fits) + 1
        batch = min(max(batch, fits + 1), too_large - 1)


def _on_line(points: Mapping[int, int], limit: int) -> int | None:
    """The batch that takes the limit, by the line through the two points nearest to it; None: the line does not rise."""
    a, b = sorted(points, key=lambda x: abs(points[x] - limit))[:2]
    slope = (points[b] - points[a]) / (b - a)
    return a + int((limit - points[a]) // slope) if slope > 0 else None


@dataclass(frozen=True)
class BatchRow:
    """One batch beside a budget.

    plain_bytes : estimated peak of the plain step. planned_bytes : peak of a planned one within the budget, with its results
    held; None: there is none, or none is needed. overhead : the plan's extra seconds / plain seconds. fits : "plain", "with a
    plan", "no" (it is proven that none does) or "not found".
    """

    batch: int
    plain_bytes: int
    planned_bytes: int | None
    overhead: float | None
    fits: str

    @classmethod
    def of(
        cls,
        batch: int,
        plain_bytes: int,
        budget: int,
        plan: Plan | None,
        planned_bytes: int | None,
        proven: bool = False,
    ) -> BatchRow:
        """The row of a batch. plan : within the budget; None: none was found. proven : whether there is none."""
        if plain_bytes <= budget:
            return cls(batch, plain_bytes, None, None, "plain")
        if plan is None:
            return cls(batch, plain_bytes, None, None, "no" if proven else "not found")
        return cls(batch, plain_bytes, planned_bytes, plan.overhead, "with a plan")


class LargestBatch(int):
    """The largest batch that fits with a plan, as an int that also says how.

    plain : the largest batch that fits without a plan; 0: none does. plan : the plan of the largest batch; None where none is
    needed or none fits. overhead : its extra seconds / plain seconds. budget_bytes : as it was asked. plain_bytes : the
    estimated peak of the plain step at `plain`. tried : bytes by batch, plain and planned, of every batch that was looked at.
    rows : the batches that were looked at, rising. why_no_plan : why no plan was looked for; "": it was. more : whether larger
    batches with a plan were left untried, for want of time.
    """

    plain: int
    plan: Plan | None
    overhead: float
    budget_bytes: int
    plain_bytes: int | None
    tried: dict[str, dict[int, int]]
    rows: tuple[BatchRow, ...]
    why_no_plan: str
    more: bool

    def __new__(cls, batch: int, answer: Answer) -> LargestBatch:
        made = super().__new__(cls, batch)
        for k, x in vars(answer).items():
            object.__setattr__(made, k, x)
        object.__setattr__(made, "overhead", 0.0 if answer.plan is None else answer.plan.overhead)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a LargestBatch cannot be changed: {name}")

    def __str__(self) -> str:
        return int.__repr__(self)

    def __repr__(self) -> str:
        return f"LargestBatch({int(self)}, plain={self.plain}, overhead={self.overhead:.3f})"

    def __reduce__(self) -> Any:
        return LargestBatch, (int(self), Answer(**{k: getattr(self, k) for k in Answer.__dataclass_fields__}))

    def to_json(self) -> dict[str, Any]:
        """The answer by name, as `rekindle estimate --json` prints it."""
        return {
            "budget_bytes": self.budget_bytes, "largest_batch_plain": self.plain, "largest_batch": int(self),
            "largest_batch_overhead": self.overhead, "batches": [asdict(r) for r in self.rows], "why_no_plan": self.why_no_plan,
            "more": self.more,
        }  # fmt: skip

    @property
    def sentence(self) -> str:
        """One plain sentence: the largest batch without and with a plan, and its price."""
        budget = format_bytes(self.budget_bytes)
        untried = "; larger ones were not tried, which a higher effort does" if self.more else ""
        if not self:
            return f"no batch fits {budget}{untried}"
        plain = (
            f"batch {self.plain} fits {budget} without a plan"
            if self.plain
            else f"no batch fits {budget} without a plan"
        )
        if self.why_no_plan:
            return f"{plain}; no plan was looked for: {self.why_no_plan}"
        if self.plan is None:
            return f"{plain}, and no larger one with a plan{untried}"
        price = f"{percent(self.overhead)} {COST_WORDS[self.plan.cost]}"
        return f"{plain}, batch {int(self)} with one, at {price}{untried}"


@dataclass(frozen=True)
class Answer:
    """The fields of a `LargestBatch` beside its number; see there."""

    plain: int
    plan: Plan | None
    budget_bytes: int
    plain_bytes: int | None
    tried: dict[str, dict[int, int]]
    rows: tuple[BatchRow, ...] = ()
    why_no_plan: str = ""
    more: bool = False
