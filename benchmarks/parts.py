"""Plans for parts of models that cannot be captured whole, executed, against each layer checkpointed by torch.utils.checkpoint.

    python benchmarks/parts.py within    # activation bytes saved within 15 % extra FLOPs, and within 15 % extra time
    python benchmarks/parts.py against   # at the memory of checkpointed layers, and at their extra FLOPs
    python benchmarks/parts.py budgets   # budgets in bytes: 70 % of the plain activation peak, and 5 % above the least peak

Peaks are measured, of steps that hold their results and leave no layer out. FLOPs are counted over whole steps by
torch.utils.flop_counter, to which torch's own formulas for the fused attention of the CPU are given; without them it counts
none for it. Step times are taken in turns. Each model runs in a process of its own, on one thread. Prints tables and appends
the rows to results/DATE-parts.jsonl. --models a,b takes only these.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import parts_models
import torch
from common import path_of, provenance
from parts_models import MODELS, checkpoint_layers, run_every_layer
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop, sdpa_flop

import rekindle
from rekindle.torch.measure.memory import allocator_peak

aten = torch.ops.aten


def _of(formula: Callable[..., int]) -> Callable[..., int]:
    """The formula, marked as one that takes tensors: those that torch registers make shapes of them."""

    def counted(*args: Any, **kwargs: Any) -> int:
        return formula(*args, **kwargs)

    counted._get_raw = True  # type: ignore[attr-defined]
    return counted


CPU_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: _of(sdpa_flop),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _of(sdpa_backward_flop),
}
WITHIN, SHARE, ABOVE_LEAST, ROUNDS = 0.15, 0.7, 1.05, 15
MIB = 2**20
Row = dict[str, Any]
Planned = rekindle.Plan | rekindle.PartsPlan  # with all labels given, some of the models can be captured whole


# -- in a process of its own ------------------------------------------------------------------------------------------
class Measured:
    """One model, plain, with its layers checkpointed, or by a plan of its parts."""

    def __init__(self, name: str):
        self.model, self.sample = parts_models.made(name)

    def plan(self, **goal: Any) -> Planned:
        """The plan for a goal; the model's own LayerDrop is on while it is made."""
        own = copy.deepcopy(self.model)
        rekindle.checkpoint(own, self.sample, progress=False, **goal)
        found: Planned = own.forward.plan
        return found

    def plain(self) -> nn.Module:
        """A copy that calls every layer."""
        own = copy.deepcopy(self.model)
        run_every_layer(own)
        return own

    def by_hand(self) -> nn.Module:
        """A copy whose layers are checkpointed one by one."""
        own = self.plain()
        checkpoint_layers(own)
        return own

    def planned(self, plan: Planned) -> nn.Module:
        """A copy with this plan, which calls every layer."""
        own = copy.deepcopy(self.model)
        rekindle.apply(own, plan)
        run_every_layer(own)
        return own

    def step(self, model: nn.Module) -> Any:
        """One step; gives the results, which the caller holds."""
        torch.manual_seed(0)
        found = model(**self.sample) if isinstance(self.sample, dict) else model(*self.sample)
        (found if isinstance(found, torch.Tensor) else found.loss).backward()
        return found

    def peak(self, model: nn.Module) -> int:
        """Measured activation peak of a step in a loop that holds the results, after one in which parts may meet new shapes."""
        self.step(model)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        return allocator_peak(lambda: self.step(model)).peak_bytes

    def flops(self, model: nn.Module, formulas: Any = CPU_ATTENTION) -> int:
        """FLOPs of a whole step, by torch's counter."""
        with FlopCounterMode(display=False, custom_mapping=formulas) as count:
            self.step(model)
        return count.get_total_flops()

    def times(self, one: nn.Module, other: nn.Module) -> list[float]:
        """Seconds of the other's step / seconds of the one's, of steps in turns."""
        ratios = []
        for i in range(ROUNDS + 2):
            taken = {}
            for m in (one, other) if i % 2 else (other, one):
                begin = time.perf_counter()
                self.step(m)
                taken[id(m)] = time.perf_counter() - begin
            ratios.append(taken[id(other)] / taken[id(one)])
        return ratios[2:]  # the first rounds warm up


def within(name: str) -> Row:
    """Bytes saved and extra within 15 %, by FLOPs and by seconds."""
    m = Measured(name)
    plain = m.plain()
    row: Row = {"plain_peak": m.peak(plain), "plain_flops": m.flops(plain)}
    for cost in ("flops", "seconds"):
        plan = m.plan(max_overhead=WITHIN, cost=cost)
        own = m.planned(plan)
        row[cost] = {
            "promised": plan.overhead, "peak": m.peak(own), "promised_peak": plan.activation_peak_bytes,
            "extra_flops": m.flops(own) / row["plain_flops"] - 1,
            "without_attention": m.flops(own, {}) / m.flops(plain, {}) - 1,
            "extra_times": [r - 1 for r in m.times(plain, own)], "covered": getattr(plan, "covered", "captured whole"),
        }  # fmt: skip
    return row


def against(name: str) -> Row:
    """Ours at the peak of checkpointed layers, and at their extra FLOPs."""
    m = Measured(name)
    plain, theirs = m.plain(), m.by_hand()
    once = m.flops(plain)
    row: Row = {"plain_peak": m.peak(plain), "peak": m.peak(theirs), "extra_flops": m.flops(theirs) / once - 1}
    plan = m.plan(cost="flops", max_overhead=row["extra_flops"])
    row["at their extra"] = _executed(m, plan, once)
    try:
        plan = m.plan(cost="flops", budget=_resident(plan) + row["peak"])
        row["at their peak"] = _executed(m, plan, once)
    except rekindle.InfeasibleBudget as e:
        row["at their peak"] = {"smallest": e.smallest_peak - _resident(plan)}
    return row


