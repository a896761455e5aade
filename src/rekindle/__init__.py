"""Rekindle: train PyTorch models inside a memory budget.

The planner works without torch; `trace`, `verify` and `zoo` import torch when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import interrupt  # noqa: F401  first: it answers Ctrl-C while the rest is imported
from .api import apply, checkpoint, frontier, plan, restore
from .citations import cite
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
from .model.graph import Graph, Link, Op, Value
from .model.judge import Simulation, simulate
from .model.plan import Plan
from .model.schedule import Fetch, Free, Offload, Run, Schedule
from .parts.files import load
from .parts.plan import PartsPlan
from .show import faces as _faces  # noqa: F401  gives plans their reports and explanations
from .version import __version__

if TYPE_CHECKING:
    from . import zoo
    from .estimates.batches import LargestBatch
    from .estimates.estimate import Estimate
    from .torch.estimate.largest import largest_batch
    from .torch.estimate.verbs import estimate
    from .torch.parts.status import Status, status
    from .torch.parts.verify import verify
    from .torch.serve.verify import Check
    from .torch.trace import Trace, trace

__all__ = [
    "Check", "Estimate", "Fetch", "FormatError", "Free", "Graph", "InfeasibleBudget", "LargestBatch", "Link", "Offload", "Op",
    "ParityError", "PartsPlan", "Plan", "PlanMismatch", "RekindleError", "RekindleWarning", "Run", "Schedule", "Simulation",
    "Status", "Trace", "TraceError", "UsageError", "Value", "__version__", "apply", "checkpoint", "cite", "estimate",
    "frontier", "largest_batch", "load", "plan", "restore", "simulate", "status", "trace", "verify", "zoo",
]  # fmt: skip

# Public names of modules that import torch or are rarely needed: imported when they are first asked for.
_LAZY = {
    "Check": ".torch.serve.verify",
    "Estimate": ".estimates.estimate",
    "LargestBatch": ".estimates.batches",
    "Status": ".torch.parts.status",
    "Trace": ".torch.trace",
    "estimate": ".torch.estimate.verbs",
    "largest_batch": ".torch.estimate.largest",
    "status": ".torch.parts.status",
    "trace": ".torch.trace",
    "verify": ".torch.parts.verify",
    "zoo": ".zoo",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name], __name__)
    return module if name == "zoo" else getattr(module, name)


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
