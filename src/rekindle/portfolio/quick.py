"""Small schedules within a fraction of a second, for errors that name what is reachable.

On smaller graphs `dtr` and `rotor` reach the smallest peaks of the fast solvers, `revolve` and `chen-recursive` on long chains;
all of these at a high cost. The others give cheaper schedules that take more memory. No clock decides: the same
graph gives the same schedules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..model.schedule import Schedule
from ..problem import Problem
from ..structure.chain import chain_of
from . import small
from .proposals import ASKED


@dataclass(frozen=True)
class QuickSettings:
    """Which solvers are asked. Measured on one core: all together take 0.2 s at most on traced models of 217, 343 and 566 ops,
    and 0.4 s on one of 2,395; on a chain of 200 stages `rotor` alone takes 1.8 s, on one of 500 `hong-exact` 1.0 s, and on
    one of 1,500 `revolve` 0.7 s.

    on_few_ops : asked on graphs of up to `few_ops` ops,
    on_few_stages : asked on chains of up to `few_stages` stages,
    always : asked on every graph.
    """

    few_ops: int = 1500
    on_few_ops: tuple[str, ...] = ("dtr",)
    few_stages: int = 100
    on_few_stages: tuple[str, ...] = ("rotor", "hong-exact")
    always: tuple[str, ...] = ("revolve", "chen-recursive", "feng", "min-cut")


SETTINGS = QuickSettings()


def small_plans(problem: Problem) -> Iterator[Schedule]:
    """The least peaks that fast solvers reach, and a few cheaper schedules; on the smallest graphs the proven least too."""
    brief = replace(problem, limit=None, max_overhead=None)
    yield Schedule.baseline(problem.graph, "auto")
    yield from small.proven(brief)
    chain = chain_of(problem.graph)
    names = SETTINGS.on_few_ops if len(problem.graph.ops) <= SETTINGS.few_ops else ()
    names += SETTINGS.on_few_stages if chain is not None and chain.turn <= SETTINGS.few_stages else ()
    for name in (*names, *SETTINGS.always):
        if problem.time_left <= 0:
            return
        yield from ASKED[name](replace(brief, whole=True))
