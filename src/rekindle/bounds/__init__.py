"""Certified lower bounds: what no schedule can go below, whatever the order of its ops."""

from ..model.floor import Bound, single_op
from .ahead import look_ahead
from .best import best, time_at
from .copies import least_overhead_with_copies, most_away, with_copies
from .lagrange import lagrangian
from .staged import staged
from .waiting import at_overhead, at_overheads, extras_at, waits_at_overhead

__all__ = [
    "Bound",
    "at_overhead",
    "at_overheads",
    "best",
    "extras_at",
    "lagrangian",
    "least_overhead_with_copies",
    "look_ahead",
    "most_away",
    "single_op",
    "staged",
    "time_at",
    "waits_at_overhead",
    "with_copies",
]
