"""Dynamic tensor rematerialisation.

Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen, Tatlock, Dynamic Tensor Rematerialization, ICLR 2021,
arXiv:2006.09616.

Problem: none is solved; a greedy online policy, which knows nothing of what comes. The ops run in the baseline order
within a number of bytes. Where one does not fit, the value of least h = c / (m s) is evicted: m its bytes, s the time
since its last use, c what it costs to make it again, with all that is evicted around it (the values from which it is
made and those made from it). An evicted value that an op reads is recomputed first, and so are its evicted inputs, in
turn. The cost around a value is kept as in the paper: by sets that join, less the cost of values that have come back.

Here the policy is run beforehand, over modelled costs, and gives a schedule. A value is freed once its last reader has
run, as the garbage collector would.

Optimality: none. A chain of n equal ops takes O(n) runs within O(sqrt(n)) values; on some graphs every online policy is
worse than the best plan by a factor of order n / budget. A larger budget may give a slower plan, so several budgets
are tried.

Complexity: O(runs x values) per budget.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import bounds
from ..kernels import dtr as kernel
from ..kernels.arrays import compressed_rows
from ..model.graph import Graph
from ..model.judge import simulate
from ..model.schedule import Schedule
from ..problem import Problem, register

# The budgets that are simulated. The numbers are guesses.
BUDGETS = 16  # budgets between the plain peak and the least peak; half as many around a limit
LARGEST_SHARE, SMALLEST_SHARE = 1.1, 0.75  # of the limit: the largest and the smallest budget around it
# A budget is given up after so many runs for each op, and some more, so that small graphs are not given up early.
MOST_RUNS_PER_OP, SPARE_RUNS = 8, 100


@register(
    "dtr",
    graphs="any",
    objective="none: evicts the value of least cost / (bytes x time since its last use) when memory is full",
    optimal="",
    complexity="O(runs x values) per budget",
    citation="Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen, Tatlock, Dynamic Tensor Rematerialization, "
    "ICLR 2021, arXiv:2006.09616",
)
def dtr(problem: Problem) -> Iterator[Schedule]:
    """The online heuristic of DTR, run over the baseline order beforehand; several budgets, a candidate from each."""
    graph = problem.graph
    yield Schedule.baseline(graph, "dtr")
    for budget in budgets(problem):
        if problem.time_left <= 0:
            return
        runs = evicting(graph, problem.weights, budget)
        if runs is not None:
            yield Schedule.from_runs(graph, runs.tolist(), "dtr")


def budgets(problem: Problem) -> list[int]:
    """Bytes to try, without the resident ones: near the limit, which the schedule can undercut or overstep a little; or,
    without one, from the plain peak down to the least that any schedule takes."""
    graph = problem.graph
    if problem.room is not None:
        tried = problem.room * np.linspace(LARGEST_SHARE, SMALLEST_SHARE, BUDGETS // 2)
    else:
        plain, least = simulate(graph, Schedule.baseline(graph)).peak_bytes, bounds.single_op(graph).bytes
        tried = np.linspace(graph.beside_resident(plain), graph.beside_resident(least), BUDGETS)
    return sorted({int(b) for b in tried if b > 0}, reverse=True)


def evicting(graph: Graph, weights: np.ndarray, budget: int) -> np.ndarray | None:
    """The runs of the policy within a budget of bytes, or None where it evicts and recomputes without end."""
    order = np.flatnonzero(graph.needed).astype(np.int64)
    runs = np.empty(MOST_RUNS_PER_OP * len(order) + SPARE_RUNS, np.int64)
    readers = compressed_rows([o for o in row if graph.needed[o]] for row in graph.consumers)
    n = kernel.simulate(order, budget, weights.astype(np.float64), *readers, runs, graph.arrays)
    return runs[:n] if n >= 0 else None
