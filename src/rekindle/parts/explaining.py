"""The explanation of a plan of parts: per part, times its count, and in the total."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..explain import Explanation, explain
from ..explain.holding import peak
from ..explain.modules import paths_pattern
from ..explain.screen import (
    OnScreen,
    any_moved,
    decimals,
    number,
    ruled,
    shortened,
    sizes_shown,
    table_screen,
    table_unit,
    wrapped,
)
from ..explain.words import resident_words
from ..model.schedule import Schedule
from ..saying.shares import COST_WORDS, percent
from ..saying.sizes import format_bytes

if TYPE_CHECKING:
    from ..model.plan import Plan
    from .plan import PartsPlan

FORMAT = "rekindle.explanation.parts/1"
ROWS_MOST = 9
AGAIN = "runs again whole"
T = TypeVar("T")


@dataclass(frozen=True)
class PartRow:
    """Parts that run by the same plan. Bytes and seconds are of all of them together.

    pattern : of their names in the model. kind : class of the parts; "runs again whole" for parts without a plan, "compiled,
        saves …" for compiled ones, whose plain bytes are those that the part compiled as it is keeps.
    count : how many calls of parts run by the plan in a step.
    kept_bytes, plain_kept_bytes : held on the device from the end of a part's forward until its backward, by the plan and by
        the plain step. moved_bytes : that wait on the host meanwhile, inputs of the parts included.
    recomputed_bytes : made again. added_seconds : that the plan adds.
    """

    pattern: str
    kind: str
    count: int
    kept_bytes: int = 0
    plain_kept_bytes: int = 0
    recomputed_bytes: int = 0
    added_seconds: float = 0.0
    moved_bytes: int = 0

    @property
    def saved_bytes(self) -> int:
        """Bytes that the plain step keeps on the device for backward and the plan does not."""
        return self.plain_kept_bytes - self.kept_bytes


@dataclass(frozen=True)
class PartsExplanation(OnScreen):
    """Where the memory of a model planned in parts goes. Printed, it is one screen of 80 columns.

    rows : parts of one plan each, those that save most first.
    baseline_peak_bytes, peak_bytes : of the whole step, as the plan has them; None where the plain step was not measured.
    inside : one explanation for each row that has a plan, of one such part by itself.
    """

    name: str
    baseline_peak_bytes: int | None
    peak_bytes: int
    resident_bytes: int
    overhead: float
    cost: str
    covered: str
    rows: tuple[PartRow, ...]
    inside: tuple[Explanation, ...]

    @property
    def saved_bytes(self) -> int | None:
        """The plain peak less the planned one; None where the plain step was not measured."""
        return None if self.baseline_peak_bytes is None else self.baseline_peak_bytes - self.peak_bytes

    @property
    def rest_bytes(self) -> int | None:
        """Bytes that the peak saves beside those that parts keep, since the peaks lie elsewhere in the step. The rows and these
        bytes add up to `saved_bytes` exactly."""
        return None if self.saved_bytes is None else self.saved_bytes - sum(r.saved_bytes for r in self.rows)

    def to_json(self) -> dict[str, Any]:
        """The document `rekindle.explanation.parts/1`."""
        return {
            "format": FORMAT, "name": self.name, "baseline_peak_bytes": self.baseline_peak_bytes, "peak_bytes": self.peak_bytes,
            "saved_bytes": self.saved_bytes, "rest_bytes": self.rest_bytes, "resident_bytes": self.resident_bytes,
            "overhead": self.overhead, "cost": self.cost, "covered": self.covered,
            "rows": [asdict(r) | {"saved_bytes": r.saved_bytes} for r in self.rows],
            "inside": [e.to_json() for e in self.inside],
        }  # fmt: skip

    def lines(self) -> list[str]:
        """The screen, line by line."""
        name, planned = shortened(self.name, 40), format_bytes(self.peak_bytes)
        price = f"for at most {percent(self.overhead)} {COST_WORDS[self.cost]}"
        if self.baseline_peak_bytes is None or self.saved_bytes is None:
            head = [f"{name}: {planned} at the peak {price};", "the plain step was not measured"]
        else:
            plain = format_bytes(self.baseline_peak_bytes)
            head = [
                f"{name}: {planned} at the peak in place of {plain},",
                f"{format_bytes(self.saved_bytes)} saved {price}",
            ]
        copied = "copied to the host, " if any_moved(self.rows) else ""
        lines = [
            *head,
            *wrapped(self.covered),
            "",
            *wrapped(
                f"In {table_unit(self.rows)[0]}: kept from the parts' forward for their backward, {copied}recomputed, and "
                "saved."
            ),
            *self._table(),
        ]
        if self.inside:
            first = next(r for r in self.rows if r.kind != AGAIN)
            lines += ["", *wrapped(f"Inside one {first.kind} ({first.pattern}), at its own peak:")]
            lines += table_screen(self.inside[0].rows)
        if said := resident_words(self.resident_bytes, self.peak_bytes, None):
            lines += ["", *wrapped(said)]
        return lines

    def _table(self) -> list[str]:
        total = sum(r.saved_bytes for r in self.rows) if self.saved_bytes is None else self.saved_bytes
        unit, unit_bytes = table_unit(self.rows)
        digits, more = decimals(abs(total) / unit_bytes), decimals(1e3 * sum(abs(r.added_seconds) for r in self.rows))
        shown_sizes = sizes_shown(self.rows)
        heads = [x.removesuffix("_bytes").replace("moved", "copied") for x in shown_sizes[:-1]]
        cells = [["parts", "×", *heads, f"{unit} saved", "ms added"]]
        shown, others = self.rows[:ROWS_MOST], self.rows[ROWS_MOST:]
        how = shown_sizes, unit_bytes, digits, more
        cells += [_cells(f"{r.pattern} ({r.kind})", [r], *how) for r in shown]
        if others:
            words = "1 other plan" if len(others) == 1 else f"{len(others)} other plans"
            cells.append(_cells(words, others, *how))
        if self.rest_bytes:
            blank = ["-"] * len(heads)
            cells.append(["elsewhere: the peaks move", "", *blank, number(self.rest_bytes / unit_bytes, digits), "-"])
        sums = _cells("total", self.rows, *how)
        cells.append([*sums[:-2], number(total / unit_bytes, digits), sums[-1]])
        return ruled(cells)


def explain_parts(plan: PartsPlan) -> PartsExplanation:
    """The explanation of a plan of parts; needs no torch.

    Raises
    ------
    FormatError : a schedule is none for its graph.
    """
    every = [p.path for p in plan.parts]
    moved = {p.path: 0 if p.offloaded is None else p.offloaded.bytes for p in plan.parts}
    found = [
        (_row(p, some, every, size), p) for p, paths in plan.distinct() for size, some in _by(moved.get, paths).items()
    ]
    found.sort(key=lambda pair: -pair[0].saved_bytes)
    rows = [r for r, _ in found]
    for size, again in _by(moved.get, [p.path for p in plan.parts if p.again]).items():
        rows.append(PartRow(paths_pattern(again, every), AGAIN, len(again), moved_bytes=size * len(again)))
    for (c, size), parts in _by(lambda p: (p.compiled, moved[p.path]), plan.parts).items():
        if c is not None:
            n, pattern = c.calls * len(parts), paths_pattern([p.path for p in parts], every)
            sizes = n * max(0, c.held_bytes - size), n * c.min_cut_bytes, 0
            rows.append(PartRow(pattern, f"compiled, saves {c.saves}", n, *sizes, n * c.extra_seconds, n * size))
    rows[len(found) :] = sorted(rows[len(found) :], key=lambda r: (r.kind != AGAIN, -r.saved_bytes))
    return PartsExplanation(
        plan.module_name, plan.baseline_peak_bytes, plan.peak_bytes, plan.resident_bytes, plan.overhead, plan.cost,
        plan.covered, tuple(rows), tuple(explain(p) for _, p in found),
    )  # fmt: skip


def _by(key: Callable[[T], Any], some: Iterable[T]) -> dict[Any, list[T]]:
    """Those of equal keys together, in order."""
    found: dict[Any, list[T]] = {}
    for x in some:
        found.setdefault(key(x), []).append(x)
    return found


def _row(p: Plan, paths: list[str], every: list[str], moved: int) -> PartRow:
    graph, n = p.graph, len(paths)
    size = graph.arrays.bytes.tolist()
    plain, planned = (peak(graph, s) for s in (Schedule.baseline(graph), p.schedule))
    again = (planned.runs - plain.runs).tolist()
    made = sum(k * sum(size[v] for v in op.outputs) for k, op in zip(again, graph.ops, strict=True))
    seconds = sum(k * op.seconds for k, op in zip(again, graph.ops, strict=True))
    kept, plain_kept = (sum(size[v] for v in x.saved) for x in (planned, plain))
    sizes = n * max(0, kept - moved), n * plain_kept, n * made
    return PartRow(paths_pattern(paths, every), graph.name, n, *sizes, n * seconds, n * moved)


def _cells(
    words: str, some: Sequence[PartRow], keys: Sequence[str], unit_bytes: int, digits: int, more: int
) -> list[str]:
    sizes = [sum(getattr(r, key) for r in some) for key in keys]
    count = sum(r.count for r in some)
    cost = number(1e3 * sum(r.added_seconds for r in some), more)
    return [words, f"{count:,}" if count > 1 else "", *(number(x / unit_bytes, digits) for x in sizes), cost]
