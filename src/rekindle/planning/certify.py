"""The certificate of a plan: a lower bound on its peak, and whether it is proven optimal. Of a loaded plan: whether its graph
proves that again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import bounds
from ..ask import Aim
from ..exact.search import least_peak
from ..model.graph import Graph
from ..model.schedule import Schedule
from ..saying.shares import EPS
from .candidates import Scored
from .own_terms import in_own_terms

if TYPE_CHECKING:
    from ..model.plan import Plan

# Guesses that served on the benchmark's models.
LEFT_OF_LIMIT_SHARE = 0.1  # part of a time limit that the search leaves for the certificate
# The exact search looks longer where more seconds of a time limit are left, the gap is larger, and the needed ops are at most
# so many.
LOOKS_LONGER_FROM_S, LOOKS_LONGER_FROM_GAP, LOOKS_LONGER_MOST_OPS = 15.0, 0.02, 80
TIME_BOUND_MOST_OPS = 128  # up to which the bound on the cost is searched for beyond its fast relaxations


@dataclass(frozen=True)
class CertifySettings:
    """How long certificates are searched for. All figures are guesses that served on the benchmark's models.

    thorough_s, brief_s : seconds, about, for the plans of solvers that are `thorough`, and of the others.
    longer_sets : sets of values that the exact search looks at where it looks longer.
    """

    thorough_s: float = 1.0
    brief_s: float = 0.2
    longer_sets: int = 400_000


SETTINGS = CertifySettings()


def seconds_kept_back(time_limit: float) -> float:
    """Seconds of a time limit that the search leaves for the certificate."""
    return min(SETTINGS.thorough_s, LEFT_OF_LIMIT_SHARE * time_limit)


def seconds_for_bound(start: float, time_limit: float | None, thorough: bool) -> float:
    """Seconds that the bound may take; `start` is the `time.monotonic()` at which the planner began. thorough : both the
    solver and the effort are."""
    most = SETTINGS.thorough_s if thorough else SETTINGS.brief_s
    if time_limit is None:
        return most
    return min(most, max(seconds_kept_back(time_limit), start + time_limit - time.monotonic()))


def proven_again(graph: Graph, weights: np.ndarray, best: Scored, claimed: int) -> bounds.Bound | None:
    """The bound on the peak of a known schedule, where a brief search proves at least the bytes that are `claimed`; else
    None. To meet a known bound takes about a tenth of the time that finding it took (U-Net, GPT and ResNet-18: 0.06–0.09 s).
    """
    found = bounds.best(graph, weights, best.judged.overhead, SETTINGS.brief_s, claimed)
    return found if found.bytes >= claimed else None


def look_longer(
    graph: Graph, weights: np.ndarray, best: Scored, bound: bounds.Bound, seconds_left: float
) -> tuple[bounds.Bound, Schedule | None]:
    """A better bound from the exact search where the graph is small and the gap large, and the smallest schedule that
    the search met and that costs no more than `best`."""
    peak = best.judged.peak_bytes
    few = int(graph.needed.sum()) <= LOOKS_LONGER_MOST_OPS
    if seconds_left <= LOOKS_LONGER_FROM_S or not few or bound.bytes >= (1 - LOOKS_LONGER_FROM_GAP) * peak:
        return bound, None
    closer = least_peak(graph, weights, best.judged.overhead, SETTINGS.longer_sets, peak)
    return bound._replace(bytes=max(bound.bytes, closer.peak_bound)), closer.schedule


class Claim(NamedTuple):
    """A plan of which it is claimed that no schedule serves its goal better.

    peak_bytes, overhead : the plan's own figures.
    """

    graph: Graph
    weights: np.ndarray
    aim: Aim
    peak_bytes: int
    overhead: float


def is_proven(claim: Claim, bound_s: float, cost_looks_s: Sequence[float]) -> bool:
    """Whether the claim is proven.

    bound_s : seconds, about, for the bound on the peak within an overhead.
    cost_looks_s : seconds for each search for a bound on the cost within a budget; 0: fast relaxations alone.
    """
    graph, weights, aim, peak, overhead = claim
    if aim.limit is not None:
        return overhead <= least_overhead(claim, cost_looks_s) + EPS
    if aim.max_overhead is not None:
        return peak <= bounds.best(graph, weights, aim.max_overhead, bound_s, peak).bytes
    return peak <= bounds.single_op(graph).bytes


def least_overhead(claim: Claim, cost_looks_s: Sequence[float]) -> float:
    """An extra cost below which no schedule keeps the limit (the plan's own peak, where the goal is no budget), as a share.

    cost_looks_s : as in `is_proven`; no longer search follows one that proves the plan optimal.
    """
    graph, weights, aim, peak, overhead = claim
    limit = peak if aim.limit is None else aim.limit
    once, found = float(weights[graph.needed].sum()), 0.0
    for seconds in cost_looks_s:
        if overhead <= found + EPS or not once:
            break
        found = max(found, bounds.time_at(graph, weights, limit, seconds) / once)
    return min(found, max(0.0, overhead))


class Certificate(NamedTuple):
    """The proofs of a plan.

    bound : a lower bound on the peak of every schedule within the plan's overhead.
    optimal : whether no schedule serves the goal better.
    least_overhead : a lower bound on the overhead of every schedule within the budget; 0.0 for other goals.
    """

    bound: bounds.Bound
    optimal: bool
    least_overhead: float = 0.0


def certificate(
    graph: Graph, weights: np.ndarray, best: Scored, bound: bounds.Bound, aim: Aim, most_s: float
) -> Certificate:
    """The certificate of `best`.

    bound : a lower bound on the peak of every schedule within the overhead of `best`.
    most_s : seconds, about, for each further search for a bound.
    """
    j = best.judged
    if aim.max_overhead is not None and bound.bytes < j.peak_bytes:
        return Certificate(bound, False)  # within the larger `max_overhead` the bound is no higher
    claim = Claim(graph, weights, aim, j.peak_bytes, j.overhead)
    if aim.limit is None:
        return Certificate(bound, is_proven(claim, most_s, ()))
    small = len(graph.ops) <= TIME_BOUND_MOST_OPS
    least = least_overhead(claim, (most_s if small else 0.0,))
    return Certificate(bound, j.overhead <= least + EPS, least)


def beside_copies(graph: Graph, peak: int, overhead: float, aim: Aim, host_bytes: float) -> Certificate:
    """The certificate of a plan that may copy values to the host; see `bounds.copies`.

    peak, overhead : the plan's own figures. host_bytes : that the host may hold.
    """
    bound = bounds.with_copies(graph, overhead, host_bytes)
    if aim.limit is None:
        allowed = math.inf if aim.max_overhead is None else aim.max_overhead
        return Certificate(bound, peak <= bounds.with_copies(graph, allowed, host_bytes).bytes)
    least = min(max(0.0, overhead), bounds.least_overhead_with_copies(graph, aim.limit, host_bytes))
    return Certificate(bound, overhead <= least + EPS, least)


@dataclass(frozen=True)
class CertificateSettings:
    """How long a loaded plan's certificate is searched for again; guesses.

    looks_s : time limits of one search after the other; on graphs of about 100 ops each takes ten times as long.
    begin_before_s : seconds of this thread's work after which no longer search is begun.
    """

    looks_s: tuple[float, ...] = (0.02, 0.06)
    begin_before_s: float = 0.15


LOADED = CertificateSettings()
PATIENT = CertificateSettings(looks_s=(0.06, 0.3, 1.0), begin_before_s=1.0)  # for a report: a few seconds


def holds(plan: Plan, settings: CertificateSettings | None = None) -> bool:
    """Whether the plan's bounds and its status are proven again from its graph: about 0.2 s each, a second at most.

    False means that they were not proven here: they may be false, or may need a longer search.

    settings : how long is searched; None: `LOADED`.
    """
    import scipy.optimize  # noqa: F401  imported lazily elsewhere, but that must not take from the time of a proof

    settings = settings or LOADED
    plan = in_own_terms(plan)
    graph, weights = plan.graph, plan.graph.weights(plan.cost)
    if plan.schedule.moves or plan.options.offload and graph.link is not None:
        proven = beside_copies(graph, plan.peak_bytes, plan.overhead, plan.aim, plan.options.host_bytes)
        least = plan.least_overhead <= proven.least_overhead + EPS
        return plan.bound_bytes <= proven.bound.bytes and least and (plan.status != "optimal" or proven.optimal)
    claim = Claim(graph, weights, plan.aim, plan.peak_bytes, plan.overhead)

    def bounded(seconds: float) -> bool:
        return plan.bound_bytes <= bounds.best(graph, weights, plan.overhead, seconds, plan.bound_bytes).bytes

    def costly(seconds: float) -> bool:
        return plan.least_overhead <= least_overhead(claim, (0.0, seconds)) + EPS

    return (
        _proven(bounded, settings)
        and (plan.least_overhead <= EPS or _proven(costly, settings))
        and (plan.status != "optimal" or _proven(lambda s: is_proven(claim, s, (0.0, s)), settings))
    )


def _proven(claim: Callable[[float], bool], settings: CertificateSettings) -> bool:
    """Whether the claim is proven in a short search, or in longer ones while there is time."""
    start = time.thread_time()
    for seconds in settings.looks_s:
        if claim(seconds):
            return True
        if time.thread_time() - start > settings.begin_before_s:
            break
    return False
