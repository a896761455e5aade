"""The bench suites: the published protocol is followed, plans hold what they predict, nothing crashes the suite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rekindle.errors import RekindleError, UsageError
from rekindle import bench
from rekindle.zoo import seeds, torchvision_shim

KEYS = {
    "suite", "model", "batch", "image", "method", "solver", "peak_mb", "predicted_mb", "plain_mb", "flops_overhead",
    "parity", "trace_seconds", "solve_seconds", "published_regular_mb", "published_ogc_mb", "measured_regular_mb",
    "measured_ogc_nonreentrant_mb", "versions", "status", "note",
}  # fmt: skip


def rows(suite: str, *args: Any, **options: Any) -> list[dict[str, Any]]:
    return list(bench.run_suite(suite, *args, **options))


@pytest.fixture(scope="module")
def alexnet() -> dict[str, dict[str, Any]]:
    pytest.importorskip("PIL")
    try:
        torchvision_shim.import_torchvision()
    except RekindleError as e:
        pytest.skip(str(e))
    return {r["method"]: r for r in rows("seeds", ["alexnet"], ["plain", "none", "every", "auto@8%"])}


def test_rows_are_complete_and_plain_data(alexnet: dict[str, dict[str, Any]]) -> None:
    assert {"plain", "none", "auto@8%"} <= set(alexnet)
    for r in alexnet.values():
        assert set(r) == KEYS
        assert (r["suite"], r["model"], r["batch"], r["image"]) == ("seeds", "alexnet", 1024, 224)
        assert (r["status"], r["note"], r["parity"]) == ("ok", "", None)
        assert (r["published_regular_mb"], r["published_ogc_mb"]) == (4955, 3287)
        assert set(r["versions"]) == {"rekindle", "torch", "python"}
        assert json.loads(json.dumps(r)) == r


def test_the_plain_step_is_the_published_measurement(alexnet: dict[str, dict[str, Any]]) -> None:
    plain = alexnet["plain"]
    assert plain["peak_mb"] == pytest.approx(3749.5, rel=0.01)
    assert plain["peak_mb"] == plain["plain_mb"] == alexnet["none"]["plain_mb"]
    assert (plain["solver"], plain["predicted_mb"], plain["flops_overhead"]) == (None, None, 0.0)


def test_executed_is_predicted(alexnet: dict[str, dict[str, Any]]) -> None:
    for r in alexnet.values():
        if r["method"] != "plain":
            assert r["peak_mb"] == pytest.approx(r["predicted_mb"], rel=0.001)
            assert r["trace_seconds"] > 0
            assert r["solve_seconds"] > 0
    assert alexnet["none"]["peak_mb"] <= 1.001 * alexnet["plain"]["peak_mb"]
    assert alexnet["none"]["flops_overhead"] == 0.0
    auto = alexnet["auto@8%"]
    assert 0 < auto["flops_overhead"] <= 0.08
    assert auto["peak_mb"] < auto["measured_ogc_nonreentrant_mb"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny ops wait for each other's threads on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_smoke() -> None:
    found = rows("smoke", methods=["plain", "none", "feng"])
    assert {r["model"] for r in found} == {"gpt", "unet", "cnn"}
    for r in found:
        assert set(r) == KEYS
        assert (r["status"], r["note"]) == ("ok", "")
        assert r["parity"] is (None if r["method"] == "plain" else True)
        if r["method"] != "plain":
            assert r["peak_mb"] == pytest.approx(r["predicted_mb"], rel=0.02)
        if r["method"] == "none":
            assert r["peak_mb"] <= 1.02 * r["plain_mb"]


def test_a_failure_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle import api

    def fails(*args: Any, **options: Any) -> None:
        raise RekindleError("no plan today")

    monkeypatch.setattr(api, "plan", fails)
    plain, none = rows("smoke", ["cnn"], ["plain", "none"])
    assert (plain["status"], none["status"]) == ("ok", "failed")
    assert "no plan today" in none["note"]
    assert none["peak_mb"] is None
    assert none["plain_mb"] == plain["peak_mb"]
    assert bench.compare([plain, none])[1][-1] == "failed"


def test_a_model_that_cannot_be_made_fails_in_every_method(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> None:
        raise RekindleError("no such package")

    monkeypatch.setitem(bench.SUITES, "smoke", lambda: {"cnn": (make, {"batch": 4})})
    found = rows("smoke", methods=["plain", "none"])
    assert [(r["status"], r["batch"], r["plain_mb"]) for r in found] == [("failed", 4, None)] * 2
    assert all("no such package" in r["note"] for r in found)


def test_methods() -> None:
    told: list[str] = []
    assert bench._methods(["auto", "none", "auto@8%"], told.append) == ["auto@8%", "auto@33%", "none"]
    assert not told
    chosen = bench._methods(None, told.append)
    left_out = [line.partition(" ")[0] for line in told]
    assert sorted([*chosen, *left_out]) == sorted(bench.METHODS)
    assert bench._parse("auto@12.5%") == ("auto", {"max_overhead": 0.125})


@pytest.mark.parametrize(
    "asked", [("sprouts",), ("seeds", ["resnet7"]), ("smoke", ["gpt"], ["magic"]), ("smoke", None, ["auto@x"])]
)
def test_what_is_unknown_is_a_usage_error(asked: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match=r"choose|it has"):
        bench.run_suite(*asked)


def test_the_comparison_has_one_line_per_model() -> None:
    assert list(bench.SUITES["seeds"]()) == [r.model for r in seeds.ROWS]
    row = {
        "model": "m", "batch": 4, "method": "plain", "peak_mb": 2000.0, "flops_overhead": 0.0, "status": "ok",
        **dict.fromkeys(bench.PUBLISHED),
    }  # fmt: skip
    other = row | {"method": "none", "peak_mb": 10.0, "flops_overhead": 0.25, "published_ogc_mb": 12}
    header, line = bench.compare([other, row])
    assert header == ["model", "batch", "published ogc", "none", "plain"]
    assert line == ["m", "4", "12", "10 (+25.0%)", "2,000"]
