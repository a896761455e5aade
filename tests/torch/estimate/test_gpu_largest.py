"""The search of the GPU benchmark for the largest batch that fits."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu.largest as gpu_largest
import pytest
from gpu import devices
from gpu.cases import largest_cases
from gpu.largest import largest
from gpu.rows import Row, bench_row

import rekindle


@pytest.mark.parametrize("limit", [0, 1, 5, 37, 1000])
@pytest.mark.parametrize("guess", [1, 30, 900])
def test_the_largest_batch_is_found(limit: int, guess: int) -> None:
    asked: list[int] = []

    def works(batch: int) -> bool:
        asked.append(batch)
        return batch <= limit

    found = largest(works, guess)
    assert limit - max(1, 0.04 * (limit + 1)) <= found <= limit
    assert len(asked) == len(set(asked)) <= 25


GIB = 2**30
HEAD = {"date": "2026-01-01", "command": "python", "seconds": 1.0}


def markdown(head: dict[str, Any], rows: list[Row]) -> str:
    """The report of measurements as jobs emit them."""
    pytest.importorskip("pandas")
    from gpu.report import markdown as report

    return report(head, [bench_row(r) for r in rows])


class Mock(gpu_largest.Search):
    """Steps of `tick` seconds that work up to a batch of 300 without a plan and up to `limit` with one."""

    limit, tick, asked = 3000, 0.0, 0

    def _trace(self, batch: int) -> Any:
        return batch

    def tried(self, batch: int, way: Any) -> Row | None:
        self.asked += 1
        time.sleep(self.tick)
        works = batch <= (300 if way is nullcontext else self.limit)
        self.note = "" if works else f"batch {batch}: OutOfMemoryError"
        row = {"batch": batch, "seconds": 1.0, "per_second": batch, "peak_bytes": batch, "reserved_bytes": None}
        return row if works else None


def mocked(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Plans promise a byte per item, and there are some down to a thirtieth of that. The list is for rows."""

    def plan(batch: int, budget: int | None = None, **_: Any) -> Any:
        if budget is not None and budget < batch / 30:
            raise rekindle.InfeasibleBudget(f"{budget} bytes are too few")
        return SimpleNamespace(
            peak_bytes=batch, activation_peak_bytes=batch, overhead=0.3, flops_overhead=0.3, solver="mock"
        )

    monkeypatch.setattr(rekindle, "plan", plan)
    monkeypatch.setattr(gpu_largest, "by_plan", lambda model, plan: "by plan")
    monkeypatch.setattr(gpu_largest, "plain_bytes", lambda sample: 0)
    monkeypatch.setattr(gpu_largest, "held_bytes", lambda model, sample: 0)
    monkeypatch.setattr(gpu_largest, "Search", Mock)
    return []


@pytest.mark.parametrize("limit", [300, 301, 990, 1000, 3000])
def test_the_largest_batch_with_a_plan_is_found_from_a_low_guess(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mocked(monkeypatch)
    search = Mock(largest_cases(True)[0], "cpu", 1000)  # so that the guess is 980
    search.limit = limit
    row = search.planned(300, tmp_path, 100.0)
    assert row is not None
    assert 0.96 * (limit + 1) - 1 <= row["batch"] <= limit
    assert search.settled
    assert search.asked <= 20  # two for a batch that is too large


def test_a_plan_for_larger_batches_is_sought_where_the_first_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mocked(monkeypatch)
    search = Mock(largest_cases(True)[0], "cpu", 1000)
    search.limit = 50
    row = search.planned(60, tmp_path, 100.0)
    assert row is not None
    assert 48 <= row["batch"] <= 50


def test_a_search_without_time_says_so_and_keeps_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = mocked(monkeypatch)
    monkeypatch.setattr(Mock, "tick", 0.05)
    case = largest_cases(True)[0]
    gpu_largest.measure(case, "1000 B", 1000, "cpu", tmp_path, 0.03, rows.append)  # eight times 0.03 s for plans
    ended = {r["method"]: r for r in rows}
    assert ended["plain"]["settled"] is True
    assert ended["plain"]["batch"] in range(289, 301)
    planned = ended["planned"]
    assert (planned["status"], planned["settled"]) == ("ok", False)
    assert "time was up" in planned["note"]
    text = markdown(HEAD, rows)
    assert f"| at least {planned['batch']} |" in text
    assert f"| {ended['plain']['batch']} |" in text
    assert "found to within 4 %; *at least*" in text
    assert "1000 B, planned: at least" in text


def test_a_search_that_is_stopped_or_breaks_keeps_the_best_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = mocked(monkeypatch)
    fine = rekindle.plan

    def breaks(batch: Any, *args: Any, **options: Any) -> Any:
        if batch > 2000:
            raise RuntimeError("no such kernel")
        return fine(batch, *args, **options)

    monkeypatch.setattr(rekindle, "plan", breaks)
    gpu_largest.measure(largest_cases(True)[0], "1000 B", 1000, "cpu", tmp_path, 100.0, rows.append)
    assert [r["batch"] for r in rows if r["method"] == "planned"] == sorted(
        r["batch"] for r in rows if r["method"] == "planned"
    )
    last = rows[-1]
    assert (last["status"], last["settled"], last["note"]) == ("ok", False, "RuntimeError: no such kernel")


def test_a_cap_of_a_devices_nominal_size_is_all_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.Cpu, "device_bytes", lambda self: 79 * GIB, raising=False)
    rows = mocked(monkeypatch)
    gpu_largest.measure(largest_cases(True)[0], "80 GiB", 80 * GIB, "cpu", tmp_path, 1.0, rows.append)
    assert {(r["cap"], r["cap_bytes"]) for r in rows} == {("80 GiB: all of 79.0 GiB", 79 * GIB)}


def test_a_cap_above_what_the_device_has_gives_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.Cpu, "device_bytes", lambda self: 24 * GIB, raising=False)
    rows: list[Row] = []
    gpu_largest.measure(largest_cases(True)[0], "80 GiB", 80 * GIB, "cpu", tmp_path, 1.0, rows.append)
    assert [r["method"] for r in rows] == ["plain", "planned"]
    for row in rows:
        assert row["note"] == "the device has 24.00 GiB"
        assert not {"batch", "per_second", "peak_bytes"} & set(row)
        assert row["status"] not in ("ok", "failed", "left out")
    text = markdown(HEAD, rows)
    assert "unet, 80 GiB, plain: does not apply: the device has 24.00 GiB" in text
    assert "Left out" not in text


def test_memory_that_others_hold_is_told() -> None:
    row = {"part": "largest", "model": "m", "method": "plain", "cap": "24 GiB", "cap_bytes": 24 * GIB, "status": "ok"}
    row |= {"note": "", "batch": 7, "settled": True, "per_second": 1.0, "peak_bytes": GIB, "free_bytes": 22 * GIB}
    assert "m, 24 GiB, plain: only 22.00 GiB of the cap were free" in markdown(HEAD, [row])
