"""Measures the time that a planned model takes to check that its plan fits a call.

calls: milliseconds from the call of a planned model with 500 submodules until its program begins, median of 200 calls. To
compare two versions of the library run it once with each on PYTHONPATH.
step: a planned step that saves everything, ResNet-50, batch 8, as a multiple of the eager step; medians of steps in turns.
Prints one JSON line each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import rekindle
from rekindle.torch.run.execute import Runner

PLAN: dict[str, Any] = {"budget": 1.0, "solver": "none"}


def many_submodules(count: int) -> nn.Module:
    """A chain of blocks with `count` modules in all, on tensors of one element."""

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Dropout(0.1))

    made = nn.Sequential(*(block() for _ in range((count - 1) // 4)))
    while len(list(made.modules())) < count:
        made.append(nn.ReLU())
    return made


def before_program(model: nn.Module, x: torch.Tensor, calls: int) -> list[float]:
    """Seconds of each call until the program begins."""
    taken: list[float] = []
    begin = 0.0
    run = Runner.__call__

    def timed(self: Runner, *args: Any, **kwargs: Any) -> Any:
        taken.append(time.perf_counter() - begin)
        return run(self, *args, **kwargs)

    Runner.__call__ = timed  # type: ignore[method-assign]
    try:
        for _ in range(calls + 10):
            begin = time.perf_counter()
            model(x)
    finally:
        Runner.__call__ = run  # type: ignore[method-assign]
    if len(taken) != calls + 10:
        raise SystemExit(f"the plan ran in {len(taken)} of {calls + 10} calls")
    return taken[10:]


def cost_of_calls(submodules: int, calls: int) -> dict[str, Any]:
    model, x = many_submodules(submodules), torch.rand(1, 1)
    rekindle.apply(model, rekindle.plan(rekindle.trace(model, x), **PLAN))
    taken = before_program(model, x, calls)
    rekindle.restore(model)
    begin = time.perf_counter()
    for _ in range(20):
        model(x)
    eager = (time.perf_counter() - begin) / 20
    return {
        "submodules": len(list(model.modules())),
        "calls": calls,
        "milliseconds_before_program": 1e3 * statistics.median(taken),
        "fastest": 1e3 * min(taken),
        "milliseconds_of_eager_forward": 1e3 * eager,
    }


def cost_of_step(batch: int, rounds: int) -> dict[str, Any]:
    model, x = rekindle.zoo.load("resnet50", batch=batch, input_grad=False)
    labels = torch.arange(batch)
    plan = rekindle.plan(rekindle.trace(model, x), **PLAN)
    taken: dict[str, list[float]] = {"eager": [], "planned": []}
    forwards: dict[str, Any] = {"eager": None, "planned": rekindle.apply(model, plan, on_new_shape="error").forward}
    rekindle.restore(model)
    orders = itertools.cycle(itertools.permutations(taken))
    for _ in range(rounds + 2):  # the first two warm up
        for name in next(orders):
            if forwards[name] is not None:
                forwards[name].take_over(model)
            begin = time.perf_counter()
            F.cross_entropy(model(x), labels).backward()
            taken[name].append(time.perf_counter() - begin)
            rekindle.restore(model)
    median = {name: statistics.median(seconds[2:]) for name, seconds in taken.items()}
    fastest = {name: min(seconds[2:]) for name, seconds in taken.items()}
    return {
        "model": "resnet50",
        "batch": batch,
        "rounds": rounds,
        "median_seconds": median,
        "ratio": median["planned"] / median["eager"],
        "ratio_of_fastest": fastest["planned"] / fastest["eager"],
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["calls", "step", "both"], nargs="?", default="both")
    p.add_argument("--submodules", type=int, default=500)
    p.add_argument("--calls", type=int, default=200)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--rounds", type=int, default=12)
    given = p.parse_args()
    facts = {
        "library": os.path.dirname(rekindle.__file__),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
    }
    if given.what in ("calls", "both"):
        print(json.dumps(facts | cost_of_calls(given.submodules, given.calls)), flush=True)
    if given.what in ("step", "both"):
        print(json.dumps(facts | cost_of_step(given.batch, given.rounds)), flush=True)


if __name__ == "__main__":
    main()
