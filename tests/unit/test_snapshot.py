"""The predicted timeline in the format of PyTorch's memory snapshots: its peak is the plan's, and no two blocks overlap."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rekindle
from rekindle.errors import UsageError
from rekindle.model.plan import Plan
from rekindle.show.snapshot import snapshot
from strategies import copied_schedules, joint_graphs, linked
from traced_steps import blocks


def replay(found: dict[str, Any]) -> tuple[int, dict[int, int]]:
    """(most bytes, {address: size} left) of a snapshot's only trace; refuses overlaps and frees of nothing."""
    live: dict[int, int] = {}
    most = 0
    for e in found["device_traces"][0]:
        if e["action"] == "alloc":
            if e["size"]:
                assert all(e["addr"] + e["size"] <= a or a + n <= e["addr"] for a, n in live.items())
                live[e["addr"]] = e["size"]
        elif e["action"] == "free_completed" and e["size"]:
            assert live.pop(e["addr"]) == e["size"]
        most = max(most, sum(live.values()))
    return most, live


@given(joint_graphs(), st.sampled_from([1.0, 0.8]))
def test_the_most_bytes_are_the_plans_peak(graph: rekindle.Graph, part: float) -> None:
    try:
        plan = rekindle.plan(graph, part, solver="none" if part == 1.0 else "every", cache=False)
    except rekindle.InfeasibleBudget:
        return
    found = snapshot(plan)
    most, left = replay(found)
    assert most == plan.peak_bytes
    (segment,) = found["segments"]
    assert {b["address"]: b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"} == left
    assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]


@given(st.data())
def test_a_fetched_value_has_the_frame_of_its_maker(data: st.DataObject) -> None:
    graph = data.draw(linked(joint_graphs()))
    schedule = data.draw(copied_schedules(graph))
    judged = rekindle.simulate(graph, schedule)
    plain = rekindle.plan(graph, 1.0, solver="none", cache=False)
    found = snapshot(replace(plain, graph=graph, schedule=schedule))
    assert replay(found)[0] == judged.peak_bytes
    names = [e["frames"][0]["name"] for e in found["device_traces"][0] if e["action"] == "alloc"]
    fetches = [s.value for s in schedule.steps if isinstance(s, rekindle.Fetch) and graph.values[s.value].bytes]
    assert sum(n.startswith("fetched from the host: ") for n in names) == len(fetches)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return rekindle.plan(blocks(6), 0.7, solver="every", cache=False)


def test_frames_name_the_op_and_the_users_line(plan: Plan) -> None:
    frames = [e["frames"][0] for e in snapshot(plan)["device_traces"][0]]
    assert {"name": "layers.0.fc1 (addmm, f32[4,1024])", "filename": "models/net.py", "line": 10} in frames
    moments = [e["time_us"] for e in snapshot(plan)["device_traces"][0]]
    assert moments == sorted(moments)
    assert moments[-1] > 0


def test_a_failed_write_leaves_the_old_file(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is a folder"):
        plan.to_snapshot(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        plan.to_snapshot(tmp_path / "no" / "s.pickle")
    assert list(tmp_path.iterdir()) == []
