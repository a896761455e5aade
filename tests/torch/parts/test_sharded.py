"""Planned blocks under fully_shard and tensor parallel, in two real processes: as without plans, or refused first."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from marks import few

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

import sharded_scenes as scenes
from processes import seen_by_both

PLANNED = few(
    [s.__name__ for s in scenes.PLANNED],
    ["parts", "mixed_precision", "plan_on_sharded_blocks", "tensor_parallel_beside", "budget_of_a_sharded_step"],
)
REFUSED = {
    "strictly_after_sharding": "parameter 'first.weight' is a DTensor.*parts='blocks.*'.*, then call fully_shard",
    "around_sharded_blocks": "'0' cannot be planned: fully_shard was called for its submodules",
    "whole_then_blocks": "Net was planned, but its parameter 'blocks.0.norm.weight' has been sharded since.*parts='blocks.*'",
    "planned_then_parallel": "Block was planned, but its parameter 'up.weight' .*cannot run tensor-parallel layers",
    "parallel_then_planned": "parameter 'up.weight' is a DTensor.*cannot run tensor-parallel layers",
    "data_parallel_module": "DistributedDataParallel.*plan the module inside, model.module",
}


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes saw in the scenes that the chosen tests look at."""
    chosen = [item.callspec.params["scene"] for item in request.session.items if item.module is request.module]
    return seen_by_both([getattr(scenes, name) for name in chosen], tmp_path_factory.mktemp("sharded"))


@pytest.mark.parametrize("scene", PLANNED)
def test_planned_and_sharded_trains_as_sharded(seen: list[dict[str, Any]], scene: str) -> None:
    """Losses and parameters after three steps, bit for bit, with dropout; state_dict keys are the same."""
    for of_rank in seen:
        found = of_rank[scene]
        assert found["same"], found
        assert found["keys"]
        assert found["planned"] == scenes.PLANNED_BLOCKS.get(scene, [True, True, True])
        assert found["warnings"] == scenes.WARNINGS.get(scene, [])
        assert found.get("searched twice", 0) == 0
        assert found.get("loaded", True)
        assert found.get("plan") == seen[0][scene].get("plan")
        assert found.get("off", 0.0) <= 0.02
        assert found.get("share", 0.0) <= 0.5


@pytest.mark.parametrize("scene", REFUSED)
def test_refused_before_anything_runs(seen: list[dict[str, Any]], scene: str) -> None:
    for of_rank in seen:
        assert of_rank[scene]["type"] in ("UsageError", "TraceError")
        assert of_rank[scene].get("ran", []) == []
        assert re.search(REFUSED[scene], of_rank[scene]["message"])
