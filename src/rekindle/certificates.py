"""Proves the certificate of a plan again, here and now."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from . import bounds

if TYPE_CHECKING:
    from .model.plan import Plan

LOOKS = (0.02, 0.06)  # time limits of bounds, in seconds; on graphs of about 100 ops they take ten times as long
ALLOWANCE = 0.15  # seconds of this thread's work after which no longer look is begun
EPS = 1e-9


def holds(plan: Plan) -> bool:
    """Whether the plan's `bound_bytes` and `status` are proven anew from its graph: about 0.2 s each, a second at most.

    False means that they were not proven here: they may be false, or may need a longer search.
    """
    import scipy.optimize  # noqa: F401  imported lazily elsewhere, but that must not take from the time of a proof

    weights = plan.graph.weights(plan.cost)
    return _proven(lambda s: _bounded(plan, weights, plan.overhead, plan.bound_bytes, s)) and (
        plan.status != "optimal" or _proven(lambda s: _optimal(plan, weights, s))
    )


def _proven(claim: Callable[[float], bool]) -> bool:
    """Whether the claim is proven in a short search, or in longer ones while there is time."""
    start = time.thread_time()
    for seconds in LOOKS:
        if claim(seconds):
            return True
        if time.thread_time() - start > ALLOWANCE:
            break
    return False


def _bounded(plan: Plan, weights: np.ndarray, overhead: float, claimed: int, seconds: float) -> bool:
    return claimed <= bounds.best(plan.graph, weights, overhead, seconds, claimed).bytes


def _optimal(plan: Plan, weights: np.ndarray, seconds: float) -> bool:
    """Whether it is proven that no schedule serves the plan's goal better."""
    graph, goal, peak = plan.graph, plan.goal, plan.peak_bytes
    if goal.least_memory:
        return peak <= bounds.single_op(graph).bytes
    if goal.max_overhead is not None:
        return _bounded(plan, weights, goal.max_overhead, peak, seconds)
    if plan.overhead <= EPS:
        return True
    limit = goal.limit(graph.resident_bytes, plan.baseline_activation_bytes)
    assert limit is not None
    once = float(weights[graph.needed].sum())
    return any(plan.overhead * once <= bounds.time_at(graph, weights, limit, s) + EPS * once for s in (0.0, seconds))
