"""Seconds to trace and to plan (auto, half of the activation memory), the first time and the second in one process.

The first time no operator's cost is known: the cache on disk is set aside. With fake tensors none is measured at all.

Prints the table and appends it to results/DATE-plan-time.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from typing import Any

from common import path_of, provenance

import rekindle

# name, batch (None: published), fake tensors, options
MODELS: tuple[tuple[str, int | None, bool, dict[str, Any]], ...] = (
    ("resnet50", 64, False, {"input_grad": False}),
    ("resnet50", 64, True, {"input_grad": False}),
    ("vgg16", None, True, {"input_grad": False}),
    ("densenet121", None, True, {"input_grad": False}),
    ("resnet152", None, True, {"input_grad": False}),
    ("gpt", None, False, {}),
)


def measure(name: str, batch: int | None, fake: bool, options: dict[str, Any]) -> dict[str, Any]:
    """One model's row: first and second time."""
    model, sample = rekindle.zoo.load(name, batch=batch, fake=fake, **options)
    row: dict[str, Any] = {"model": name, "batch": batch, "fake": fake}
    for which in ("first", "second"):
        start = time.perf_counter()
        trace = rekindle.trace(model, sample)
        traced = time.perf_counter()
        plan = rekindle.plan(trace, budget=0.5)
        row |= {f"{which}_trace": traced - start, f"{which}_plan": time.perf_counter() - traced}
    return row | {"ops": len(trace.graph.ops), "overhead": plan.overhead}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=lambda s: s.split(","), help="only these")
    given = p.parse_args()
    facts = {"benchmark": "plan_time", **provenance()}
    folder = tempfile.TemporaryDirectory()
    os.environ["REKINDLE_CACHE"] = folder.name
    rows = []
    print(f"{'model':<14}{'ops':>6}{'':<7}{'trace 1st':>10}{'2nd':>8}{'plan 1st':>10}{'2nd':>8}  seconds")
    for name, batch, fake, options in MODELS:
        if given.models and name not in given.models:
            continue
        r = measure(name, batch, fake, options)
        rows.append(r)
        seconds = (r[f"{which}_{what}"] for what in ("trace", "plan") for which in ("first", "second"))
        figures = "".join(f"{x:>{width}.2f}" for x, width in zip(seconds, (10, 8, 10, 8), strict=True))
        print(f"{name:<14}{r['ops']:>6} {'fake' if fake else 'real':<6}{figures}", flush=True)
    with path_of("plan-time.jsonl").open("a", encoding="utf-8") as f:
        f.write(json.dumps(facts | {"rows": rows}) + "\n")


if __name__ == "__main__":
    main()