def _executed(m: Measured, plan: Planned, once: int) -> Row:
    """What a plan takes when it runs. once : FLOPs of the plain step."""
    own = m.planned(plan)
    return {"promised": plan.overhead, "peak": m.peak(own), "extra_flops": m.flops(own) / once - 1}


def _resident(plan: Planned) -> int:
    return plan.peak_bytes - plan.activation_peak_bytes


def budgets(name: str) -> Row:
    """Whether budgets in bytes are kept, and whether the error of one that cannot be names a peak that can."""
    m = Measured(name)
    plain = m.peak(m.plain())
    row: Row = {"plain_peak": plain}
    resident = _resident(m.plan(max_overhead=0.0, cost="flops"))
    try:
        m.plan(budget=resident + 1, cost="flops")
        raise SystemExit(f"{name}: a budget of one byte of activations was met")
    except rekindle.InfeasibleBudget as e:
        least = e.smallest_peak - resident
    wanted = {
        "at 70 %": int(SHARE * plain), "at the least": least, "5 % above": int(ABOVE_LEAST * least),
    }  # fmt: skip
    for what, room in wanted.items():
        try:
            plan = m.plan(budget=resident + room, cost="flops")
        except rekindle.InfeasibleBudget as e:
            row[what] = {"budget": room, "smallest": e.smallest_peak - resident}
            continue
        row[what] = {"budget": room, "peak": m.peak(m.planned(plan)), "promised": plan.overhead}
    return row


IN_A_PROCESS: dict[str, Callable[[str], Row]] = {"within": within, "against": against, "budgets": budgets}


def _ask(what: str, name: str) -> Row:
    """The row that a new process gives."""
    done = subprocess.run([sys.executable, __file__, what, name, "--in-process"], capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


# -- tables -----------------------------------------------------------------------------------------------------------
def _within_line(row: Row) -> str:
    by = [row["flops"], row["seconds"]]
    saved = [f"{1 - x['peak'] / row['plain_peak']:.0%}" for x in by]
    time_taken = statistics.median(by[1]["extra_times"])
    return (
        f"{row['plain_peak'] / MIB:>9.1f}{saved[0]:>9}{by[0]['extra_flops']:>+9.1%}{by[0]['without_attention']:>+9.1%}"
        f"{saved[1]:>9}{time_taken:>+9.1%}{by[1]['extra_flops']:>+9.1%}"
    )


def _against_line(row: Row) -> str:
    line = f"{row['plain_peak'] / MIB:>9.1f}{row['peak'] / MIB:>9.2f}{row['extra_flops']:>+9.1%}"
    for what in ("at their peak", "at their extra"):
        x = row[what]
        line += (
            f"{x['peak'] / MIB:>9.2f}{x['extra_flops']:>+9.1%}"
            if "peak" in x
            else f"{x['smallest'] / MIB:>9.2f}  refused"
        )
    return line


def _budgets_line(row: Row) -> str:
    line = f"{row['plain_peak'] / MIB:>9.1f}"
    for what in ("at 70 %", "at the least", "5 % above"):
        x = row[what]
        line += f"{x['budget'] / MIB:>9.2f}"
        line += (
            f"{x['peak'] / MIB:>9.2f} {'kept' if x['peak'] <= x['budget'] else 'MISSED'}"
            if "peak" in x
            else "  refused     "
        )
    return line


TABLES: dict[str, tuple[str, Callable[[Row], str]]] = {
    "within": (
        f"{'plain':>9}{'saved':>9}{'FLOPs':>9}{'less att':>9}{'saved':>9}{'seconds':>9}{'FLOPs':>9}"
        "   MiB; within 15 % FLOPs; within 15 % seconds", _within_line,
    ),
    "against": (
        f"{'plain':>9}{'theirs':>9}{'FLOPs':>9}{'ours':>9}{'FLOPs':>9}{'ours':>9}{'FLOPs':>9}"
        "   MiB; checkpointed layers; ours at their peak; ours at their FLOPs", _against_line,
    ),
    "budgets": (f"{'plain':>9}{'70 %':>9}{'':>14}{'least':>9}{'':>14}{'+ 5 %':>9}   MiB; measured", _budgets_line),
}  # fmt: skip


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("table", choices=TABLES)
    p.add_argument("name", nargs="?", help=argparse.SUPPRESS)
    p.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--models", type=lambda s: s.split(","), help="only these")
    given = p.parse_args()
    torch.set_num_threads(1)
    if given.in_process:
        print(json.dumps(IN_A_PROCESS[given.table](given.name)))
        return
    facts = {"benchmark": f"parts {given.table}", **provenance()}
    heading, line = TABLES[given.table]
    print(f"{'':<14}{heading}")
    rows = []
    for name in given.models or MODELS:
        row = {"model": name, **_ask(given.table, name)}
        print(f"{name:<14}{row['error'] if 'error' in row else line(row)}", flush=True)
        rows.append(row)
    with Path(path_of("parts.jsonl")).open("a", encoding="utf-8") as f:
        f.write(json.dumps(facts | {"rows": rows}) + "\n")


if __name__ == "__main__":
    main()
