"""Where another method beats `auto`: losses are told from questions that it was not asked, by each measure of cost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rekindle.bench.row import Row

pd = pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

import page.standings  # noqa: E402
from page.rows import table  # noqa: E402

from test_benchmark_page import PLAIN, cells, row  # noqa: E402
from test_benchmark_page import page as whole_page  # noqa: E402


def standings(rows: list[Row], tolerance: float = 0.01) -> list[SimpleNamespace]:
    found = page.standings.standings(table(rows), tolerance).to_dict("records")
    return [SimpleNamespace(**{k: None if pd.isna(x) else x for k, x in s.items()}) for s in found]


def dominated(rows: list[Row], tolerance: float = 0.01) -> list[SimpleNamespace]:
    return [s for s in standings(rows, tolerance) if s.loss > tolerance]


def test_a_row_that_auto_matches_within_the_tolerance_is_no_loss() -> None:
    rows = [PLAIN, row("auto@8%", 505.0, 0.105), row("auto=1", 1000.0, 0.0), row("feng", 500.0, 0.10)]
    assert dominated(rows) == []
    found = {s.method: s for s in standings(rows) if s.measure == "flops"}
    assert set(found) == {"plain", "feng"}
    assert found["plain"].loss == 0
    assert (found["feng"].nearest, found["feng"].loss) == ("auto@8%", pytest.approx(0.01))
    (lost,) = dominated(rows, tolerance=0.005)
    assert lost.method == "feng"


def test_better_in_memory_and_in_cost_is_below_zero() -> None:
    (found,) = standings([row("auto", 400.0, 0.1), row("feng", 500.0, 0.2)])
    assert found.loss == pytest.approx(1.1 / 1.2 - 1)


@pytest.mark.parametrize(
    ("auto", "asked"),
    [
        (row("auto@8%", 700.0, 0.08), True),  # feng keeps 8 % and is smaller
        (row("auto@8%", None), True),  # a failure where feng has an answer
        (row("auto@2%", 700.0, 0.02), False),  # feng is dearer than was allowed
        (row("auto=0.7", 690.0, 0.2), True),  # feng fits 700 MB and is cheaper
        (row("auto=0.5", 500.0, 0.2), False),  # feng does not fit 500 MB
        (row("auto=0.5", None), False),
        (row("auto=0.7", None), True),
        (row("auto", 700.0, 0.0), True),  # least memory, and feng's is less
        (row("auto", 500.0, 0.9), False),
        (row("auto=ogc", 690.0, 0.2, measured_ogc_nonreentrant_mb=695.0), True),
        (row("auto=ogc", 500.0, 0.2, measured_ogc_nonreentrant_mb=510.0), False),
        (row("auto=ogc", None, published_ogc_mb=700), False),  # never run by PyTorch: no memory to keep
        (row("auto@8%", 700.0, 0.08, cost="unit"), False),  # 8 % of something else
        (row("auto=feng", 590.0, 0.2), True),  # within the same memory feng is cheaper
        (row("auto=feng", None), True),
        (row("auto=every", 500.0, 0.2), False),  # not within that of `every`
    ],
)
def test_a_loss_is_told_from_a_question_never_asked(auto: Row, asked: bool) -> None:
    rows = [auto, row("feng", 600.0, 0.05), row("every", 510.0, 0.9)]
    (lost,) = [s for s in dominated(rows) if s.method == "feng"]
    assert lost.asked == asked
    assert lost.loss > 0.01
    assert (lost.nearest is None) == (auto["status"] == "failed")


def test_each_measure_is_judged_by_itself_and_unknown_costs_not_at_all() -> None:
    rows = [
        row("auto@8%", 500.0, 0.08, seconds_overhead=0.30), row("feng", 500.0, 0.10, seconds_overhead=0.10),
        row("every", 500.0, 0.10), row("none", None), row("auto", 490.0, 0.4, model="other"),
    ]  # fmt: skip
    assert [(s.method, s.measure) for s in standings(rows)] == [
        ("feng", "seconds"), ("feng", "flops"), ("every", "flops"),
    ]  # fmt: skip
    (lost,) = dominated(rows)
    assert (lost.measure, lost.nearest_overhead) == ("seconds", 0.30)
    assert lost.loss == pytest.approx(1.3 / 1.1 - 1)
    twice = [row("auto", 900.0, 0.5), row("compile-0", 800.0, 0.1), row("compile-0", 800.0, 0.1, cost="seconds")]
    assert [s.cost for s in standings(twice)] == [None]  # nothing was planned: once, whatever the cost of the others
    text, _ = whole_page(rows, "x")
    assert cells(text, "FLOPs", "matched") == ["2"]
    assert cells(text, "modelled time", "rows compared") == ["1"]
    assert cells(text, "m", "not asked") == ["feng (FLOPs) +18.2%", "-"]


def test_losses_are_listed_the_greatest_first() -> None:
    rows = [PLAIN, row("auto@8%", 700.0, 0.08), row("feng", 600.0, 0.05), row("every", 500.0, 0.05)]
    text, _ = whole_page(rows, "x")
    part = text[text.index("## Where auto loses") : text.index("## Names of methods")]
    losses = [line for line in part.splitlines() if line.startswith("| m ")]
    assert [line.split(" | ")[1] for line in losses] == ["every", "feng"]
    assert cells(part, "m", "worse by") == ["+40.0%", "+16.7%"]
    assert cells(part, "m", "its peak MB") == ["700", "700"]
    assert cells(part, "FLOPs", "losses") == ["2"]
    assert cells(text, "m", "loses to") == ["every +40.0%, feng +16.7%"]
