"""The largest batch that trains under a memory cap, without a plan and with one, and its throughput.

Every batch that counts was really stepped under the cap.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import rekindle
from gpu.bracket import Clock, OutOfTime, largest
from gpu.cases import GIB, SOLD_SHARE, Case, held_bytes, repeated, with_gradients
from gpu.devices import Device, get
from gpu.steps import Emit, Row, Way, by_plan, why
from gpu.turns import GPU, KERNELS, passed, turn
from rekindle import InfeasibleBudget, Plan
from rekindle.torch.costs.devices import closest


@dataclass(frozen=True)
class SearchSettings:
    """How the search for the largest batch with a plan goes. All figures are guesses.

    first_overhead_share : extra seconds, as a share, that the plan may take at which the search begins.
    free_shares : shares of the cap that a plan leaves free, tried in turn.
    plans_most : a search with plans takes no longer than this many plans at their time limit.
    """

    first_overhead_share: float = 1 / 3
    free_shares: tuple[float, ...] = (0.02, 0.06)
    plans_most: int = 8


SETTINGS = SearchSettings()
OPEN = "the time was up before the batch was known to within 4 %: a larger one may work"


class Search:
    """One model under one cap.

    best : the row of the largest batch so far. settled : whether no batch larger by more than TOLERANCE_SHARE works.
    found : called after each new `best`, so that it survives whatever comes after. end : limit of `time.monotonic`.
    """

    def __init__(
        self, case: Case, kind: str, cap_bytes: int, found: Callable[[], None] = lambda: None, end: float = math.inf
    ):
        self.case, self.kind, self.cap_bytes, self.found, self.end = case, kind, cap_bytes, found, end
        self.device: Device = get(kind)
        self.model, self.one = case.load(kind, batch=1)
        with_gradients(self.model)
        self.device.cap(cap_bytes)
        self.begin(math.inf)

    def begin(self, seconds: float) -> None:
        """Begin a new search, of so many seconds at most."""
        self.clock, self.note, self.settled = Clock(seconds, self.end), "", False
        self.best: Row | None = None
        self.beside, self.room = 0.0, SETTINGS.free_shares[0]

    def tried(self, batch: int, way: Way) -> Row | None:
        """Run two steps at that batch: their memory, and the seconds of the second. None if they fail; the note says why."""
        self.device.release()
        found = self._stepped(batch, way)
        self.device.release()  # only here does no traceback hold tensors any more
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

    def grown(self, row_at: Callable[[int], Row | None], guess: int) -> None:
        """Find the largest batch for which `row_at` has a row, beginning with the guess and not below `best`."""

        def works(batch: int) -> bool:
            return self._kept(row_at(batch))

        try:
            largest(self.clock.timed(works), guess, good=self.best["batch"] if self.best else 0)
            self.settled = True
        except OutOfTime:
            self.note = "; ".join(filter(None, [OPEN, self.note]))

    def _kept(self, row: Row | None) -> bool:
        if row and (self.best is None or row["batch"] > self.best["batch"]):
            self.best = row
            self.found()
        return row is not None

    def plain(self) -> Row | None:
        """The largest batch without a plan."""
        self.begin(math.inf)
        a = self.tried(self.case.batch, nullcontext)
        guess = max(1, self.case.batch // 2)
        if self._kept(a) and a:
            b = self.tried(2 * a["batch"], nullcontext)
            self._kept(b)
            per_item = (b["peak_bytes"] - a["peak_bytes"]) / a["batch"] if b else 0
            guess = a["batch"] + int((self.cap_bytes - a["peak_bytes"]) / per_item) if per_item > 0 else 2 * a["batch"]
        self.grown(lambda batch: self.tried(batch, nullcontext), guess)
        return self.best

    def planned(self, plain: int, work: Path, solve_seconds: float) -> Row | None:
        """The largest batch with a plan for the cap, really stepped.

        It begins at the batch at which a plan that costs a third more would just fit, judging by a step at the plain batch and
        the memory which that step took beyond its plan.
        """
        self.begin(SETTINGS.plans_most * solve_seconds)
        begin = time.perf_counter()
        guess = self._guess(plain, work, solve_seconds, begin)
        self.grown(lambda batch: self._fitted(batch, work, solve_seconds, begin), guess)
        return self.best

    def _guess(self, plain: int, work: Path, solve_seconds: float, begin: float) -> int:
        """The batch to begin at, from a planned step at the largest plain batch."""
        plan = rekindle.plan(self._trace(plain), max_overhead=SETTINGS.first_overhead_share, time_limit=solve_seconds)
        row = self._run(plain, plan, work, begin)
        if not self._kept(row) or not row:
            return plain
        self.beside = _beside(row)
        item = plan.activation_peak_bytes / plain + plain_bytes(self.one) + self.beside
        return int((self.cap_bytes * (1 - self.room) - held_bytes(self.model, None)) / item)

    def _fitted(self, batch: int, work: Path, solve_seconds: float, begin: float) -> Row | None:
        """Step by a plan for the cap; if the step exceeds its plan, by a plan that leaves more of the cap free."""
        for room in SETTINGS.free_shares[SETTINGS.free_shares.index(self.room) :]:
            limit = int(self.cap_bytes * (1 - room) - self.beside * batch)
            try:
                plan = rekindle.plan(self._trace(batch), max(1, limit), time_limit=solve_seconds)
            except (InfeasibleBudget, torch.OutOfMemoryError) as e:
                self.note = f"batch {batch}: {why(e)}"
                return None
            row = self._run(batch, plan, work, begin)
            if row:
                # only downward: an allocator near the cap takes all there is
                self.room, self.beside = room, min(self.beside, _beside(row))
                return row
        return None

    def _run(self, batch: int, plan: Plan, work: Path, begin: float) -> Row | None:
        """`tried`, with the plan's predictions."""
        waits = time.monotonic()
        searched = time.perf_counter() - begin
        with turn(work / GPU):
            self.clock.waited += time.monotonic() - waits
            row = self.tried(batch, by_plan(self.model, plan))
        return row and row | {
            "predicted_peak_bytes": plan.peak_bytes, "predicted_overhead": plan.overhead,
            "flops_overhead": plan.flops_overhead, "solver": plan.solver, "search_seconds": searched,
        }  # fmt: skip

    def _trace(self, batch: int) -> Any:
        """The trace by roofline: capture runs nothing, so any batch can be captured."""
        with self.case.context(self.kind):
            return rekindle.trace(
                self.model, repeated(self.one, batch), target=closest(torch.device(self.kind)).name
            )  # fmt: skip


