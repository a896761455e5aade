"""Save everything: plain training."""

from __future__ import annotations

from collections.abc import Iterator

from ..model.schedule import Schedule
from ..problem import Problem, register


@register(
    "none",
    graphs="any",
    objective="time: every op runs once, in baseline order",
    optimal="least time",
    complexity="O(n)",
    citation="plain backpropagation",
)
def none(problem: Problem) -> Iterator[Schedule]:
    """Saves every activation until its last use, as PyTorch does. The baseline of every figure."""
    yield Schedule.baseline(problem.graph)
