"""Hugging Face's Trainer with a planned model: seconds beyond the plain run, the longest wait, and whether the bits are equal.

    python benchmarks/trainer.py runs     # one epoch: bf16, accumulation over two batches, the last batch half full
    python benchmarks/trainer.py growth   # 400 steps, 100 times checkpoint and restore: memory of the process

`runs` trains each model in each variant plain and planned in turns, each run in a process of its own that remembers no
plans and no costs of others. Half the activations are the goal. "beyond" is the time of the planned epoch less the plain
one's; "stall" is the longest wait of one forward with its backward beyond the plain run's same step. The time of
`rekindle.checkpoint` stands apart. Plans, captures, searches and carried schedules are those of the epoch. --models a,b and
--variants a,b take only these, --repeats sets the number of turns.

It needs accelerate and psutil beside what `make setup` installs. Prints tables and appends the rows to
results/DATE-trainer.jsonl; exits with 1 where bits differ.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

import torch
from common import path_of, provenance

import rekindle

SHARE = 0.5  # of the plain step's activations
GROWTH_STEPS, GROWTH_CYCLES, READINGS, WARM_UP = 400, 100, 5, 20
TIMES = ("plain_s", "checkpoint_s", "beyond_s", "beyond_cpu_s", "stall_s", "stall_cpu_s")
COUNTS = ("plans", "captures", "searches", "carried")
Row = dict[str, Any]


# -- in a process of its own ------------------------------------------------------------------------------------------
def counted() -> Counter[str]:
    """Grows with each plan that is bound, each capture, each search, and each schedule that is carried over."""
    from rekindle.planning import carrying
    from rekindle.torch.capture import capture
    from rekindle.torch.serve.bound_plans import BoundPlans

    found: Counter[str] = Counter()

    def count(owner: Any, name: str, word: str) -> None:
        own = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            made = own(*args, **kwargs)
            found[word] += word != "carried" or made is not None
            return made

        setattr(owner, name, call)

    count(BoundPlans, "add", "plans")
    count(capture, "_capture", "captures")
    count(carrying, "plan_graph", "searches")
    count(carrying, "carried_plan", "carried")
    return found


def one_run(name: str, variant: str, planned: bool) -> Row:
    """One epoch."""
    import trainer_runs as runs

    torch.manual_seed(0)
    model, how = runs.MODELS[name]().train(), runs.VARIANTS[variant]
    row: Row = {}
    if planned:
        start = time.perf_counter()
        rekindle.checkpoint(model, runs.first_batch(how), budget=SHARE)
        row["checkpoint_s"] = time.perf_counter() - start
    counts, forward = counted(), model.forward
    trainer, seconds, cpu = runs.run(model, how)
    row |= {"seconds": seconds, "cpu_seconds": cpu, "shapes": trainer.shapes}
    row |= {"steps": trainer.seconds, "cpu_steps": trainer.cpu_seconds}
    row |= {"bits": trainer.bits.hexdigest(), **counts}
    if planned:
        plans = [b.plan for b in forward.bounds]  # kept here: Accelerate wraps the module's forward
        row["shares"] = [p.activation_peak_bytes / p.baseline_activation_bytes for p in plans]
    return row


def growth(name: str) -> Row:
    """MiB of this process after each fifth of the steps, and of the cycles, behind a warm-up."""
    import psutil
    import trainer_runs as runs

    torch.manual_seed(0)
    variant = runs.VARIANTS["one length"]
    model, batch = runs.MODELS[name]().train(), runs.first_batch(variant)
    me = psutil.Process()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        model.zero_grad(set_to_none=True)

    def cycle() -> None:
        rekindle.checkpoint(model, batch, budget=SHARE, progress=False)
        rekindle.restore(model)

    def mib() -> float:
        gc.collect()
        return me.memory_info().rss / 2**20

    def readings(act: Any, count: int) -> list[float]:
        found = [mib()]
        for _ in range(READINGS):
            for _ in range(count // READINGS):
                act()
            found.append(mib())
        return found

    for _ in range(WARM_UP):
        cycle()
    rekindle.checkpoint(model, batch, budget=SHARE)
    for _ in range(WARM_UP):
        step()
    row = {"steps_mib": readings(step, GROWTH_STEPS)}
    rekindle.restore(model)
    return row | {"cycles_mib": readings(cycle, GROWTH_CYCLES)}


# -- tables -----------------------------------------------------------------------------------------------------------
def asked(*what: str) -> Row:
    """The row that a new process gives, which finds neither plans nor costs of an earlier one."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, *what, "--in-process"], stdout=subprocess.PIPE, text=True,
            env=os.environ | {"REKINDLE_CACHE": folder}, stderr=None if "--verbose" in sys.argv else subprocess.DEVNULL,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(what)} failed; --verbose shows why")
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def in_turns(name: str, variant: str, repeats: int) -> Row:
    """Medians over the turns."""
    turns = [{k: asked("runs", name, variant, k) for k in ("plain", "planned")} for _ in range(repeats)]
    plans = [t["planned"] for t in turns]
    beyond = [t["planned"]["seconds"] - t["plain"]["seconds"] for t in turns]
    cpu = [t["planned"]["cpu_seconds"] - t["plain"]["cpu_seconds"] for t in turns]
    waits, cpu_waits = ([_waits(t, k) for t in turns] for k in ("steps", "cpu_steps"))
    return {
        "model": name, "variant": variant, "plain_s": [t["plain"]["seconds"] for t in turns], "beyond_s": beyond,
        "beyond_cpu_s": cpu, "stall_s": [max(w) for w in waits],
        "stall_cpu_s": [max(w) for w in cpu_waits], "checkpoint_s": [p["checkpoint_s"] for p in plans],
        "waits_s": waits[0], "cpu_waits_s": cpu_waits[0], "shapes": plans[0]["shapes"], "shares": plans[0]["shares"],
        "equal": len({x["bits"] for t in turns for x in t.values()}) == 1,
        **{k: plans[0].get(k, 0) for k in COUNTS},
    }  # fmt: skip