def plain_bytes(sample: Any) -> int:
    """Bytes of a sample's tensors."""
    leaves = torch.utils._pytree.tree_leaves(sample)
    return sum(t.numel() * t.element_size() for t in leaves if isinstance(t, torch.Tensor))


def _beside(row: Row) -> float:
    """Bytes per item that kernels and the allocator took beyond the plan."""
    return float(max(0, (row["reserved_bytes"] or row["peak_bytes"]) - row["predicted_peak_bytes"]) / row["batch"])


def measure(
    case: Case, cap: str, cap_bytes: int, kind: str, work: Path, solve_seconds: float, emit: Emit, end: float = math.inf
) -> None:  # fmt: skip
    """Emit two rows, without a plan and with one, and before each a row per batch that worked. end : of `time.monotonic`."""
    known = {
        "part": "largest", "model": case.name, "cap": cap, "cap_bytes": cap_bytes, "unit": case.unit,
        "precision": "bf16 autocast" if case.autocast else "float32",
    }  # fmt: skip
    has = get(kind).device_bytes()
    if has is not None and SOLD_SHARE * cap_bytes <= has < cap_bytes:
        known |= {"cap": f"{cap}: all of {has / GIB:.1f} GiB", "cap_bytes": has}
        cap_bytes = has
    if has is not None and has < cap_bytes:
        note = f"the device has {has / GIB:.2f} GiB"
        for method in ("plain", "planned"):
            emit(known | {"method": method, "status": "does not apply", "note": note})
        return

    def found() -> None:  # this row stays only if the job is stopped before the search ends
        emit(known | {"status": "ok"} | (search.best or {}) | {"settled": False, "note": OPEN})

    search = Search(case, kind, cap_bytes, found, end)
    known["method"] = "plain"
    with turn(work / GPU):
        known["free_bytes"] = search.device.free_bytes()
        plain = search.plain()
    emit(known | _said(search))
    passed(work / KERNELS)
    known["method"] = "planned"
    try:
        search.planned(plain["batch"] if plain else 1, work, solve_seconds)
    except Exception as e:
        search.note = why(e)
    emit(known | _said(search))


def _said(search: Search) -> Row:
    found = {"status": "ok"} | search.best if search.best else {"status": "failed"}
    return found | {"settled": search.settled, "note": search.note}
