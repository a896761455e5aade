"""Rekindle: train PyTorch models inside a memory budget.

The planner knows no torch; what does is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import interrupt  # noqa: F401  first: it answers Ctrl-C while the rest is imported
from .api import apply, checkpoint, frontier, plan, restore
from .errors import (
    FormatError,
    InfeasibleBudget,
    ParityError,
    PlanMismatch,
    RekindleError,
    RekindleWarning,
    TraceError,
    UsageError,
)
from .model.graph import Graph, Op, Value
from .model.judge import Simulation, simulate
from .model.plan import Plan
from .model.schedule import Free, Run, Schedule
from .plan_files import load
from .version import __version__

if TYPE_CHECKING:
    from . import zoo
    from .torch.check.verify import Check, verify
    from .torch.trace import Trace, trace

__all__ = [
    "Check", "FormatError", "Free", "Graph", "InfeasibleBudget", "Op", "ParityError", "Plan", "PlanMismatch",
    "RekindleError", "RekindleWarning", "Run", "Schedule", "Simulation", "Trace", "TraceError", "UsageError", "Value",
    "__version__", "apply", "checkpoint", "frontier", "load", "plan", "restore", "simulate", "trace", "verify", "zoo",
]  # fmt: skip

_LAZY = {
    "trace": ".torch.trace",
    "Trace": ".torch.trace",
    "verify": ".torch.check.verify",
    "Check": ".torch.check.verify",
}


def __getattr__(name: str) -> Any:
    if name == "zoo":
        return importlib.import_module(".zoo", __name__)
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
