"""Files: what is written is read back the same; what is damaged is refused, never half-read, never another error."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rekindle import formats
from rekindle.budget import Goal
from rekindle.errors import FormatError, RekindleError
from rekindle.graph import Graph, Op, Value
from rekindle.plan import Plan, load, schedule_document
from rekindle.planner import plan_graph
from rekindle.simulate import simulate
from strategies import graphs, schedules

one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

junk = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.sampled_from([2**63, -(2**63), 10**400, 1e308, -1.5, 0.5]),
    st.text(max_size=3), st.lists(st.integers(-2, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.none(), max_size=1),
)  # fmt: skip


def toy() -> Graph:
    ops = (Op("f", (0,), (1,), seconds=1.0, flops=8), Op("g", (1,), (2,), seconds=0.5, inplace=(1,)))
    return Graph((Value(1), Value(10), Value(4)), ops, (2,), resident_bytes=100, name="toy")


def toy_plan() -> Plan:
    return plan_graph(toy(), Goal(budget=4096), solver="none")


def places(doc: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every part of a document."""
    found = [path] if path else []
    items = doc.items() if isinstance(doc, dict) else enumerate(doc) if isinstance(doc, list) else ()
    for key, part in items:
        found += places(part, (*path, key))
    return found


@st.composite
def damaged(draw: st.DrawFn, doc: Any) -> Any:
    """The document with one part exchanged, left out or, in a list, doubled."""
    doc = copy.deepcopy(doc)
    *path, last = draw(st.sampled_from(places(doc)))
    parent = doc
    for key in path:
        parent = parent[key]
    what = draw(st.sampled_from(["exchange", "drop", "double"]))
    if what == "drop":
        del parent[last]
    elif what == "double" and isinstance(parent, list):
        parent.insert(last, parent[last])
    else:
        parent[last] = draw(junk)
    return doc


@given(graphs())
def test_graph_round_trip(graph: Graph) -> None:
    again = formats.graph_from_json(json.loads(json.dumps(formats.graph_to_json(graph))))
    assert again == graph
    assert again.hash == graph.hash


@given(st.data())
def test_schedule_round_trip(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    doc: dict[str, Any] = {"format": formats.SCHEDULE, "graph_hash": graph.hash, "solver": "random"}
    doc["steps"] = formats.steps_to_json(schedule)
    assert formats.schedule_from_json(json.loads(json.dumps(doc))) == schedule


@given(st.data())
def test_a_damaged_graph_is_refused_or_whole(data: st.DataObject) -> None:
    doc = data.draw(damaged(formats.graph_to_json(data.draw(graphs()))))
    try:
        graph = formats.graph_from_json(doc)
    except FormatError:
        return
    assert formats.graph_from_json(formats.graph_to_json(graph)) == graph


@given(st.data())
def test_a_damaged_schedule_is_refused_or_judged(data: st.DataObject) -> None:
    graph = toy()
    doc = data.draw(damaged(schedule_document(toy_plan())))
    with contextlib.suppress(FormatError):
        simulate(graph, formats.schedule_from_json(doc))


@given(doc=damaged(toy_plan().to_json()))
@one_folder
def test_a_damaged_plan_is_refused_or_whole(tmp_path: Path, doc: Any) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(doc))
    try:
        plan = load(path)
    except FormatError:
        return
    assert plan.sentence
    plan.save(path)
    assert load(path).figures() == plan.figures()


@given(share=st.floats(0, 0.999))
@example(share=0.999)
@one_folder
def test_a_truncated_plan_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "plan.json"
    text = json.dumps(toy_plan().to_json())
    path.write_text(text[: int(share * len(text))])
    with pytest.raises(FormatError):
        load(path)


@given(raw=st.binary(max_size=40))
@example(raw=b"[" * 100_000)
@example(raw=b'{"format": NaN}')
@example(raw=b"\xff\xfe{}")
@one_folder
def test_foreign_bytes_are_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(raw)
    with pytest.raises(FormatError):
        load(path)


def test_files_that_are_not_there_or_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot read"):
        load(tmp_path / "none.json")
    formats.write_json(tmp_path / "graph.json", formats.graph_to_json(toy()))
    with pytest.raises(FormatError, match="rekindle.graph/1"):
        load(tmp_path / "graph.json")


@given(data=st.data())
@one_folder
def test_plan_round_trip(tmp_path: Path, data: st.DataObject) -> None:
    graph = data.draw(graphs())
    goal = data.draw(
        st.sampled_from([Goal(budget=2**40), Goal(fraction=1.0), Goal(max_overhead=0.5), Goal(least_memory=True)])
    )
    plan = plan_graph(graph, goal, solver="none", cost=data.draw(st.sampled_from(["seconds", "flops", "unit"])))
    plan.save(tmp_path / "plan.json")
    again = load(tmp_path / "plan.json")
    assert again == plan
    assert again.figures() == plan.figures()


@pytest.mark.parametrize(
    "figure", ["peak_bytes", "activation_peak_bytes", "baseline_peak_bytes", "seconds", "overhead", "flops_overhead"]
)
def test_a_plan_that_claims_what_its_schedule_does_not_do_is_refused(tmp_path: Path, figure: str) -> None:
    doc = toy_plan().to_json()
    formats.write_json(tmp_path / "plan.json", doc | {figure: doc[figure] + 1})
    with pytest.raises(FormatError):
        load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    "goal", [{}, {"budget": "much"}, {"budget": None}, {"fraction": 0.5, "budget": 3}, {"size": 3}, {"fraction": -1}]
)
def test_a_plan_with_a_senseless_goal_is_refused(tmp_path: Path, goal: dict[str, Any]) -> None:
    formats.write_json(tmp_path / "plan.json", toy_plan().to_json() | {"goal": goal})
    with pytest.raises(FormatError):
        load(tmp_path / "plan.json")


def test_a_number_beyond_all_floats_is_refused() -> None:
    doc = formats.graph_to_json(toy())
    doc["ops"][0]["seconds"] = 10**400
    with pytest.raises(FormatError):
        formats.graph_from_json(doc)


def test_writing_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    toy_plan().save(path)
    before = path.read_bytes()

    def broken(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(RekindleError, match="the disk is gone"):
        toy_plan().save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path], "no temporary file stays behind"
