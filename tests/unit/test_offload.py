"""Plans that copy values to the host: their arguments, their files, what is remembered of them, and how they are shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import asked
import rekindle
from command_line import step
from graphs_by_hand import chain, unrolled
from plan_documents import damaged, one_folder
from rekindle import FormatError, Graph, InfeasibleBudget, Link, Plan, UsageError, bounds
from rekindle.ask import Budget, PlanOptions
from rekindle.explain.words import resident_words
from rekindle.model import formats
from rekindle.model.schedule import Schedule
from rekindle.planning.planner import plan_graph
from rekindle.show.snapshot import snapshot

LINK = Link(10.0, 20.0)
TIGHT = 140  # bytes: `step` keeps them where it runs an op again or copies one value


def linked(graph: Graph | None = None, link: Link = LINK) -> Graph:
    return replace(step() if graph is None else graph, link=link)


def planned(**more: Any) -> Plan:
    how = {"budget": TIGHT, "solver": "exact", "offload": True, "cache": False} | more
    return rekindle.plan(linked(), **how)


# -- arguments -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("offload", [1, 0, None, "yes", "True", 0.5, np.zeros(2), [True]])
def test_an_offload_that_is_none_is_refused(offload: Any) -> None:
    with pytest.raises(UsageError, match='offload=.* must be True, False or "auto"'):
        planned(offload=offload)


def test_state_is_moved_by_checkpoint_alone() -> None:
    with pytest.raises(UsageError, match="leave optimizer= out"):
        planned(offload="optimizer")
    words = resident_words(90, 100, 40)
    assert words.endswith('with less state does, and offload="optimizer" keeps its state on the host.')
    assert resident_words(90, 100, 0).endswith("with less state does.")


@pytest.mark.parametrize("host", ["a lot", -1, 1.5, True, [8], "8 apples", float("nan")])
def test_a_host_budget_that_is_no_size_is_refused(host: Any) -> None:
    with pytest.raises(UsageError, match="host_budget.* is no size; write it like"):
        planned(host_budget=host)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(UsageError, match="give offload=True beside it"):
        planned(offload=False, host_budget="1GiB")
    with pytest.raises(UsageError, match='cost="flops" was asked'):
        planned(cost="flops")
    with pytest.raises(UsageError, match="has no link; give it one"):
        rekindle.plan(step(), minimize="memory", offload=True)


def test_auto_copies_nothing_where_there_is_no_link_or_no_second() -> None:
    """The options say what was asked, and later plans of the model are asked the same."""
    for graph, more in ((step(), {}), (linked(), {"cost": "flops"})):
        plan = rekindle.plan(graph, TIGHT, solver="exact", offload="auto", host_budget="1KiB", cache=False, **more)
        assert plan.moved_bytes == plan.host_bytes == 0
        assert plan.peak_bytes <= TIGHT
        assert plan.options.offload == ("auto" if not more else False)


# -- plans -----------------------------------------------------------------------------------------------------------------
def test_a_value_is_copied_where_that_takes_less_than_an_op() -> None:
    plan, without = planned(), planned(offload=False)
    assert (plan.moved_bytes, plan.host_bytes, plan.peak_bytes) == (10, 10, TIGHT)
    assert plan.overhead == pytest.approx(0.5 / 9), "the copy back finds room only after the op that holds most"
    assert without.overhead == pytest.approx(1 / 9)
    assert plan.verified
    assert "copying 10 B to the host and back" in plan.sentence
    assert re.search("copied to the host +10 B each step, at most 10 B at once", str(plan))
    assert plan.figures()["host_bytes"] == plan.figures()["moved_bytes"] == 10


@pytest.mark.parametrize("host", [0, 9, "9B"])
def test_a_host_budget_is_kept(host: Any) -> None:
    """Without room on the host the plan is the one without copies, and its bound is as good as that."""
    plan, without = planned(host_budget=host), planned(offload=False)
    assert (plan.host_bytes, plan.peak_bytes, plan.overhead) == (0, without.peak_bytes, without.overhead)
    assert plan.options.host_budget == int(str(host).rstrip("B"))
    assert planned(host_budget=10).host_bytes == 10


def test_budgets_that_only_copies_keep() -> None:
    """Each op runs once: two values of ten bytes must wait for backward, on the device or on the host."""
    ops = tuple(replace(op, recompute=False) for op in step().ops)
    once = replace(linked(), ops=ops)
    with pytest.raises(InfeasibleBudget):
        rekindle.plan(once, TIGHT, solver="exact", cache=False)
    plan = rekindle.plan(once, TIGHT, solver="exact", offload=True, cache=False)
    assert (plan.peak_bytes, plan.moved_bytes) == (TIGHT, 10)
    least = rekindle.plan(once, minimize="memory", solver="exact", offload=True, cache=False)
    assert least.peak_bytes == TIGHT, "the caller may hold the result, so it stays"
    assert least.bound_bytes == 130


def test_an_error_claims_no_bound_that_copies_go_below() -> None:
    once = replace(linked(), ops=tuple(replace(op, recompute=False) for op in step().ops))
    with pytest.raises(InfeasibleBudget, match="without copies to the host, .*No copies .* found") as e:
        rekindle.plan(once, TIGHT, solver="exact", offload=True, host_budget=0, cache=False)
    assert e.value.bound_bytes <= bounds.single_op(once).bytes


def test_or_least_goes_with_copies() -> None:
    plan = planned(budget=120, or_least=True)
    assert plan.peak_bytes == planned(minimize="memory", budget=None).peak_bytes == 130
    assert plan.options.or_least
    assert plan.options.offload
    assert plan.sentence.startswith("budget not met: takes 130 B")


def test_a_step_without_seconds() -> None:
    """Its ops take no time and its copies do: nothing is proven that a copy refutes."""
    graph = linked(step().with_costs([0.0] * 7))
    graph = replace(graph, ops=tuple(replace(op, recompute=False) for op in graph.ops))
    for goal in ({"budget": TIGHT}, {"minimize": "memory"}, {"max_overhead": 0.5}):
        plan = rekindle.plan(graph, solver="exact", offload=True, cache=False, **goal)
        assert plan.peak_bytes <= (150 if "max_overhead" in goal else 140)  # of no seconds, no share is left for copies
        assert plan.bound_bytes <= 130
        assert plan.verified


@pytest.mark.parametrize("graph", [chain(9), unrolled(5)], ids=["chain", "recurrent"])
@pytest.mark.parametrize("link", [Link(1.0, 1.0), Link(8.0, 8.0, 0.1, both_at_once=False)], ids=["slow", "fast"])
def test_a_larger_budget_is_no_slower(graph: Graph, link: Link) -> None:
    graph = linked(graph, link)
    least = rekindle.plan(graph, minimize="memory", offload=True, cache=False)
    top = rekindle.simulate(graph, Schedule.baseline(graph)).peak_bytes
    found = [
        rekindle.plan(graph, b, offload=True, cache=False)
        for b in range(least.peak_bytes, top + 1, max(1, (top - least.peak_bytes) // 4))
    ]
    seconds = [p.seconds for p in found]
    assert all(a >= b - 1e-9 for a, b in zip(seconds, seconds[1:], strict=False)), seconds


# -- files -----------------------------------------------------------------------------------------------------------------
def test_files_of_plans_with_copies(tmp_path: Path) -> None:
    plan = planned(host_budget="1KiB")
    plan.save(tmp_path / "plan.json")
    doc = json.loads((tmp_path / "plan.json").read_text())
    assert doc["schedule"]["format"] == "rekindle.schedule/2"
    assert {"offload": 2} in doc["schedule"]["steps"] or {"offload": 1} in doc["schedule"]["steps"]
    assert doc["graph"]["link"] == {
        "out_bytes_per_s": 10.0,
        "in_bytes_per_s": 20.0,
        "copy_s": 0.0,
        "both_at_once": True,
    }
    assert (doc["options"]["offload"], doc["options"]["host_budget"]) == (True, 1024)
    loaded = rekindle.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.verified
    assert loaded.options == plan.options
    assert loaded.figures() == plan.figures()


def test_a_plan_that_copies_nothing_is_written_as_before(tmp_path: Path) -> None:
    plan = rekindle.plan(step(), TIGHT, solver="exact", cache=False)
    doc = plan.to_json()
    assert doc["schedule"]["format"] == "rekindle.schedule/1"
    assert "link" not in doc["graph"]
    assert not {"offload", "host_budget"} & doc["options"].keys()
    del doc["host_bytes"], doc["moved_bytes"]  # as older versions wrote it
    formats.write_json(tmp_path / "plan.json", doc)
    assert rekindle.load(tmp_path / "plan.json") == plan


def change(**figures: Any) -> Callable[[dict[str, Any]], None]:
    return lambda doc: doc.update(figures)


TAMPERED: dict[str, Callable[[dict[str, Any]], None]] = {
    "host_bytes": change(host_bytes=0),
    "moved_bytes": change(moved_bytes=20),
    "no host_bytes": lambda doc: doc.pop("host_bytes"),
    "link": lambda doc: doc["graph"]["link"].update(out_bytes_per_s=1.0),
    "no link": lambda doc: doc["graph"].pop("link"),
    "a link that is none": lambda doc: doc["graph"]["link"].update(in_bytes_per_s=0.0),
    "a slower link than any": lambda doc: doc["graph"]["link"].update(in_bytes_per_s=1e-320),
    "a link without a field": lambda doc: doc["graph"]["link"].pop("in_bytes_per_s"),
    "a list for a link": lambda doc: doc["graph"].update(link=[1, 2]),
    "an older format": lambda doc: doc["schedule"].update(format="rekindle.schedule/1"),
    "a newer format": lambda doc: doc["schedule"].update(format="rekindle.schedule/3"),
    "no copy": lambda doc: doc["schedule"].update(steps=[s for s in doc["schedule"]["steps"] if "offload" not in s]),
    "no fetch": lambda doc: doc["schedule"].update(steps=[s for s in doc["schedule"]["steps"] if "fetch" not in s]),
    "a copy of two": lambda doc: doc["schedule"]["steps"].insert(0, {"offload": 1, "fetch": 1}),
    "a copy of no number": lambda doc: doc["schedule"]["steps"].insert(0, {"offload": "1"}),
    "a copy of none such": lambda doc: doc["schedule"]["steps"].insert(0, {"fetch": 99}),
    "another step": lambda doc: doc["schedule"]["steps"].insert(0, {"swap": 1}),
    "offload": lambda doc: doc["options"].update(offload="always"),
    "host_budget": lambda doc: doc["options"].update(host_budget=-1),
    "a host budget that is not kept": lambda doc: doc["options"].update(host_budget=9),
    "another cost": change(cost="flops", overhead=0.0),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_plan_is_refused(tmp_path: Path, what: str) -> None:
    doc = planned().to_json()
    TAMPERED[what](doc)
    (tmp_path / "plan.json").write_text(json.dumps(doc))
    with pytest.raises(FormatError):
        rekindle.load(tmp_path / "plan.json")


@given(doc=damaged(planned().to_json()))
@one_folder
def test_a_damaged_plan_with_copies_is_refused_or_whole(tmp_path: Path, doc: Any) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(doc))
    try:
        plan = rekindle.load(tmp_path / "plan.json")
    except FormatError:
        return
    assert plan.sentence
    plan.save(tmp_path / "plan.json")
    assert rekindle.load(tmp_path / "plan.json").figures() == plan.figures()


def test_a_bound_for_schedules_without_copies_is_not_proven_of_a_plan_with_copies(tmp_path: Path) -> None:
    """The file leaves out that copies were asked for. Schedules without copies that take no more time need 150 bytes."""
    doc = planned().to_json()
    del doc["options"]["offload"]
    doc |= {"bound_bytes": TIGHT, "gap": 0.0}
    assert bounds.at_overhead(linked(), linked().weights(), 0.0).bytes == 150
    formats.write_json(tmp_path / "plan.json", doc)
    assert not rekindle.load(tmp_path / "plan.json").verified


def test_graphs_and_schedules_round_trip() -> None:
    for graph in (linked(), linked(link=Link(1e9, 2e9, 1e-5, False)), step()):
        doc = json.loads(json.dumps(formats.graph_to_json(graph)))
        assert formats.graph_from_json(doc) == graph
        assert graph.hash == step().hash
    doc = formats.graph_to_json(linked())
    doc["link"] = {"out_bytes_per_s": 10, "in_bytes_per_s": 20}
    assert formats.graph_from_json(doc) == linked()


# -- remembered ------------------------------------------------------------------------------------------------------------
def test_plans_with_copies_are_recalled(memory_of_plans: Path) -> None:
    options = PlanOptions(Budget(TIGHT), solver="exact", offload=True)
    with asked.searches("exact") as searches:
        first = plan_graph(linked(), options)
        count = len(searches)
        assert count > 0
        again = plan_graph(linked(), options)
        assert len(searches) == count
        assert replace(again, solve_seconds=0.0) == replace(first, solve_seconds=0.0)
        assert again.moved_bytes == 10
        for other in (replace(options, host_budget=9), replace(options, offload=False)):
            assert plan_graph(linked(), other).moved_bytes == 0
        searches.clear()
        plan_graph(linked(link=Link(5.0, 20.0)), options)
        assert searches


@pytest.mark.parametrize("which", [{"offload": False}, {"host_budget": 9}], ids=str)
def test_remembered_copies_that_were_not_asked_for_are_passed_over(
    memory_of_plans: Path, which: dict[str, Any]
) -> None:
    with_copies = PlanOptions(Budget(TIGHT), solver="exact", offload=True)
    plan_graph(linked(), with_copies)
    (theirs,) = (f for f in memory_of_plans.iterdir() if "offload" in f.read_text())
    schedules = json.loads(theirs.read_text())["schedules"]
    theirs.unlink()
    for file in memory_of_plans.iterdir():
        file.unlink()
    options = replace(with_copies, **which)
    plan_graph(linked(), options)
    for file in memory_of_plans.iterdir():
        formats.write_json(file, json.loads(file.read_text()) | {"schedules": schedules})
    assert plan_graph(linked(), options).moved_bytes == 0


# -- shown -----------------------------------------------------------------------------------------------------------------
def test_a_plan_with_copies_is_explained_and_shown(tmp_path: Path) -> None:
    plan = planned()
    explained = plan.explain()
    assert str(explained)
    plan.to_html(tmp_path / "report.html")
    live, most = {}, 0
    for e in snapshot(plan)["device_traces"][0]:
        if e["action"] == "alloc":
            live[e["addr"]] = e["size"]
            assert e["frames"][0]["name"]
        elif e["action"] == "free_completed":
            del live[e["addr"]]
        most = max(most, sum(live.values()))
    assert most == plan.peak_bytes
    assert plan.arena_bytes >= plan.activation_peak_bytes
