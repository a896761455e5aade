"""Files: what is written is read back the same; what is damaged is refused, never half-read, never another error."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from extra_solver import extra_solver
from rekindle import certificates
from rekindle.ask import Goal, PlanOptions
from rekindle.errors import FormatError, RekindleError, UsageError
from rekindle.model import files, formats
from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.model.judge import simulate
from rekindle.model.plan import Plan, schedule_document
from rekindle.model.schedule import Run, Schedule
from rekindle.plan_files import load
from rekindle.planner import plan_graph
from rekindle.problem import Problem
from rekindle.show import text
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
    return plan_graph(toy(), PlanOptions(Goal(budget=4096), solver="none"))


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
    plan = plan_graph(
        graph, PlanOptions(goal, solver="none", cost=data.draw(st.sampled_from(["seconds", "flops", "unit"])))
    )
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


def tampered(tmp_path: Path, **fields: Any) -> Path:
    formats.write_json(tmp_path / "plan.json", toy_plan().to_json() | fields)
    return tmp_path / "plan.json"


@pytest.mark.parametrize(
    "claim",
    [
        {"status": "proven"}, {"status": "OPTIMAL"}, {"gap": -5.0}, {"gap": 0.5}, {"bound_bytes": -1, "gap": 1.0},
        {"bound_bytes": 10**6, "gap": -1e9}, {"bound_bytes": 0}, {"goal": {"budget": 1}}, {"goal": {"fraction": 1e-9}},
        {"goal": {"budget": 10**30}}, {"goal": {"max_overhead": -0.5}}, {"goal": {"max_overhead": True}},
        {"solve_seconds": -1.0}, {"solve_seconds": 1e300}, {"solver": ""}, {"solver": "x" * 65}, {"solver": "a\x1b[2J"},
        {"bound_op": "none such"}, {"cost": "money"}, {"graph_hash": "0" * 64}, {"peak_bytes": 2**62}, {"seconds": 1e308},
        {"options": []}, {"options": {"time_limit": 0}}, {"options": {"time_limit": "a"}}, {"options": {"seed": 1.5}},
        {"options": {"seed": None}}, {"options": {"optimizer": 3}}, {"options": {"optimizer": "a\nb"}},
        {"options": {"loss": "some"}}, {"options": {"must_save": "a"}}, {"options": {"must_save": [3]}},
        {"options": {"must_save": ["a\x1b[2J"]}}, {"options": {"target": 3}},
        {"options": {"target": "a\x1b[2J"}}, {"options": {"state_bytes": -1}}, {"options": {"state_bytes": 1.5}},
    ],
    ids=str,
)  # fmt: skip
def test_a_claim_that_cannot_be_is_refused(tmp_path: Path, claim: dict[str, Any]) -> None:
    with pytest.raises(FormatError) as e:
        load(tampered(tmp_path, **claim))
    assert len(str(e.value)) < 500
    assert "\x1b" not in str(e.value)


def chain(length: int) -> Graph:
    """A training step of a chain of ops of one second and ten bytes, and twice that in backward."""
    ops = [Op(f"f{i}", (i,), (i + 1,), seconds=1.0, flops=1) for i in range(length)]
    ops.append(Op(BOUNDARY, (length,), (length + 1,), recompute=False))
    ops += [
        Op(f"b{i}", (2 * length - i, i), (2 * length - i + 1,), seconds=2.0, flops=2, backward=True)
        for i in range(length - 1, -1, -1)
    ]
    return Graph((Value(10),) * (2 * length + 2), tuple(ops), (2 * length + 1,), 100, "chain")


def claimed(plan: Plan, bound: int, status: str) -> dict[str, Any]:
    return plan.to_json() | {"bound_bytes": bound, "gap": (plan.peak_bytes - bound) / plan.peak_bytes, "status": status}


@pytest.fixture
def wasteful() -> Iterator[str]:
    """A solver that frees nothing."""

    def solve(problem: Problem) -> list[Schedule]:
        steps = Schedule.baseline(problem.graph).steps
        return [Schedule((s for s in steps if isinstance(s, Run)), problem.graph.hash, "wasteful")]

    with extra_solver("wasteful", solve) as name:
        yield name


def test_a_certificate_that_is_not_proven_again_is_shown_as_such(tmp_path: Path, wasteful: str) -> None:
    honest = plan_graph(chain(12), PlanOptions(Goal(least_memory=True), solver=wasteful))
    path = tmp_path / "plan.json"
    honest.save(path)
    again = load(path)
    assert again.verified
    assert "verified" not in str(again)
    for bound, status in (
        (honest.peak_bytes, "feasible"), (honest.peak_bytes, "optimal"), (honest.bound_bytes, "optimal"), (0, "optimal"),
    ):  # fmt: skip
        formats.write_json(path, claimed(honest, bound, status))
        lied = load(path)
        assert not lied.verified
        assert "not verified" in lied.sentence
        assert "proven" not in lied.sentence
        table, curve = io.StringIO(), io.StringIO()
        Console(file=table, width=160).print(text.plan_table(lied))
        Console(file=curve, width=160).print(text.frontier_table([lied]))
        assert [s.count("not verified") for s in (str(lied), table.getvalue(), curve.getvalue())] == [3, 2, 1]
        lied.save(path)
        assert not load(path).verified, "a second saving proves nothing"
    formats.write_json(path, claimed(honest, 0, "feasible"))
    assert load(path).verified, "less than what is proven may be claimed"


@pytest.mark.parametrize(
    "goal", [Goal(least_memory=True), Goal(max_overhead=0.2), Goal(fraction=1.0), Goal(fraction=0.6)]
)
def test_an_honest_certificate_is_proven_again(tmp_path: Path, goal: Goal) -> None:
    for solver in ("exact", "rotor"):
        plan_graph(chain(8), PlanOptions(goal, solver=solver)).save(tmp_path / "plan.json")
        assert load(tmp_path / "plan.json").verified


def test_proving_again_takes_a_second_at_most_on_3000_ops(tmp_path: Path) -> None:
    plan = plan_graph(chain(1500), PlanOptions(Goal(max_overhead=0.4), solver="chen-sqrt"))
    warm = plan_graph(chain(8), PlanOptions(Goal(least_memory=True), solver="none"))
    for p, most in ((warm, 60.0), (plan, 1.0)):  # the first may compile
        formats.write_json(tmp_path / "plan.json", claimed(p, p.peak_bytes, "optimal"))
        with mock.patch.object(certificates, "holds", return_value=True):
            lied = load(tmp_path / "plan.json")
        start = time.thread_time()
        certificates.holds(lied)
        assert time.thread_time() - start < most


def test_names_in_a_plan_are_printed_and_not_obeyed(tmp_path: Path) -> None:
    evil = "\x1b[2J\x07\r\u202e\ud800"
    graph = chain(8)
    ops = tuple(replace(o, name=o.name + evil) if o.name != BOUNDARY else o for o in graph.ops)
    plan = plan_graph(replace(graph, ops=ops, name=evil), PlanOptions(Goal(least_memory=True), solver="none"))
    plan.save(tmp_path / "plan.json")
    again = load(tmp_path / "plan.json")
    assert again == plan
    out = io.StringIO()
    Console(file=out, width=160).print(text.plan_table(again), text.frontier_table([again]))
    for said in (str(again), again.sentence, out.getvalue()):
        assert not set(evil) & set(said) - set("[2J")


def test_options_go_with_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = toy_plan()
    assert plan.to_json()["options"] == {"time_limit": None, "seed": 0, "optimizer": None}
    for options in (
        {"time_limit": 3.5, "seed": 7, "optimizer": "adamw"}, {"time_limit": None, "seed": 0, "optimizer": None}, {"seed": 1},
    ):  # fmt: skip
        again = load(tampered(tmp_path, options=options))
        again.save(path)
        for read in (again, load(path)):
            assert read.to_json()["options"] == {"time_limit": None, "seed": 0, "optimizer": None} | options
    assert load(tampered(tmp_path, options={"seed": 2, "later": [1]}, more={"later": 10**60})).options.seed == 2


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
    monkeypatch.setattr(files.read_text, "__defaults__", (1000, False))
    path.write_text(whole)
    with pytest.raises(FormatError, match="no file of Rekindle"):
        load(path)


def test_a_schedule_of_more_work_than_any_step_is_refused_at_once(tmp_path: Path) -> None:
    wide = 30_000
    values = (Value(1),) * (wide + 1)
    ops = (*(Op("f", (), (i,)) for i in range(wide)), Op("g", tuple(range(wide)), (wide,)))
    plan = plan_graph(Graph(values, ops, (wide,)), PlanOptions(Goal(least_memory=True), solver="none"))
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