def _waits(turn: dict[str, Row], of: str) -> list[float]:
    return [a - b for a, b in zip(turn["planned"][of], turn["plain"][of], strict=True)]


def line(row: Row) -> str:
    seconds = [statistics.median(row[k]) for k in TIMES]
    counts = [row[k] for k in COUNTS]
    return (
        f"{row['model']:<8}{row['variant']:<17}"
        + "".join(f"{s:>9.2f}" for s in seconds)
        + "".join(f"{n:>9}" for n in counts)
        + f"  {row['equal']}"
    )


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("runs", "growth"))
    p.add_argument("one", nargs="*", help=argparse.SUPPRESS)
    p.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--models", type=lambda s: s.split(","), default=["gpt2", "llama", "bert"])
    p.add_argument("--variants", type=lambda s: s.split(","), help="only these")
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--verbose", action="store_true", help="show what the processes say")
    given = p.parse_args()
    if given.in_process:
        torch.set_num_threads(1)
        name, *more = given.one
        print(json.dumps(growth(name) if given.what == "growth" else one_run(name, more[0], more[1] == "planned")))
        return 0
    facts = {"benchmark": f"trainer {given.what}", "goal": SHARE, **provenance()}
    rows: list[Row] = []
    if given.what == "growth":
        for name in given.models:
            rows.append({"model": name, **asked("growth", name)})
            print(name, *(f"{k}: " + " ".join(f"{x:.1f}" for x in rows[-1][k]) for k in ("steps_mib", "cycles_mib")))
    else:
        from trainer_runs import VARIANTS

        words = ("plain", "chkpoint", "beyond", "cpu", "stall", "cpu", *COUNTS)
        print(f"{'':<25}" + "".join(f"{w:>9}" for w in words) + "  equal")
        for name in given.models:
            for variant in given.variants or VARIANTS:
                rows.append(in_turns(name, variant, given.repeats))
                print(line(rows[-1]), flush=True)
    with path_of("trainer.jsonl").open("a", encoding="utf-8") as f:
        f.write(json.dumps(facts | {"rows": rows}) + "\n")
    return 0 if all(r.get("equal", True) for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
