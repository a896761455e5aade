"""Every error Rekindle raises on purpose: one root, one child per kind of trouble.

Each message says what was asked, why it cannot be, and what to do.
"""

from __future__ import annotations

from .printed import printable, shortened


class RekindleError(Exception):
    """Root of all errors raised by Rekindle. Its text may quote names from files: control characters in it are spelled out, and
    long quotations are shortened. The text says what led to it: a traceback shows no earlier error that was handled."""

    def __init__(self, *args: object):
        super().__init__(*args)
        self.__suppress_context__ = True

    def __str__(self) -> str:
        return printable(shortened(super().__str__()), keep="\n")


class UsageError(RekindleError, ValueError):
    """An argument is invalid: an unknown solver, two goals at once, a negative budget."""


class InfeasibleBudget(RekindleError):
    """No plan fits the budget.

    Attributes
    ----------
    budget : bytes asked for (peak, everything included)
    smallest_peak : smallest peak in bytes that is known to be reachable
    bound_bytes : certified bound in bytes below which no schedule exists
    op : the operator that sets the bound, with its place in the model and its shape
    """

    def __init__(self, message: str, *, budget: int, smallest_peak: int, bound_bytes: int, op: str):
        super().__init__(message)
        self.budget = budget
        self.smallest_peak = smallest_peak
        self.bound_bytes = bound_bytes
        self.op = op


class TraceError(RekindleError):
    """The model cannot be captured; the message names the user's own source line.

    Attributes
    ----------
    line : the user's line as "train.py:88", if the traceback does not lead there; else ""
    reason : what stands in the way, for a line that says which parts run plain: "reads a tensor"
    met : the exception that ended the capture, whose traceback leads through the user's calls; None: this one
    """

    met: BaseException | None = None

    def __init__(self, message: str, *, line: str = "", reason: str = "cannot be captured"):
        super().__init__(message)
        self.line, self.reason = line, reason


class PlanMismatch(RekindleError):
    """The plan belongs to a different graph than the one captured from the model now."""


class ParityError(RekindleError):
    """A planned step did not give the numbers of the plain step."""


class FormatError(RekindleError):
    """A graph, schedule or plan file is damaged, foreign or inconsistent. Nothing in it was executed."""


class RekindleWarning(UserWarning):
    """Rekindle did not do something that was asked, such as running a step by its plan; the message says what and why."""
