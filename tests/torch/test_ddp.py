"""A planned model in DistributedDataParallel, in two real processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

import ddp_scenes
from processes import seen_by_both


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return seen_by_both(ddp_scenes.SCENES, tmp_path_factory.mktemp("ddp"))


def test_another_shape_on_one_rank_is_planned_there_and_stalls_nobody(seen: list[dict[str, Any]]) -> None:
    here, there = (s["another_shape_on_one_rank"] for s in seen)
    assert here["same"] == there["same"] == [True] * 5
    assert (here["plans"], there["plans"]) == (1, 3)
    assert max(here["longest"], there["longest"]) < 60  # the time-out of a process group is half an hour


def test_gradients_arrive_while_backward_runs(seen: list[dict[str, Any]]) -> None:
    for s in seen:
        arrived = s["gradients_arrive_one_after_the_other"]
        assert len(set(arrived)) >= 6
        assert arrived == sorted(arrived)
        assert arrived[0] < 0.3
        assert arrived[len(arrived) // 2] < 0.8


def test_a_result_that_nobody_reads_is_none_and_nobody_warns(seen: list[dict[str, Any]]) -> None:
    assert [s["a_result_that_nobody_reads"] for s in seen] == [[True, True]] * 2


def test_only_the_first_process_prints_news(seen: list[dict[str, Any]]) -> None:
    assert [s["speaks"] for s in seen] == [True, False]
