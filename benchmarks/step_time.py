"""Wall time of one planned training step against eager, on this CPU: ResNet-50, batch 8, real tensors.

Runs take turns in one process, in changing order. Prints the result and appends it to
results/DATE-step-time.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F
from common import path_of, provenance

import rekindle


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="resnet50")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--rounds", type=int, default=12)
    given = p.parse_args()
    facts = {
        "benchmark": "step_time",
        "model": given.model,
        "batch": given.batch,
        "rounds": given.rounds,
        **provenance(),
    }
    model, x = rekindle.zoo.load(given.model, batch=given.batch, input_grad=False)
    trace = rekindle.trace(model, x)
    plans = {
        "none": rekindle.plan(trace, minimize="memory", solver="none"),
        "auto at half": rekindle.plan(trace, budget=0.5, solver="auto"),
    }
    forwards: dict[str, Any] = {"plain": None}
    for name, plan in plans.items():
        forwards[name] = rekindle.apply(model, plan, on_new_shape="error").forward
        rekindle.restore(model)
    labels = torch.arange(given.batch)

    def step(forward: Any) -> float:
        if forward is not None:
            forward.take_over(model)
        start = time.perf_counter()
        F.cross_entropy(model(x), labels).backward()
        seconds = time.perf_counter() - start
        rekindle.restore(model)
        return seconds

    taken: dict[str, list[float]] = {name: [] for name in forwards}
    orders = itertools.cycle(itertools.permutations(forwards))  # so that no one always runs after the same other one
    for _ in range(given.rounds + 2):  # the first two rounds warm up
        for name in next(orders):
            taken[name].append(step(forwards[name]))
    taken = {name: seconds[2:] for name, seconds in taken.items()}
    median = {name: statistics.median(seconds) for name, seconds in taken.items()}
    result = {
        **facts,
        "median_seconds": median,
        "ratio": {name: median[name] / median["plain"] for name in plans},
        "ratio_of_fastest": {name: min(taken[name]) / min(taken["plain"]) for name in plans},
        "planned_overhead": {name: plan.overhead for name, plan in plans.items()},
        "activation_peak_bytes": {name: plan.activation_peak_bytes for name, plan in plans.items()},
        "seconds": taken,
    }  # fmt: skip
    with path_of("step-time.jsonl").open("a", encoding="utf-8") as f:
        f.write(json.dumps(result) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "seconds"}, indent=1))


if __name__ == "__main__":
    main()
