"""How far estimates of a plain step's memory are from measured steps, for many models on the CPU.

    python benchmarks/estimate.py               # all models
    python benchmarks/estimate.py --models unet,timm:convnext_atto

For each model the estimate comes first. Then an ordinary eager loop runs: forward, loss, backward, `optimizer.step()`, with the
results held. Its second step is measured, by the profiler's record of the CPU's allocator, on top of the bytes that are held
before it (parameters, buffers, inputs, optimizer state, gradients that are kept). Prints a table and appends the rows to
results/DATE-estimate.jsonl. The error band that estimates print holds the extremes of that file.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from typing import Any

import torch
from common import path_of, provenance
from estimate_models import MODELS
from torch import nn

import rekindle
from rekindle.saying.sizes import format_bytes
from rekindle.torch import accept
from rekindle.torch.measure.memory import allocator_peak
from rekindle.torch.tensors import tree
from rekindle.torch.tensors.loss import default_loss

Row = dict[str, Any]
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd-momentum": lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9),
}


def measured_peak(model: nn.Module, sample: Any, optimizer: str, kept: bool) -> int:
    """Bytes of the second step of an eager loop at their peak, everything included."""
    args, kwargs = accept.sample(sample)
    inputs = tree.flatten((args, kwargs))[0]
    stepper = OPTIMIZERS[optimizer]([p for p in model.parameters() if p.requires_grad])

    def step() -> None:
        result = model(*args, **kwargs)
        loss = default_loss(result)
        loss.backward()  # type: ignore[no-untyped-call]
        stepper.step()

    step()
    if not kept:
        stepper.zero_grad()
    for t in inputs:
        t.grad = None
    state = [t for s in stepper.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    held = [*model.parameters(), *model.buffers(), *inputs, *state, *gradients]
    storages = {s.data_ptr() or id(s): s for t in held for s in [t.untyped_storage()]}
    return sum(s.nbytes() for s in storages.values()) + allocator_peak(step).peak_bytes


def row(name: str, optimizer: str, kept: bool) -> Row:
    """One model, estimated and then measured."""
    torch.manual_seed(0)
    model, sample = MODELS[name]()
    model.train()
    found = rekindle.estimate(model, sample, optimizer, gradients="kept" if kept else "none", progress=False)
    real = measured_peak(model, sample, optimizer, kept)
    return {
        "model": name, "optimizer": optimizer, "gradients": found.gradients, "estimated_bytes": found.peak_bytes,
        "measured_bytes": real, "error": found.peak_bytes / real - 1, "phase": found.phase, "op": found.op,
        "seconds": round(found.took_seconds, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--no-file", action="store_true", help="write no file")
    asked = parser.parse_args()
    begun = provenance()
    rows = []
    for i, name in enumerate(asked.models.split(",")):
        # every third model with kept gradients, every fourth with SGD: both change what is held, and when
        optimizer, kept = ("sgd-momentum" if i % 4 == 3 else "adamw"), i % 3 == 2
        try:
            r = row(name, optimizer, kept) | begun
        except Exception as e:
            print(f"{name:32} FAILED {type(e).__name__}: {e}", flush=True)
            continue
        rows.append(r)
        if not asked.no_file:
            with path_of("estimate.jsonl").open("a", encoding="utf-8") as out:
                out.write(json.dumps(r) + "\n")
        print(
            f"{name:32} {optimizer:>12} {r['gradients']:>5} {format_bytes(r['estimated_bytes']):>10} "
            f"{format_bytes(r['measured_bytes']):>10} {100 * r['error']:+8.3f} %  {r['phase']:>14}  {r['seconds']:5.1f} s",
            flush=True,
        )
        gc.collect()
    errors = [r["error"] for r in rows]
    print(f"{len(rows)} models: {100 * min(errors):+.2f} % to {100 * max(errors):+.2f} %")


if __name__ == "__main__":
    main()
