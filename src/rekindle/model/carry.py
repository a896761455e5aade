"""Carries the schedule of one graph over to another that has the same ops in the same order and other sizes."""

from __future__ import annotations

from .graph import Graph, Op
from .schedule import Schedule


def alike(one: Graph, other: Graph) -> bool:
    """Whether two graphs differ in sizes and costs alone: a step of one module for two lengths or batches, say.

    Both have the same ops in the same order, with equal kinds, operators, modules, edges and flags, and they keep the same
    values. Ops that say neither kind nor operator must have equal names. Shapes in names may differ. O(edges).
    """
    if one.keep != other.keep or len(one.values) != len(other.values) or len(one.ops) != len(other.ops):
        return False
    return all(_alike(a, b) for a, b in zip(one.ops, other.ops, strict=True))


def carried(schedule: Schedule, source: Graph, target: Graph) -> Schedule | None:
    """The schedule of `source` as one of `target`, with the same runs in the same order; None: the graphs are not `alike`.

    Values are freed after their last use and overwritten where that is safe in `target`. The judge says what the schedule
    holds and costs there: memory that one shape needs little of may be most of another's. O(steps + edges).
    """
    if not alike(source, target):
        return None
    return Schedule.from_runs(target, schedule.runs, schedule.solver)


def _alike(a: Op, b: Op) -> bool:
    named = a.name == b.name if a.signature is None or b.signature is None else True
    return (
        named
        and (a.kind, a.target, a.module) == (b.kind, b.target, b.module)
        and (a.inputs, a.outputs, a.inplace) == (b.inputs, b.outputs, b.inplace)
        and (a.backward, a.recompute) == (b.backward, b.recompute)
    )
