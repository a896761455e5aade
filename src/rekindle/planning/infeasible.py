"""The errors of a goal that no plan meets: the bound, the smallest peak known, and the choices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from .. import bounds
from ..ask import Aim, Goal, LeastMemory, PlanOptions
from ..errors import InfeasibleBudget, UsageError
from ..model.graph import Graph
from ..model.held import relaxed, result_values
from ..model.op_names import op_words
from ..model.plan import Plan
from ..model.schedule import Schedule
from ..problem import Solver
from ..saying.progress import announce
from ..saying.shares import COST_WORDS, percent
from ..saying.sizes import format_bytes
from .candidates import Measured, Scored, Scorer

DEFAULT_SOLVER = "auto"  # as `rekindle.plan` has it


# Known points of the curve that an error lists beside the smallest one; guesses.
POINTS_MOST = 3
APART_SHARE = 0.05  # a point takes at least so much more memory than the point before it


def or_least(options: PlanOptions, make: Callable[[PlanOptions], Plan]) -> Plan:
    """The plan that `make` gives for these options; where none keeps the budget and they ask for it, one of least memory."""
    try:
        return make(options)
    except InfeasibleBudget:
        if not options.or_least:
            raise
    announce(options.progress, "no plan keeps the budget; planning for the least memory")
    return replace(make(replace(options, goal=LeastMemory(), or_least=False)), asked=options)


def no_such_overhead(solver: Solver, aim: Aim, found: list[Scored]) -> UsageError:
    """The error of a solver whose plans all cost more than `max_overhead`."""
    least = min(s.judged.overhead for s in found)
    return UsageError(
        f"solver {solver.name!r} has no plan within max_overhead={aim.max_overhead}; its least is {least:.1%}. "
        f"Allow more, or use solver={DEFAULT_SOLVER!r}"
    )


def floor_of(graph: Graph, spare: int | None) -> bounds.Bound:
    """The budget in bytes below which nothing fits, whatever it costs.

    spare : bytes beside the peak of a loop that holds its results, where the budget has to keep that loop too.
    """
    floor = bounds.look_ahead(graph if spare is None else relaxed(graph))
    return floor._replace(bytes=floor.bytes + (spare or 0))


def infeasible(
    scorer: Scorer, solver: Solver, goal: Goal, limit: int, found: list[Scored], floor: bounds.Bound
) -> InfeasibleBudget:
    """The error of a budget below every peak that is known to be reachable.

    limit : the budget in bytes. found : schedules that can be reached, at least one. floor : as `floor_of` gives it.
    """
    graph = scorer.graph
    smallest = min(found, key=lambda s: (s.needs, s.judged.overhead))
    asked = budget_words(limit)
    if goal.fraction is not None:
        whose = "measured plain step's" if isinstance(scorer.plain_bytes, Measured) else "baseline's"
        asked = f"budget {goal.fraction:g} of the {whose} activation peak ({format_bytes(limit)} in all)"
    bound, op = bound_words(graph, floor, scorer.spare)
    as_captured = scorer.plain_bytes is None or isinstance(scorer.plain_bytes, Measured)
    rewritten = "" if as_captured else "even with ops rewritten to take less memory, "
    why = (
        f"{rewritten}no schedule exists below {bound}"
        if limit < floor.bytes
        else f"the certified bound is {bound}, but solver {solver.name!r} found nothing that small"
    )
    reached = f"budget={smallest.needs}"
    if goal.fraction is not None:
        reached = f"budget={_fraction(scorer, smallest.needs)}"
    more = [] if solver.name == DEFAULT_SOLVER else [f"solver={DEFAULT_SOLVER!r}"]
    points = ", ".join(f"{format_bytes(s.needs)} at {percent(s.judged.overhead)}" for s in nearest(found))
    return InfeasibleBudget(
        f"{asked} cannot be met: {why}; the smallest peak known to be reachable is {format_bytes(smallest.needs)} "
        f"({smallest.needs} bytes). {choices(reached, more)}. Plans met in a quick search, which "
        f"planning for these budgets makes cheaper: {points} {COST_WORDS[scorer.cost]}",
        budget=limit, smallest_peak=smallest.needs, bound_bytes=floor.bytes, op=op,
    )  # fmt: skip


def budget_words(limit: int) -> str:
    """The budget that was asked, and where it is less than a KiB, the one that may be meant: 'budget 8 bytes (or "8GiB"?)'."""
    meant = f' (or "{limit}GiB"?)' if limit else ""
    return f"budget {limit} bytes{meant}" if limit < 1024 else f"budget {format_bytes(limit)} ({limit} bytes)"


def infeasible_with_copies(refused: InfeasibleBudget, scorer: Scorer) -> InfeasibleBudget:
    """The error where no plan keeps the budget, with copies to the host or without. refused : the error without."""
    floor = bounds.single_op(scorer.graph if scorer.spare is None else relaxed(scorer.graph))
    return InfeasibleBudget(
        f"without copies to the host, {refused}. No copies to the host were found that keep it either",
        budget=refused.budget, smallest_peak=refused.smallest_peak, bound_bytes=floor.bytes + (scorer.spare or 0),
        op=bound_words(scorer.graph, floor, scorer.spare)[1],
    )  # fmt: skip


def bound_words(graph: Graph, floor: bounds.Bound, spare: int | None) -> tuple[str, str]:
    """(the bound of `floor_of` in words, the op that sets it)."""
    op = "what must be live at the end" if floor.op is None else op_words(graph.ops[floor.op])
    parts = f"{format_bytes(graph.resident_bytes)} of it held during the whole step"
    if spare is not None:
        results = int(graph.arrays.bytes[result_values(graph)].sum())
        parts += f" and {format_bytes(results)} results, which a training loop holds until the step is over"
    return f"{format_bytes(floor.bytes)} ({floor.bytes} bytes), {parts}, set by {op}", op


def choices(reached: str, more: list[str] | None = None) -> str:
    """The choices of a user whose budget cannot be met, as a sentence.

    reached : the smallest budget that is known to be kept, as an argument. more : other choices, in words.
    """
    least = 'the least that is found (minimize="memory", or or_least=True beside the budget)'
    listed = ["a smaller batch", f"{reached} or more", *(more or []), least]
    return f"Choose {', '.join(listed[:-1])}, or {listed[-1]}"


def nearest(found: list[Scored]) -> list[Scored]:
    """The smallest schedule and the next ones that cost less and take clearly more memory, in order of rising memory."""
    points: list[Scored] = []
    for s in sorted(found, key=lambda s: (s.needs, s.judged.overhead)):
        apart = not points or s.needs >= (1 + APART_SHARE) * points[-1].needs
        if apart and (not points or s.judged.overhead < points[-1].judged.overhead):
            points.append(s)
    return points[: 1 + POINTS_MOST]


def _fraction(scorer: Scorer, needs: int) -> float:
    """The budget as a share of the plain activation peak, rounded up to four digits, that allows a peak of `needs` bytes."""
    plain = scorer.plain_of(scorer.score(Schedule.baseline(scorer.graph)).judged)
    return min(1.0, math.ceil(1e4 * scorer.graph.beside_resident(needs) / plain) / 1e4) if plain else 1.0
