"""The page's part on heads in chunks, and plans that need only be close, which are compared with nothing else."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from page.document import made
from page.heads import heads_part
from page.rounding import rounding_part
from page.rows import table
from page.standings import standings
from page.unit_costs import unit_rows

from rekindle.bench.files import checked


def row(model: str, method: str, peak: float | None, **more: Any) -> dict[str, Any]:
    solver = "auto" if method.startswith("auto") and method != "auto-chunker" else None
    return checked({
        "suite": "modern", "model": model, "method": method, "solver": solver, "cost": "unit", "plain_mb": 1000.0,
        "peak_mb": peak, "status": "failed" if peak is None else "ok", "flops_overhead": 0.0, "overhead": 0.0, "note": "",
    } | more)  # fmt: skip


ROWS = [
    row("m", "plain", 1000.0),
    row("m", "linear-cross-entropy", 600.0, note="beside the plain step: loss off by 0"),
    row("m", "auto-chunker", None, note="does not apply: it says no"),
    row("m", "checkpoint-blocks", 900.0),
    row("m", "auto@8%", 700.0, slices=0, sums=[]),
    row("m-unused", "plain", 1000.0),
    row("m-unused", "auto-chunker", 500.0),
    row("m-unused", "auto@8%~close", 400.0, slices=12, sums=["head.weight"], parity=False),
    row("other", "plain", 1000.0),
    row("other", "auto@8%", 300.0),
]


def test_one_line_for_each_way_that_ran() -> None:
    text = heads_part(table(ROWS))
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| m")][1:]
    assert [(line[0].strip("| "), line[1]) for line in lines] == [
        ("m", "plain"), ("m", "linear-cross-entropy"), ("m", "auto@8%"), ("m-unused", "plain"), ("m-unused", "auto-chunker"),
        ("m-unused", "auto@8%~close"),
    ]  # fmt: skip
    assert lines[1][-1].startswith("beside the plain step: loss off by 0")
    assert lines[-1][7:9] == ["12", "head.weight"]
    assert "400" in lines[-1]
    assert heads_part(table(ROWS[-2:])) == ""


def test_peaks_stand_beside_peaks_up_to_rounding() -> None:
    rows = [
        row("n", "plain", 1000.0), row("n", "auto@8%", 500.0, flops_overhead=0.07),
        row("n", "auto@8%~close", 250.0, parity=False), row("n", "auto@33%~close", None, note="it failed"),
        row("n", "hong", 800.0),
    ]  # fmt: skip
    lines = [line for line in rounding_part(table(rows + ROWS)).splitlines() if line.startswith("| ")]
    assert lines[0] == "| model | plain | auto@8% | auto@8%~close |"
    assert lines[2:] == ["| n | 1,000 | 500 (+7.0%) | 250 (+0.0%) |"]
    assert rounding_part(table(ROWS)) == ""
    assert heads_part(table(rows)) == ""


def test_plans_that_need_only_be_close_are_compared_with_nothing() -> None:
    pages, pictures = made(ROWS, "benchmarks")
    assert "auto@8%~close" in pages["modern"]
    assert "close" not in pictures["modern-m-unused.svg"]
    assert "auto-chunker" in pictures["modern-m-unused.svg"]
    t = table(ROWS)
    assert t.loc[t["close"], "method"].tolist() == ["auto@8%~close"]
    assert t.loc[t["close"], "solver_name"].tolist() == ["auto"]
    (lost,) = standings(t[~t["close"]]).query(
        "model == 'm' and method == 'linear-cross-entropy' and measure == 'flops'"
    )["loss"]
    assert lost > 0


def test_a_model_that_stands_there_twice_counts_once() -> None:
    assert set(unit_rows(table(ROWS))["model"]) == {"m", "other"}
