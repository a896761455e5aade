"""Measuring operators: seconds it takes, how well the fits predict left-out calls, and how far fresh measurements lie apart.

Each measurement starts with an empty cache. Errors are shares of the timing; spreads are shares of the median of all
measurements. Other programs that run meanwhile show in all figures.

Prints the table and appends it to results/DATE-costs.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from typing import Any

import more_models
import torch
from common import path_of, provenance

import rekindle
from rekindle.torch.costs import cache, node_costs
from rekindle.torch.costs.cache import Measurement, op_of
from rekindle.torch.costs.fits import Fits
from rekindle.torch.trace import Trace

MODELS: tuple[tuple[str, int | None], ...] = (
    ("resnet50", 8), ("gpt", None), ("unet", 1), ("gpt2_small", 1), ("densenet121", 8),
)  # fmt: skip


def measured(trace: Trace) -> tuple[list[float], dict[str, Measurement], float, float]:
    """(seconds of each op, measurements by key, seconds on the wall, seconds of the processor) of a fresh measurement."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REKINDLE_CACHE"] = folder
        node_costs._SESSION.clear()
        wall, processor = time.perf_counter(), time.process_time()
        graph = trace.costed().graph
        took = time.perf_counter() - wall, time.process_time() - processor
        kept = cache.CostCache(cache.environment(torch.device("cpu"))).known
        return [op.seconds for op in graph.ops], dict(kept), *took


def held_out(known: dict[str, Measurement]) -> list[float]:
    """Relative errors of the predictions of timed calls, each from the fits to the others."""
    timed = {key: m for key, m in known.items() if m.seconds is not None}
    errors = []
    for key, m in timed.items():
        fits = Fits({other: n for other, n in timed.items() if other != key})
        assert m.seconds is not None
        errors.append(abs(fits.predicted(op_of(key), m.roofline) / m.seconds - 1))
    return errors


def row(name: str, batch: int | None, times: int) -> dict[str, Any]:
    model, sample = more_models.load(name, batch=batch)
    trace = rekindle.trace(model, sample, target="cpu")
    runs = [measured(trace) for _ in range(times)]
    errors = sorted(held_out(runs[-1][1]))
    per_op = [(statistics.median(s), max(s) - min(s)) for s in zip(*(r[0] for r in runs), strict=True)]
    totals = [sum(r[0]) for r in runs]
    return {
        "model": name, "batch": batch, "calls": len(runs[-1][1]), "timed": len(errors),
        "wall_s": statistics.median(r[2] for r in runs), "processor_s": statistics.median(r[3] for r in runs),
        "error_median": statistics.median(errors), "error_90": errors[int(0.9 * (len(errors) - 1))],
        "spread_of_ops": sum(d for _, d in per_op) / sum(m for m, _ in per_op),
        "spread_of_total": (max(totals) - min(totals)) / statistics.median(totals), "total_s": statistics.median(totals),
    }  # fmt: skip


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=lambda s: s.split(","), help="only these")
    p.add_argument("--times", type=int, default=5, help="fresh measurements of each model (5)")
    given = p.parse_args()
    facts = {"benchmark": "costs", **provenance()}
    rows = []
    print(
        f"{'model':<14}{'calls':>6}{'wall s':>8}{'cpu':>8}{'error':>8}{'90 %':>8}{'spread: ops':>13}{'total':>8}{'step':>8}"
    )
    for name, batch in MODELS:
        if given.models and name not in given.models:
            continue
        r = row(name, batch, given.times)
        rows.append(r)
        print(f"{name:<14}{r['calls']:>6}{r['wall_s']:>8.2f}{r['processor_s']:>8.2f}{r['error_median']:>8.2f}{r['error_90']:>8.2f}"
              f"{r['spread_of_ops']:>13.2f}{r['spread_of_total']:>8.2f}{r['total_s']:>8.3f}", flush=True)  # fmt: skip
    with path_of("costs.jsonl").open("a", encoding="utf-8") as f:
        f.write(json.dumps(facts | {"rows": rows}) + "\n")


if __name__ == "__main__":
    main()
