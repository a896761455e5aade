"""Files: what is written is read back the same; what is damaged is refused, never half-read, never another error."""

from __future__ import annotations

import contextlib
import json
import os
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plan_documents import damaged, one_folder, toy, toy_plan
from rekindle.ask import Budget, Fraction, LeastMemory, MaxOverhead, PlanOptions
from rekindle.errors import FormatError, RekindleError, UsageError
from rekindle.model import files, formats
from rekindle.model.graph import Graph, Op, Value
from rekindle.model.judge import simulate
from rekindle.model.plan import schedule_document
from rekindle.parts.files import load
from rekindle.planning.planner import plan_graph
from strategies import graphs, schedules


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


@pytest.mark.parametrize("part", ["[],", "[", '{"a":1},', "1000,", '"ab",'])
def test_a_document_of_too_many_objects_is_refused_before_it_is_made(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "OBJECTS_MOST_BYTES", 2**20)
    text = f"[{part * (2**22 // len(part))}1]"
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="of memory"):
            formats.parse_json(text, "the file")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("levels", [3_000, 50_000])
def test_modules_within_thousands_of_others(levels: int, tmp_path: Path) -> None:
    """Files of them are refused; plans that are made here are told of in full."""
    path = ".".join(["a"] * levels)
    graph = Graph(
        (Value(10), Value(20), Value(5)),
        (Op("a", (0,), (1,), module=path, target="aten.tanh.default"), Op("b", (1,), (2,), backward=True, module=path)),
        (2,),
    )
    plan = plan_graph(graph, PlanOptions(LeastMemory(), solver="none"))
    assert str(plan.explain())
    plan.to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 2**21
    plan.save(tmp_path / "plan.json")
    with pytest.raises(FormatError, match="within 1,000 others"):
        load(tmp_path / "plan.json")


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
    goal = data.draw(st.sampled_from([Budget(2**40), Fraction(1.0), MaxOverhead(0.5), LeastMemory()]))
    plan = plan_graph(
        graph, PlanOptions(goal, solver="none", cost=data.draw(st.sampled_from(["seconds", "flops", "unit"])))
    )
    plan.save(tmp_path / "plan.json")
    again = load(tmp_path / "plan.json")
    assert again == plan
    assert again.figures() == plan.figures()


@pytest.mark.parametrize("path", [5, None, b"plan.json", ["plan.json"], 1.5])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(UsageError):
        load(path)
    with pytest.raises(UsageError):
        toy_plan().save(path)


@pytest.mark.parametrize("path", ["", "a\0b", "n" * 300, "/dev/zero", "/"])
def test_what_is_no_file_is_refused(path: str) -> None:
    with pytest.raises(FormatError):
        load(path)
    with pytest.raises(UsageError):
        toy_plan().save(path)


@pytest.mark.parametrize("seconds", [10**400, 1.7e308, 1e19, float("nan"), float("inf")])
def test_a_number_beyond_all_times_is_refused(seconds: Any) -> None:
    doc = formats.graph_to_json(toy())
    doc["ops"][0]["seconds"] = seconds
    with pytest.raises(FormatError):
        formats.graph_from_json(doc)
    if isinstance(seconds, float):
        with pytest.raises(FormatError):
            replace(toy(), ops=tuple(replace(o, seconds=seconds) for o in toy().ops))


@pytest.mark.parametrize(("field", "each"), [("seconds", 6e17), ("flops", 2**61), ("workspace", 2**61)])
def test_sums_that_cannot_be_counted_are_refused(field: str, each: Any) -> None:
    doc = formats.graph_to_json(toy())
    for op in doc["ops"]:
        op[field] = each
    with pytest.raises(FormatError):
        formats.graph_from_json(doc)


@pytest.mark.parametrize(
    "what",
    [10**5000, [[[[]]]] * 1000, {"a" * 10**6: "b" * 10**6}, "\x1b[2J" * 1000, float("nan")],
    ids=["digits", "many", "long", "escapes", "nan"],
)
def test_complaints_are_short_and_plain(what: Any) -> None:
    for doc in (what, {"format": what}, formats.graph_to_json(toy()) | {"keep": what}):
        with pytest.raises(FormatError) as e:
            formats.graph_from_json(doc)
        assert len(str(e.value)) < 1500
        assert "\x1b" not in str(e.value)


def test_numbers_of_thousands_of_digits_and_large_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    whole = json.dumps(toy_plan().to_json())
    for digits in (5_000, 5_000_000):
        path.write_text(whole.replace('"peak_bytes": ', '"peak_bytes": ' + "9" * digits, 1))
        start = time.monotonic()
        with pytest.raises(FormatError, match="peak_bytes"):
            load(path)
        assert time.monotonic() - start < 10
    monkeypatch.setattr(files.read_text, "__defaults__", (1000, False, False))
    path.write_text(whole)
    with pytest.raises(FormatError, match="no file of Rekindle"):
        load(path)


def test_a_schedule_of_more_work_than_any_step_is_refused_at_once(tmp_path: Path) -> None:
    wide = 30_000
    values = (Value(1),) * (wide + 1)
    ops = (*(Op("f", (), (i,)) for i in range(wide)), Op("g", tuple(range(wide)), (wide,)))
    plan = plan_graph(Graph(values, ops, (wide,)), PlanOptions(LeastMemory(), solver="none"))
    doc = plan.to_json()
    doc["schedule"]["steps"] += [{"run": wide}] * 50_000
    formats.write_json(tmp_path / "plan.json", doc)
    with pytest.raises(FormatError, match="more than any step"):
        load(tmp_path / "plan.json")


def test_permissions_of_a_new_file_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        toy_plan().save(tmp_path / "plan.json")
    finally:
        os.umask(before)
    assert (tmp_path / "plan.json").stat().st_mode & 0o777 == 0o640


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
