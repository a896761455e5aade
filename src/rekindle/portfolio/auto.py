"""The portfolio: fast solvers give seeds, searches join and polish them, an archive keeps the whole curve.

Rekindle.

Problem: the goal itself: least cost within a peak, or least peak within a cost, of the whole step.

Graphs of up to a few dozen ops are solved exactly (see `small`), if that takes few steps. Beyond that, effort decides.

Fast solvers, and blocks with options that are joined (see `hierarchical`), give seeds that serve the whole curve. Then the one
stretch of the curve is searched in which the goal lies: blocks are joined for its peaks, and chains of `storages` change a mode
for each value and the order of ops; see `stretches`, `focus` and, for the lowest stretch, `way_down`. For one graph a larger
budget never gives a slower plan, and more overhead never a larger one, within one effort; `stretches` says why.

Effort says how far this goes. "quick" looks at a stretch once, briefly, "normal" until a round gains nothing. With "thorough"

1. more of the fast solvers are asked, and a sweep of the whole curve by `storages` and `anneal` gives seeds too;
2. chains are longer, and `anneal` polishes what they find as sequences of runs;
3. plans in the stretch are pressed (`Polish.press`) to the least peak at the same cost, counting the tiny values that searches
   leave out;
4. in the lowest stretch, where small changes of known plans lead nowhere, searches begin anew: `storages`, `rotor`, `dtr`,
   `beam`, and two by FLOPs (see `anew`);
5. on graphs of up to 128 ops the exact search answers at round peaks of the stretch where it can;
6. effort "normal" is asked too, so that a plan is never worse than with less effort. Where least memory is the goal, and at the
   end of a frontier, the cheapest plan within `EQUAL_SHARE` of the least peak is taken; for the goal never one above normal's.

On large graphs (more than `proposals.LARGE_OPS` ops) fewer solvers are asked, and steps 3 and 5 are left out.

Two threads search; the result is the same for the same seed, unless a time limit or an interruption (Ctrl-C) cuts the search
short, which then gives the best so far. A time limit beyond half a minute makes the thorough search work longer.

Optimality: proven on small graphs, or where a bound is met (`status`); else `gap` tells the distance.

Complexity: O(k n) for k proposals on n ops; k is chosen so that seconds pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .. import bounds
from ..exact.search import fits
from ..kernels import companion, compiled
from ..model.graph import Graph
from ..model.judge import simulate
from ..model.schedule import Schedule
from ..problem import Problem, choose, register
from ..saying.shares import EPS
from ..solvers.pofo import pofo
from ..solvers.rotor import thin
from ..structure.archive import pareto
from . import proposals, recent, small, way_down
from .stretches import stretches_of

# Of the least peak: by so much more a plan of least memory may hold where it costs less, with effort "thorough". Measured on a
# ResNet-50: the last 0.07 % of memory took another 36 % of the step's time. A guess.
EQUAL_SHARE = 1e-3
JOINED = ("hierarchical", "storages", "anneal")  # the solvers that `auto` is made of


def _retry(problem: Problem, best: Schedule | None) -> Iterator[Schedule]:
    """Candidates from a search with other costs of ops: seconds, or one each.

    Where many ops cost nothing (element-wise ones, in FLOPs), a search by cost has little to go by. Within an overhead
    the curve by seconds is searched only where the overhead allows the smallest plan of the sweep, and `best` is not
    certified to be the smallest. The sweep is the same for every overhead: where a smaller overhead allows its smallest
    plan, a larger one does too. Only with effort "thorough".
    """
    if problem.effort != "thorough":
        return
    if problem.max_overhead is None:
        for weights in _other_weights(problem, "unit", "seconds"):
            yield from auto(replace(problem, weights=weights))
        return
    others = _other_weights(problem, "seconds")
    if not others or best is None:
        return
    peak = simulate(problem.graph, best).peak_bytes
    if bounds.at_overhead(problem.graph, problem.weights, problem.max_overhead).bytes >= peak:
        return
    *_, smallest = auto(replace(problem, max_overhead=None, whole=True, coarse=True))
    extra = float(problem.weights[smallest.runs].sum()) - problem.base_cost
    if extra <= (problem.max_overhead + EPS) * problem.base_cost and problem.time_left > 0:
        yield from auto(replace(problem, max_overhead=None, whole=True, weights=others[0]))


def _other_weights(problem: Problem, *units: str) -> list[np.ndarray]:
    """The costs of ops in `units`, where some ops that may run again cost nothing in the problem's unit and time is left."""
    free = problem.weights[(problem.graph.weights("unit") > 0) & problem.graph.arrays.recompute] == 0
    if problem.time_left <= 0 or not free.any():
        return []
    return [w for w in map(problem.graph.weights, units) if w.any() and not np.array_equal(w, problem.weights)]


def members(graph: Graph, effort: str, optimal: bool) -> tuple[str, ...]:
    """Names of the solvers that `auto` asks about the graph with that effort, for some goal.

    optimal : whether the answer was proven to be the best: on the smallest graphs the exact search gave it alone.
    """
    exact = fits(graph)
    if optimal and exact and int(graph.needed.sum()) <= small.ANSWERED_MOST_OPS:
        return ("exact",)
    names = [*JOINED, *proposals.asked(graph, effort), *way_down.SOLVERS]
    if effort == "thorough":
        names += ["exact"] if exact else []
        names += ["beam"] if len(graph.ops) <= proposals.FEW_OPS else []
    return tuple(dict.fromkeys(names))


@register(
    "auto",
    graphs="any",
    objective="the goal itself: least cost within a peak, or least peak within a cost, of the whole step",
    optimal="where it proves it: small graphs, or a bound that is met",
    complexity="O(k n) for k proposals on n ops; k is chosen so that a few seconds pass",
    citation="this project; see the solvers it joins",
    curve=True,
    thorough=True,
    joins=True,
    retry=_retry,
    quick=way_down.small_plans,
    known=recent.known_runs,
    members=members,
    copies=True,
)
def auto(problem: Problem) -> Iterator[Schedule]:
    """The portfolio: seeds from fast solvers, then a search of the stretch of the curve in which the goal lies. Of a problem
    with a link, the schedules of `pofo` alone."""
    if problem.link is not None:
        yield from pofo(problem)
        return
    if problem.whole:
        yield Schedule.baseline(problem.graph, "auto")
    proven = small.proven(problem)
    if proven:
        yield from proven
        return
    companion.start()
    with compiled.reported_to(problem.progress):
        found = stretches_of(problem).answers(problem)
        if problem.effort == "thorough":
            most = found[-1].peak * (1 + EQUAL_SHARE)
            if not problem.whole:  # never worse than with less effort
                normal = replace(problem, effort="normal")
                less = stretches_of(normal).answers(normal)
                found = pareto(found + less)
                most = min(found[-1].peak * (1 + EQUAL_SHARE), less[-1].peak)
            if problem.limit is None and problem.max_overhead is None:
                found = found[: 1 + next(i for i, e in enumerate(found) if e.peak <= most)]
    chosen = thin(choose(problem, found))
    yield from (Schedule.from_runs(problem.graph, e.runs, "auto") for e in chosen)
