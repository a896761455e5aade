"""The largest batch that trains under a memory cap, without a plan and with one, and its throughput.

Every batch that counts was really stepped under the cap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import rekindle
from gpu.cases import Case, held_bytes, repeated, with_gradients
from gpu.devices import Device, get
from gpu.steps import Emit, Row, Way, by_plan, why
from gpu.turns import GPU, KERNELS, passed, turn
from rekindle import InfeasibleBudget, Plan
from rekindle.torch.devices import closest

TOLERANCE = 0.04  # of the batch, within which the largest is found
OVERHEAD = 1 / 3  # extra seconds that a plan may take where the search begins
ROOM = (0.02, 0.06)  # shares of the cap left free, tried in turn
SHRINK, TRIES = 0.93, 4  # where a plan does not fit


def largest(works: Callable[[int], bool], guess: int, tolerance: float = TOLERANCE) -> int:
    """The largest batch for which `works`, to within that share of it; 0: none. Few calls where `guess` is near."""
    good, bad, stride, at = 0, 0, max(1, guess // 8), max(1, guess)
    while True:
        if works(at):
            good = at
        else:
            bad = at
        if bad == 1 or (bad and good and bad - good <= max(1, tolerance * bad)):
            return good
        if not bad:
            at, stride = at + stride, 2 * stride
        elif not good:
            at, stride = max(1, at - stride), 2 * stride
        else:
            at = (good + bad) // 2


class Search:
    """One model under one cap."""

    def __init__(self, case: Case, kind: str, cap_bytes: int):
        self.case, self.kind, self.cap_bytes = case, kind, cap_bytes
        self.device: Device = get(kind)
        self.model, self.one = case.load(kind, batch=1)
        with_gradients(self.model)
        self.device.cap(cap_bytes)
        self.note = ""

    def tried(self, batch: int, way: Way) -> Row | None:
        """Two steps at that batch: what they hold, and the seconds of the second; None where it does not run, and then
        the note says why."""
        self.device.release()
        found = self._stepped(batch, way)
        self.device.release()  # here, where no traceback holds tensors any more
        return found

    def _stepped(self, batch: int, way: Way) -> Row | None:
        try:
            sample = repeated(self.one, batch)
            step = self.case.step(self.model, sample, self.kind)
            with way():
                memory = self.device.memory(step, held_bytes(self.model, sample))
                seconds = self.device.seconds(step)
        except RuntimeError as e:  # out of memory, also as cuDNN's or cuBLAS's; or a kernel for so large a batch lacks
            self.note = f"batch {batch}: {why(e)}"
            return None
        return {
            "batch": batch, "seconds": seconds, "per_second": batch / seconds,
            "peak_bytes": memory.level_bytes + memory.peak_bytes, "reserved_bytes": memory.reserved_bytes,
        }  # fmt: skip

    def plain(self) -> Row | None:
        """The largest batch without a plan."""
        found: dict[int, Row] = {}

        def works(batch: int) -> bool:
            row = self.tried(batch, nullcontext)
            found.update({batch: row} if row else {})
            return row is not None

        first = self.case.batch
        if not works(first):
            guess = max(1, first // 2)
        else:
            a, b = found[first], self.tried(2 * first, nullcontext)
            per_item = (b["peak_bytes"] - a["peak_bytes"]) / first if b else 0
            guess = first + int((self.cap_bytes - a["peak_bytes"]) / per_item) if per_item > 0 else 2 * first
        return found.get(largest(works, guess))

    def planned(self, plain: int, work: Path, solve_seconds: float) -> Row | None:
        """A large batch with a plan: planned for the cap, and stepped. It begins where a plan that costs a third more at the
        plain step's batch would just fit, once what it took there beside its promise is counted."""
        begin = time.perf_counter()
        plan = rekindle.plan(self._trace(plain), max_overhead=OVERHEAD, time_limit=solve_seconds)
        best = self._run(plain, plan, work, begin)
        if best is None:
            return None
        # what kernels and the allocator take beside what the plan knows of, per item
        beside = max(0, (best["reserved_bytes"] or best["peak_bytes"]) - plan.peak_bytes) / plain
        item = plan.activation_peak_bytes / plain + plain_bytes(self.one) + beside
        room = iter(ROOM)
        limit = self.cap_bytes * (1 - next(room))
        batch = int((limit - held_bytes(self.model, None)) / item)
        for _ in range(TRIES):
            if batch <= best["batch"]:
                break
            try:
                plan = rekindle.plan(self._trace(batch), int(limit - beside * batch), time_limit=solve_seconds)
                found = self._run(batch, plan, work, begin)
                if found:
                    return found
                limit = self.cap_bytes * (1 - next(room, ROOM[-1]))
            except InfeasibleBudget as e:
                self.note = f"batch {batch}: {why(e)}"
            batch = int(batch * SHRINK)
        return best

    def _run(self, batch: int, plan: Plan, work: Path, begin: float) -> Row | None:
        """`tried`, and what the plan promised."""
        searched = time.perf_counter() - begin
        with turn(work / GPU):
            row = self.tried(batch, by_plan(self.model, plan))
        return row and row | {
            "predicted_peak_bytes": plan.peak_bytes, "predicted_overhead": plan.overhead,
            "flops_overhead": plan.flops_overhead, "solver": plan.solver, "search_seconds": searched,
        }  # fmt: skip

    def _trace(self, batch: int) -> Any:
        """By roofline: capture runs nothing, so that any batch can be asked for."""
        with self.case.context(self.kind):
            return rekindle.trace(
                self.model, repeated(self.one, batch), target=closest(torch.device(self.kind)).name
            )  # fmt: skip


def plain_bytes(sample: Any) -> int:
    """Bytes of a sample's tensors."""
    leaves = torch.utils._pytree.tree_leaves(sample)
    return sum(t.numel() * t.element_size() for t in leaves if isinstance(t, torch.Tensor))


def measure(
    case: Case, cap: str, cap_bytes: int, kind: str, work: Path, solve_seconds: float, emit: Emit
) -> None:  # fmt: skip
    """Two rows: without a plan and with one."""
    search = Search(case, kind, cap_bytes)
    known = {
        "part": "largest", "model": case.name, "cap": cap, "cap_bytes": cap_bytes, "unit": case.unit,
        "precision": "bf16 autocast" if case.autocast else "float32",
    }  # fmt: skip
    with turn(work / GPU):
        plain = search.plain()
    emit(known | {"method": "plain"} | _said(plain, search.note))
    passed(work / KERNELS)
    search.note = ""
    try:
        planned = search.planned(plain["batch"] if plain else 1, work, solve_seconds)
    except Exception as e:
        planned, search.note = None, why(e)
    emit(known | {"method": "planned"} | _said(planned, search.note))


def _said(row: Row | None, note: str) -> Row:
    return ({"status": "ok"} | row if row else {"status": "failed"}) | {"note": note}
