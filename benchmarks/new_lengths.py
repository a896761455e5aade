"""What a new sequence length costs in the middle of a run: GPT-2 (4 layers, 128 wide, batch 4), half the activations.

Lengths between 32 and 128 come in random order. Per length it prints the seconds beyond a further step of the same length, and
how the plan was made; each step is compared with eager's bit for bit (loss and all gradients), and its predicted activation
peak with the goal. With --long, 400 further lengths up to 512 follow, and the memory of the process is read.

Prints the result and appends it to results/DATE-new-lengths.jsonl; exits with 1 where a step differed or missed the goal.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import random
import statistics
import sys
import time
from typing import Any

import torch
from common import path_of, provenance
from torch import nn

import rekindle

SHARE = 0.5  # of the plain step's activations


def model_and_twin() -> tuple[nn.Module, nn.Module]:
    """GPT-2 from its configuration, twice, with the same weights and dropout on."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=4, n_head=4, n_embd=128, vocab_size=512, n_positions=512, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).train()
    return model, copy.deepcopy(model)


def batch_of(length: int, batch: int = 4) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 512, (batch, length))
    return {"input_ids": ids, "labels": ids}


def step(model: nn.Module, given: dict[str, torch.Tensor]) -> tuple[float, list[torch.Tensor]]:
    """(seconds, the loss and all gradients) of one step."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    start = time.perf_counter()
    loss = model(**given).loss
    loss.backward()
    seconds = time.perf_counter() - start
    return seconds, [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def one_length(model: Any, twin: nn.Module, length: int) -> dict[str, Any]:
    """The row of one new length."""
    given = batch_of(length)
    cpu = time.process_time()
    first, found = step(model, given)
    cpu = time.process_time() - cpu
    found = [t.clone() for t in found]
    again = statistics.median(step(model, given)[0] for _ in range(3))
    _, expected = step(twin, given)
    plan = model.forward.last.plan
    return {
        "length": length,
        "seconds": first - again,
        "cpu_seconds": cpu,
        "step_seconds": again,
        "equal": len(found) == len(expected) and all(map(torch.equal, found, expected)),
        "share": plan.activation_peak_bytes / plan.baseline_activation_bytes,
        "overhead": plan.overhead,
        "plans": len(list(model.forward.bounds)),
    }


def resident_mib() -> float:
    """Memory of this process, as Linux counts it."""
    gc.collect()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096 / 2**20


def memory(model: Any, calls: int, chosen: random.Random) -> list[float]:
    """MiB of this process after each tenth of so many calls, each of another length."""
    found = []
    for i, length in enumerate(chosen.sample(range(32, 512), calls)):
        step(model, batch_of(length))
        if (i + 1) % max(1, calls // 10) == 0:
            found.append(resident_mib())
            print(
                f"{i + 1:>4} further lengths: {found[-1]:,.0f} MiB, {len(list(model.forward.bounds))} plans", flush=True
            )
    return found


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lengths", type=int, default=40)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--solver", default="auto")
    p.add_argument("--long", action="store_true", help="400 further lengths, and the memory of the process")
    p.add_argument("--calls", type=int, default=400, help="number of further lengths with --long")
    given = p.parse_args()
    facts = {"benchmark": "new_lengths", "goal": SHARE, "solver": given.solver, "seed": given.seed, **provenance()}
    model, twin = model_and_twin()
    planned: Any = rekindle.checkpoint(model, batch_of(128), budget=SHARE, solver=given.solver)
    step(planned, batch_of(128))
    chosen = random.Random(given.seed)
    print(f"{'length':>6}{'seconds':>9}{'cpu':>7}{'step':>8}{'share':>8}{'extra':>8}{'plans':>7}  equal")
    rows = []
    for length in chosen.sample(range(32, 128), given.lengths):
        r = one_length(planned, twin, length)
        rows.append(r)
        print(
            f"{length:>6}{r['seconds']:>9.2f}{r['cpu_seconds']:>7.2f}{r['step_seconds']:>8.3f}{r['share']:>8.1%}"
            f"{r['overhead']:>8.1%}{r['plans']:>7}  {r['equal']}",
            flush=True,
        )
    seconds = [r["seconds"] for r in rows]
    summary = {
        "mean_s": statistics.mean(seconds),
        "worst_s": max(seconds),
        "equal": all(r["equal"] for r in rows),
        "within_goal": all(r["share"] <= SHARE for r in rows),
        "most_plans": max(r["plans"] for r in rows),
    }
    print(
        f"mean {summary['mean_s']:.2f} s, worst {summary['worst_s']:.2f} s beyond the step; equal: {summary['equal']}, "
        f"within the goal: {summary['within_goal']}, plans at most {summary['most_plans']}"
    )
    if given.long:
        summary["mib"] = memory(planned, given.calls, chosen)
    with path_of("new-lengths.jsonl").open("a", encoding="utf-8") as f:
        f.write(json.dumps(facts | {"summary": summary, "rows": rows}) + "\n")
    return 0 if summary["equal"] and summary["within_goal"] else 1


if __name__ == "__main__":
    sys.exit(main())
