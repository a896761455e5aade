"""Comparators: other ways to run a step, beside which the repository's own benchmark sets plans.

None is installed: `benchmarks/comparators/` of a checkout has them, and adds them to this table when it is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..model.plan import Plan
    from ..torch.trace import Trace
    from .cases import Case

Within = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Comparator:
    """A way to run a case's step.

    within : the context inside which the case's model runs its step that way. It yields a key, equal for equal steps, or None
        where no key is known. It takes the case, its captured step and a plan that runs each op once; the last two may be None
        unless the comparator needs a trace.
    needs_trace : whether it starts from the captured step.
    note : makes the note of its row, from its name, the case and the context; None: the row has no note.
    """

    within: Callable[[Case, Trace | None, Plan | None], AbstractContextManager[bytes | None]]
    needs_trace: bool = False
    note: Callable[[str, Case, Within], str] | None = None


class NotApplicable(Exception):
    """The comparator cannot be set up for this model; the message says why."""


REGISTERED: dict[str, Comparator] = {}
