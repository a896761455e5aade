"""Whether the certificate of a loaded plan holds: its bound and its status are proven again from its graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import bounds
from ..saying.shares import EPS
from . import certify
from .certify import Claim, is_proven, least_overhead
from .own_terms import in_own_terms

if TYPE_CHECKING:
    from ..model.plan import Plan


@dataclass(frozen=True)
class CertificateSettings:
    """How long a loaded plan's certificate is searched for again; guesses.

    looks_s : time limits of one search after the other; on graphs of about 100 ops each takes ten times as long.
    begin_before_s : seconds of this thread's work after which no longer search is begun.
    """

    looks_s: tuple[float, ...] = (0.02, 0.06)
    begin_before_s: float = 0.15


SETTINGS = CertificateSettings()
PATIENT = CertificateSettings(looks_s=(0.06, 0.3, 1.0), begin_before_s=1.0)  # for a report: a few seconds


def holds(plan: Plan, settings: CertificateSettings | None = None) -> bool:
    """Whether the plan's bounds and its status are proven again from its graph: about 0.2 s each, a second at most.

    False means that they were not proven here: they may be false, or may need a longer search.

    settings : how long is searched; None: `SETTINGS`.
    """
    import scipy.optimize  # noqa: F401  imported lazily elsewhere, but that must not take from the time of a proof

    settings = settings or SETTINGS

    plan = in_own_terms(plan)
    graph, weights = plan.graph, plan.graph.weights(plan.cost)
    if plan.schedule.moves or plan.options.offload and graph.link is not None:
        proven = certify.beside_copies(graph, plan.peak_bytes, plan.overhead, plan.aim, plan.options.host_bytes)
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
