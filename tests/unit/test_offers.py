"""A budget just below which the curve is steep: the plan's sentence names a larger one that costs far less."""

from __future__ import annotations

import re

import pytest

import rekindle
from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.model.plan import Plan

QUIET = {"progress": False}


def dear_second_op(n: int = 9) -> Graph:
    """A chain of ops of 10 bytes and 1 s each, the second of 30 s, and its backward."""
    ops = [Op(f"f{i}", (i,), (i + 1,), seconds=30.0 if i == 1 else 1.0) for i in range(n)]
    ops.append(Op(BOUNDARY, (n,), (n + 1,), recompute=False))
    ops += [
        Op(f"b{i}", (2 * n - i, i), (2 * n + 1 - i,), seconds=1.0, backward=True) for i in reversed(range(n))
    ]  # fmt: skip
    last = 2 * n + 1
    return Graph((Value(10),) * (last + 1), tuple(ops), (last, n), resident_bytes=100, name="steep")


def offered(plan: Plan) -> int | float | None:
    found = re.search(r"the curve is steep here: budget=([0-9.]+)", plan.sentence)
    if found is None:
        return None
    return float(found[1]) if "." in found[1] else int(found[1])


@pytest.mark.parametrize("budget", [130, 140, 0.3, 0.4, 0.45])
def test_the_offered_budget_gives_the_overhead_that_was_named(budget: float) -> None:
    plan = rekindle.plan(dear_second_op(), budget=budget, **QUIET)
    larger = offered(plan)
    assert type(larger) is type(budget)
    better = rekindle.plan(dear_second_op(), budget=larger, **QUIET)
    assert plan.offer is not None
    assert better.overhead <= plan.offer[1] + 1e-9 < plan.overhead / 2
    assert better.peak_bytes <= 100 + 1.5 * (plan.peak_bytes - 100) + 15


@pytest.mark.parametrize("budget", [150, 0.7, 230])
def test_where_the_curve_is_flat_nothing_is_offered(budget: float) -> None:
    assert offered(rekindle.plan(dear_second_op(), budget=budget, **QUIET)) is None


def test_a_remembered_plan_makes_the_same_offer(memory_of_plans: object) -> None:
    first, second = (rekindle.plan(dear_second_op(), budget=130, **QUIET) for _ in range(2))
    assert first.offer == second.offer is not None


def test_an_overhead_and_the_least_memory_are_offered_nothing() -> None:
    for goal in ({"max_overhead": 6.0}, {"minimize": "memory"}):
        assert rekindle.plan(dear_second_op(), **goal, **QUIET).offer is None
