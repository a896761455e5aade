"""PyTorch's own tool takes the predicted snapshot."""

from __future__ import annotations

import base64
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from torch.cuda import _memory_viz

import rekindle
from traced_steps import blocks


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[rekindle.Plan, Any]:
    """(plan, its snapshot as read from the file)."""
    path = tmp_path_factory.mktemp("snapshot") / "s.pickle"
    plan = rekindle.plan(blocks(6), 0.7, solver="every", cache=False)
    plan.to_snapshot(path)
    return plan, pickle.loads(Path(path).read_bytes())


def test_trace_plot_embeds_the_snapshot(written: tuple[rekindle.Plan, Any]) -> None:
    plan, found = written
    page = _memory_viz.trace_plot(found)
    inside = [base64.b64decode(x) for x in re.findall(r"[A-Za-z0-9+/]{400,}={0,2}", page)]
    assert pickle.loads(inside[0]) == found
    assert sum(e["action"] == "alloc" for e in found["device_traces"][0]) > len(plan.schedule.runs)


def test_the_other_views_read_it(written: tuple[rekindle.Plan, Any]) -> None:
    _, found = written
    assert f"{len(found['device_traces'][0])} entries" in _memory_viz.trace(found)
    assert "segments: 1" in _memory_viz.segsum(found)
