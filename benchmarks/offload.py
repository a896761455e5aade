"""Plans with copies to the host beside plans without: extra time at half and a quarter of the activations, and planning time.

python benchmarks/offload.py [llama_1b vit_b16 unet3d] [--targets h200,rtx4090]   # prints a table; needs no GPU

Times are modelled: operators by the roofline of each target, copies by its link. Models and samples are fake, of their
published sizes.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import more_models

import rekindle
from rekindle import Plan, Trace

MODELS, TARGETS, BUDGETS = ("llama_1b", "vit_b16", "unet3d"), "h200,rtx4090", (0.5, 0.25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--targets", default=TARGETS)
    given = parser.parse_args()
    print("| model | target | budget | without | with copies | ratio | moved | planned in |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in given.models:
        for target in given.targets.split(","):
            traced = rekindle.trace(*more_models.load(name, fake=True), target=target, progress=False)
            for budget in BUDGETS:
                print(f"| {name} | {target} | {budget:g} | {' | '.join(row(traced, budget))} |", flush=True)


def row(traced: Trace, budget: float) -> list[str]:
    """The figures of one budget."""
    without, without_s = planned(traced, budget)
    copied, copied_s = planned(traced, budget, offload=True)
    extra = ["none fits" if p is None else f"{p.overhead:+.1%}" for p in (without, copied)]
    both = without is not None and copied is not None and without.overhead > 0
    ratio = f"{copied.overhead / without.overhead:.2f}" if both else "-"  # type: ignore[union-attr]
    moved = "-" if copied is None else f"{copied.moved_bytes / copied.baseline_activation_bytes:.0%} of the activations"
    return [*extra, ratio, moved, f"{without_s:.1f} s, {copied_s:.1f} s"]


def planned(traced: Trace, budget: float, **how: Any) -> tuple[Plan | None, float]:
    """(the plan, None where none keeps the budget; seconds)."""
    begin = time.perf_counter()
    try:
        plan = rekindle.plan(traced, budget, cache=False, progress=False, **how)
    except rekindle.InfeasibleBudget:
        plan = None
    return plan, time.perf_counter() - begin


if __name__ == "__main__":
    main()
