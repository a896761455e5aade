"""Compiles the planner's inner loops once, before many processes need them: a minute without a cache of compiled code."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import rekindle


def run(emit: Callable[[dict[str, Any]], None]) -> None:
    """Plan a graph that is solved exactly and one that is not, for each kind of goal. One row."""
    begin = time.perf_counter()
    shapes: tuple[dict[str, Any], ...] = ({"n_layer": 1}, {"n_layer": 6})
    for shape in shapes:
        model, sample = rekindle.zoo.load("gpt", batch=2, d=32, length=16, vocab=50, **shape)
        trace = rekindle.trace(model, sample, target="cpu")
        for goal in ({"budget": 0.5}, {"max_overhead": 1 / 3}):
            with contextlib.suppress(rekindle.InfeasibleBudget):
                rekindle.plan(trace, **goal, time_limit=1.0)  # type: ignore[arg-type]
    emit({"part": "kernels", "name": "kernels", "status": "ok", "seconds": time.perf_counter() - begin})
