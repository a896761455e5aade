"""Under torch.distributed one process plans and measures, and the others receive what it found."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import two_ranks
from rekindle import RekindleWarning
from rekindle.torch.tensors import ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes saw in the scenes of `two_ranks`."""
    folder = tmp_path_factory.mktemp("ranks")
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(two_ranks.work, (store.port, str(folder)), nprocs=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_costs_that_differ_give_one_plan(seen: list[dict[str, Any]]) -> None:
    one, two = (s["one_plan"] for s in seen)
    assert one["alone"] != two["alone"]  # without the exchange the plans would differ
    assert one["plan"] == two["plan"]
    assert one["plan"]["dear"] == one["plan"]["traced"]
    assert len(one["plan"]["dear"]) == 2  # the costs of one process, in the plan and in its trace
    assert sorted(bool(s["searches"]) for s in (one, two)) == [False, True]
    assert one["steps"]
    assert two["steps"]


def test_a_refusal_is_the_same_in_every_process(seen: list[dict[str, Any]]) -> None:
    one, two = (s["refused"] for s in seen)
    assert one == two
    assert one["type"] == "InfeasibleBudget"
    assert one["budget"] < one["smallest_peak"]


def test_a_process_that_asks_alone_is_answered(seen: list[dict[str, Any]]) -> None:
    one, two = (s["alone"] for s in seen)
    assert one["plan"] == two["plan"] == one["again"] == two["again"]
    assert two["plan"]["dear"] == ["aten.sigmoid.default", "aten.sigmoid_backward.default"]
    assert one["searches"] == 0
    assert two["searches"] > 0


def test_costs_of_another_device_are_another_question(seen: list[dict[str, Any]]) -> None:
    one, two = (s["targets"] for s in seen)
    assert one == two
    assert one["h200"] != one["a100"]


def test_one_process_measures(seen: list[dict[str, Any]]) -> None:
    one, two = (s["costs"] for s in seen)
    assert sorted([one["measured"], two["measured"]]) == [0, 1]
    assert one["costs"] == two["costs"]
    assert any(seconds > 0 for seconds, *_ in one["costs"])


def test_a_process_that_fails_says_so_to_the_others(seen: list[dict[str, Any]]) -> None:
    one, two = (s["failure"] for s in seen)
    assert one["met"]["type"] == "ZeroDivisionError"
    assert two["met"]["type"] == "RekindleError"
    assert "the process of rank 0" in two["met"]["message"]
    assert "ZeroDivisionError: no such number" in two["met"]["message"]
    answers, received = zip(one["later"], two["later"], strict=True)
    assert len(set(answers)) == 1
    assert sorted(received) == [False, True]


def test_nobody_waits_for_ever(seen: list[dict[str, Any]]) -> None:
    one, two = (s["too_long"] for s in seen)
    assert one["met"] == [7, False]
    assert two["met"]["type"] == "RekindleError"
    assert "no answer within 0.5 s" in two["met"]["message"]
    assert two["news"]
    assert all("waiting for the process of rank 0, which makes the number" in line for line in two["news"])
    assert two["later"] == [7, True]


def test_a_planned_module_trains_data_parallel(seen: list[dict[str, Any]]) -> None:
    one, two = (s["trained"] for s in seen)
    assert one["plan"] == two["plan"]
    assert one["same"]
    assert two["same"]
    assert one["parameters"] == 6


def test_parts_have_one_plan(seen: list[dict[str, Any]]) -> None:
    one, two = (s["parts"] for s in seen)
    assert one["plan"] == two["plan"]
    assert one["plan"]["parts"]
    assert sorted([one["made"], two["made"]]) == [0, 1]
    for s in (one, two):
        assert s["bound"]
        assert s["differing"] == 0
        assert s["warned"] == []


def test_a_process_whose_parts_are_others_plans_by_itself(seen: list[dict[str, Any]]) -> None:
    one, two = (s["other_parts"] for s in seen)
    assert one["warned"] == []
    assert len(two["warned"]) == 1
    assert "do not fit the RoutedGPT of this one" in two["warned"][0]
    assert "cannot run again in backward here" in two["warned"][0]
    assert (one["made"], two["made"]) == (1, 1)
    again = [{p["module"] for p in x["plan"]["parts"] if p.get("again")} for x in (one, two)]
    assert again[0]
    assert not again[0] & again[1]
    assert two["differing"] == 0


class Broken:
    """A store as a fake process group has it, or one whose connection broke."""

    def __init__(self, works: bool) -> None:
        self.works = works

    def add(self, key: str, amount: int) -> int:
        if not self.works:
            raise RuntimeError("no such function")
        return amount

    def set(self, key: str, text: Any) -> None:
        if key.endswith("/answer"):
            raise RuntimeError("no connection")


@pytest.mark.parametrize(
    ("works", "says"), [(False, "each process .* plans alone"), (True, "could not be given .* no connection")]
)
def test_a_store_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, works: bool, says: str) -> None:
    monkeypatch.setattr(ranks, "store_of_processes", lambda: Broken(works))
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    with pytest.warns(RekindleWarning, match=says):
        assert ranks.once("the number", {}, lambda: 5, lambda x: x) == 5


def test_without_other_processes_everything_is_made_here() -> None:
    assert ranks.once("the number", {}, lambda: 5, lambda x: pytest.fail("written down")) == 5
