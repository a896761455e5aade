"""A user's options as frozen objects: they travel whole from the first call to every later plan.

`Goal` (see `budget`) says what a plan is for, `PlanOptions` how to search for it, `TraceOptions` how to capture the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .budget import Goal

LOSSES = ("auto", "all")  # see `rekindle.trace`


@dataclass(frozen=True)
class PlanOptions:
    """How a plan is searched for.

    goal : what the plan is for.
    solver : a name that `rekindle solvers` lists.
    cost : "seconds", "flops" or "unit".
    time_limit : seconds that the search may take; None: what it needs.
    seed : of randomised solvers.
    progress : called with one line of text now and then; False: no lines of news on stderr.
    """

    goal: Goal
    solver: str = "auto"
    cost: str = "seconds"
    time_limit: float | None = None
    seed: int = 0
    progress: Callable[[str], None] | bool | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class TraceOptions:
    """How a step is captured and costed; see `rekindle.trace`.

    loss : "auto" or "all".
    target : name of the device whose roofline gives the seconds; None: they are measured.
    optimizer : the optimizer, class or name whose state is counted; None: no state is counted.
    must_save : names or patterns of submodules whose ops run only once.
    state_bytes : bytes of the optimizer's state, where a plan's file tells them; None: they follow from `optimizer`.
    """

    loss: str = "auto"
    target: str | None = None
    optimizer: Any = field(default=None, compare=False, repr=False)
    must_save: tuple[str, ...] = ()
    state_bytes: int | None = None
