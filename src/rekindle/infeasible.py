"""The errors of a goal that no plan meets: the bound, the smallest peak reached, and the remedies."""

from __future__ import annotations

from . import bounds
from .ask import Goal
from .candidates import Scored
from .errors import InfeasibleBudget, UsageError
from .model.graph import Graph
from .model.held import result_values
from .problem import Solver
from .sizes import format_bytes

DEFAULT_SOLVER = "auto"  # as `rekindle.plan` has it


def no_such_overhead(solver: Solver, goal: Goal, found: list[Scored]) -> UsageError:
    """The error of a solver whose plans all cost more than `max_overhead`."""
    least = min(s.judged.overhead for s in found)
    return UsageError(
        f"solver {solver.name!r} has no plan within max_overhead={goal.max_overhead}; its least is {least:.1%}. "
        f"Allow more, or use solver={DEFAULT_SOLVER!r}"
    )


def infeasible(
    graph: Graph, solver: Solver, goal: Goal, limit: int, smallest: int, floor: bounds.Bound, spare: int | None
) -> InfeasibleBudget:
    """The error of a budget below every peak that the solver found.

    limit : the budget in bytes. smallest : the smallest peak reached, in bytes. floor : no schedule exists below it.
    spare : bytes beside the peak of a loop that holds its results, where the budget has to keep that loop too.
    """
    least = floor.bytes + (spare or 0)
    op = "what must be live at the end" if floor.op is None else graph.ops[floor.op].name
    asked = f"budget {format_bytes(limit)} ({limit} bytes)"
    if goal.fraction is not None:
        asked = f"budget {goal.fraction:g} of the plain activation peak, {format_bytes(limit)} in all"
    parts = f"{format_bytes(graph.resident_bytes)} of it held during the whole step"
    if spare is not None:
        results = int(graph.arrays.bytes[result_values(graph)].sum())
        parts += f" and {format_bytes(results)} results, which a training loop holds until the step is over"
    why = (
        f"no schedule exists below {format_bytes(least)} ({least} bytes), {parts}, set by {op}"
        if limit < least
        else f"the certified bound is {format_bytes(least)} ({least} bytes), {parts}, set by {op}, "
        f"but solver {solver.name!r} found nothing that small"
    )
    hint = "" if solver.name == DEFAULT_SOLVER else f", use solver={DEFAULT_SOLVER!r}"
    split = ", or split that op" if limit < least and floor.op is not None else ""
    return InfeasibleBudget(
        f"{asked} cannot be met: {why}; the smallest peak known to be reachable is {format_bytes(smallest)} "
        f"({smallest} bytes). Raise the budget to that{hint} or make the batch smaller{split}",
        budget=limit, smallest_peak=smallest, bound_bytes=least, op=op,
    )  # fmt: skip
