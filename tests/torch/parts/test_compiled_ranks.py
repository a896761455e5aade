"""Compiled parts in two real processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

import compiled_scenes
from marks import sweep
from processes import seen_by_both


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return seen_by_both(compiled_scenes.SCENES, tmp_path_factory.mktemp("compiled"))


@sweep
@pytest.mark.parametrize("scene", ["data_parallel", "accumulating", "sharded", "sharded_first"])
def test_numbers_are_those_of_parts_compiled_without_a_plan(seen: list[dict[str, Any]], scene: str) -> None:
    here, there = (s[scene] for s in seen)
    assert "ways" in here, here
    assert here["ways"] == there["ways"] != []
    assert set(here["ways"]) != {"min-cut"}
    assert max(here["apart"], there["apart"]) < 1e-6


@sweep
@pytest.mark.parametrize("scene", ["data_parallel_copying", "sharded_copying"])
def test_copies_to_the_host_change_no_number(seen: list[dict[str, Any]], scene: str) -> None:
    for found in (s[scene] for s in seen):
        assert found == {"apart": 0.0, "ways": ["copies"]}


@sweep
def test_a_sharded_model_keeps_its_predicted_peak(seen: list[dict[str, Any]]) -> None:
    for found in (s["sharded_first"] for s in seen):
        assert found["fits"], found
        assert found["apart"] < 1e-6
        assert abs(found["peak_error"]) < 0.03
