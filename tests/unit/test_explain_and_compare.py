"""Explanations of plans of parts, remedies on graphs made by hand, and comparisons of two plans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

import rekindle
from command_line import PLAIN, Ran, step
from plan_documents import parts_plan
from rekindle.errors import UsageError
from rekindle.explain import explain_schedule
from rekindle.explain.comparison import Difference, Sizes, compare
from rekindle.model import formats
from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.model.plan import Plan
from rekindle.model.schedule import Schedule
from rekindle.show.compared import compared_view

MIB = 2**20


def planned(graph: Graph | None = None, **goal: object) -> Plan:
    return rekindle.plan(graph or step(), **(goal or {"minimize": "memory"}), solver="exact", progress=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("baseline", [900, None])
def test_parts_add_up_to_the_saving(baseline: int | None, tmp_path: Path) -> None:
    plan = parts_plan(baseline)
    e = plan.explain()
    assert [(r.pattern, r.count) for r in e.rows] == [("h.*", 3), ("head", 1)]
    one = planned()
    assert e.rows[0].saved_bytes == 3 * (one.baseline_peak_bytes - one.peak_bytes) > 0
    if baseline is None:
        assert (e.saved_bytes, e.rest_bytes) == (None, None)
        assert "not measured" in str(e)
    else:
        assert e.saved_bytes == 200 == sum(r.saved_bytes for r in e.rows) + (e.rest_bytes or 0)
    lines = str(e).split("\n")
    assert len(lines) <= 45
    assert max(map(cell_len, lines)) <= 80
    assert json.loads(json.dumps(e.to_json()))["rows"][0]["count"] == 3
    plan.save(tmp_path / "parts.json")
    assert rekindle.load(tmp_path / "parts.json").explain() == e


def test_a_plan_that_moves_no_peak_has_no_row_for_that() -> None:
    plan = parts_plan()
    assert any(line.startswith("elsewhere: the peaks move") for line in plan.explain().lines())
    rest = plan.explain().rest_bytes
    assert rest
    e = replace(plan.explain(), baseline_peak_bytes=900 - rest)
    assert e.rest_bytes == 0
    assert not any(line.startswith("elsewhere") for line in e.lines())


def scaled(graph: Graph, times: int) -> Graph:
    return replace(
        graph, values=tuple(Value(times * v.bytes) for v in graph.values), resident_bytes=times * graph.resident_bytes
    )


@pytest.mark.parametrize(("size", "unit"), [(2**20, "MiB"), (2**40, "GiB")])
def test_a_table_of_large_sizes_takes_a_larger_unit(size: int, unit: str) -> None:
    plan = planned(scaled(step(), size))
    lines = plan.explain().lines()
    assert f"In {unit}: kept" in "\n".join(lines)
    assert any(line.split()[-4:] == [unit, "saved", "ms", "added"] for line in lines)
    assert any(line.startswith("gradients, in backward  ") for line in lines)
    total = next(line for line in lines if line.startswith("total")).split()
    shown = float(total[-2].replace(",", "")) * {"MiB": 2**20, "GiB": 2**30}[unit]
    assert shown == pytest.approx(plan.baseline_peak_bytes - plan.peak_bytes, rel=0.01)


def test_rows_of_nothing_and_of_one_module() -> None:
    empty = Graph((), (), (), 10, "empty")
    e = explain_schedule(empty, Schedule.baseline(empty))
    assert not any(r.kind == "others" for r in e.rows)
    ops = tuple(replace(o, module=("tiny" if i == 0 else f"big{i}") if i < 3 else "") for i, o in enumerate(step().ops))
    values = tuple(Value(1 if v == 1 else 10**6) for v in range(8))
    graph = replace(step(), ops=(replace(ops[0], seconds=0.0), *ops[1:]), values=values)
    said = explain_schedule(graph, Schedule.baseline(graph)).lines()
    assert any(line.startswith("1 other module  ") for line in said)
    assert not any("other modules" in line for line in said)


def test_no_run_added_is_a_dash_as_all_zeros_are() -> None:
    ops = tuple(replace(o, seconds=0.0, flops=0) for o in step().ops)
    graph = replace(step(), ops=ops)
    e = explain_schedule(graph, planned(graph, budget=PLAIN).schedule)
    lines = e.lines()
    assert any(line.endswith("runs added") for line in lines)
    assert next(line for line in lines if line.startswith("gradients, in backward")).endswith(" -")


def test_names_are_escaped_in_notebooks_and_safe_on_terminals() -> None:
    e = explain_schedule(replace(step(), name="<script>\x1b[2J"), Schedule.baseline(step()))
    assert "<script>" not in e._repr_html_()
    assert "\x1b" not in str(e)


def test_a_document_of_an_explanation_is_plain_json() -> None:
    doc = planned().explain().to_json()
    assert json.loads(json.dumps(doc)) == doc
    assert doc["saved_bytes"] == sum(r["saved_bytes"] for r in doc["rows"])


def test_the_workspace_of_one_op_is_named() -> None:
    ops = list(step().ops)
    ops[4] = replace(ops[4], workspace=1000, module="conv", target="aten.convolution_backward.default")
    graph = replace(step(), ops=tuple(ops))
    e = explain_schedule(graph, Schedule.baseline(graph))
    assert any("workspace of conv (convolution_backward) alone takes 1000 B" in r for r in e.remarks)
    assert any("no schedule goes below that" in r for r in e.remarks)
    assert [r.planned_bytes for r in e.rows if r.kind == "workspace"] == [1000]


def cross_entropy() -> Graph:
    """A head, log_softmax and the loss, with their backward."""

    def op(name: str, reads: tuple[int, ...], makes: int, target: str, shape: str, backward: bool = False) -> Op:
        return Op(name, reads, (makes,), 1e-3, backward=backward, module="head" if "mm" in target else "", kind="aten",
                  target=f"aten.{target}.default", shape=shape)  # fmt: skip

    logits = "f32[8192,128256]"
    ops = (
        op("a", (0,), 1, "mm", logits), op("b", (1,), 2, "_log_softmax", logits), op("c", (2,), 3, "nll_loss_forward", "f32[]"),
        Op(BOUNDARY, (3,), (4,), recompute=False, kind=BOUNDARY), op("d", (4, 2), 5, "nll_loss_backward", logits, True),
        op("e", (5, 2), 6, "_log_softmax_backward_data", logits, True), op("f", (6, 0), 7, "mm", "f32[8192,8]", True),
    )  # fmt: skip
    size = 8192 * 128256 * 4
    sizes = (0, size, size, 4, 4, size, size, 8192 * 8 * 4)
    return Graph(tuple(map(Value, sizes)), ops, (7,), 10 * MIB, "head")


def test_the_loss_is_said_as_the_issue_says_it() -> None:
    said = " ".join(explain_schedule(cross_entropy(), Schedule.baseline(cross_entropy())).remarks)
    assert "The peak is the loss: logits 8192×128256, 3.9 GiB" in said
    assert "a chunked cross-entropy would lower it" in said


def test_equal_plans_have_no_difference() -> None:
    c = compare(planned(), planned())
    assert (c.modules, c.graphs) == ((), ())
    assert all(a == b for a, b in c.figures.values())


def test_two_plans_of_one_graph_differ_in_modules_and_figures() -> None:
    plain = planned(budget=PLAIN)
    c = compare(plain, planned())
    assert c.graphs == ()
    assert c.figures["peak_bytes"] == (plain.peak_bytes, planned().peak_bytes)
    kept = [sum(getattr(d, side).kept_bytes for d in c.modules) for side in ("a", "b")]
    assert kept[0] > kept[1]
    json.dumps(c.to_json())


def test_copies_to_the_host_have_their_own_column_and_figures() -> None:
    linked = replace(step(), link=rekindle.Link(1e3, 1e3, 0.0))
    a, b = (rekindle.plan(linked, PLAIN - 10, offload=offload, cache=False) for offload in (True, False))
    assert (a.moved_bytes, b.moved_bytes) == (10, 0)
    lines = a.explain().lines()
    assert any("copied" in line and "recomputed" in line and "×" in line for line in lines)
    assert any(line.startswith("waits for copies") for line in lines)
    assert any(line.startswith("Each step copies 10 B to the host") for line in lines)
    assert not any("copied" in line for line in b.explain().lines())
    view = compared_view(compare(a, b))
    assert row(view, "copied to the host") == ["10 B", "0 B", "*"]
    assert not any("copied" in line for line in compared_view(compare(b, b)))
    other = replace(a, graph=replace(linked, link=rekindle.Link(1e9, 1e9, 0.0)))
    assert any("links" in sentence for sentence in compare(a, other).graphs)


def test_two_graphs_are_told_apart() -> None:
    ops = list(step().ops)
    ops[1] = replace(ops[1], name="other", module="new", target="aten.relu.default")
    c = compare(planned(), planned(replace(step(), ops=tuple(ops))), ("one.json", "two.json"))
    said = " ".join(c.graphs)
    assert "one.json has 7 ops" in said
    assert "The first op that differs is number 1: f1 and new (relu)." in said
    assert "1 module is in two.json alone: new." in said
    dear = replace(step(), ops=tuple(replace(o, seconds=2 * o.seconds) for o in step().ops))
    assert "have other costs" in " ".join(compare(planned(), planned(dear)).graphs)


def row(lines: list[str], label: str) -> list[str]:
    """The figures of a row of the table, of a and of b."""
    line = next(line for line in lines if line.startswith(f"{label}  "))
    return [x.strip() for x in line.removeprefix(label).split("  ") if x.strip()]


def test_a_bound_is_never_rounded_up() -> None:
    a, b = (replace(planned(budget=PLAIN), overhead=0.5, least_overhead=least) for least in (0.1299, 0.12951))
    assert row(compared_view(compare(a, b)), "extra cost at best") == ["+12.9 %", "+12.9 %", "*"]
    assert row(compared_view(compare(a, parts_plan())), "extra cost at best") == ["+12.9 %", "+0.0 %", "*"]


def test_a_certificate_that_was_not_verified_is_shown_with_its_doubt() -> None:
    plan = planned(budget=PLAIN)
    c = compare(plan, replace(plan, verified=False))
    assert c.to_json()["figures"]["verified"] == {"a": True, "b": False}
    lines = compared_view(c)
    for label in ("peak at best, at this cost", "gap", "extra cost at best", "status"):
        one, other = row(lines, label)
        assert other == f"{one}, not verified"
    assert row(lines, "verified") == ["yes", "no", "*"]
    assert sum("not verified" in line for line in lines) == 5
    assert max(map(cell_len, lines)) <= 80
    assert not any("not verified" in line for line in compared_view(compare(plan, plan)))


def test_modules_that_differ_elsewhere_are_not_said_to_be_treated_alike() -> None:
    c = compare(planned(), planned())
    assert "No module is treated differently." in compared_view(c)
    differs = replace(c, modules=(Difference("h.*", 1, Sizes(peak_bytes=1), Sizes(peak_bytes=2)),))
    lines = compared_view(differs)
    assert "Every module keeps and recomputes the same in both plans." in lines
    assert "No module is treated differently." not in lines


def test_plans_of_parts_are_compared_by_part() -> None:
    same = compare(parts_plan(), parts_plan())
    assert (same.modules, same.graphs) == ((), ())
    other = compare(parts_plan(), parts_plan(paths=("h.0", "h.1")), ("a.json", "b.json"))
    assert other.graphs == ("1 part is in a.json alone: h.2.",)
    mixed = compare(planned(), parts_plan(), ("a.json", "b.json"))
    assert mixed.graphs == ("a.json holds the plan of a whole step, b.json holds plans of parts.",)


def test_the_commands_print_the_same_as_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = planned()
    for name in ("a.json", "b.json"):
        plan.save(tmp_path / name)
    ran = Ran(capfd, "explain", tmp_path / "a.json", "--json")
    assert ran.document == rekindle.load(tmp_path / "a.json").explain().to_json()
    out = tmp_path / "explained.txt"
    said = Ran(capfd, "explain", tmp_path / "a.json", "--out", out).out
    assert said == f"{out.read_text()}wrote {out}\n"
    ran = Ran(capfd, "compare", tmp_path / "a.json", tmp_path / "b.json", "--json")
    assert ran.document["same_graph"] is True
    assert ran.document["modules"] == []


def test_a_damaged_plan_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    doc = planned().to_json() | {"peak_bytes": 1}
    formats.write_json(tmp_path / "plan.json", doc)
    assert Ran(capfd, "explain", tmp_path / "plan.json").code == 1


def test_the_zoo_lists_all_its_models() -> None:
    from rekindle import zoo
    from rekindle.zoo import listing, suite_of

    assert [m.name for m in listing()] == zoo.names()
    assert all(suite_of(m) == suite for suite, models in zoo.SUITES.items() for m in models)
    assert all(m.batch > 0 and m.parameters > 0 for m in listing())
    with pytest.raises(UsageError, match="did you mean 'resnet50'"):
        zoo.maker("resnet5o")


def test_the_floor_of_one_op_is_no_higher_than_what_it_needs() -> None:
    """`big` needs 100 of the 101 MiB of the baseline: a schedule of 100 MiB exists."""
    values = (Value(0), Value(MIB), Value(60 * MIB), Value(40 * MIB), Value(MIB))
    ops = (
        Op("a", (0,), (1,), 1.0), Op("big", (0,), (2,), 1.0), Op("mid", (2,), (3,), 1.0), Op("red", (3, 1), (4,), 1.0),
    )  # fmt: skip
    graph = Graph(values, ops, keep=(4,), name="floor")
    words = " ".join(str(explain_schedule(graph, Schedule.baseline(graph))).split())
    assert "This op alone needs 100.0 of 101.0 MiB" in words
    assert "no schedule goes below that" in words
    assert planned(graph).peak_bytes == 100 * MIB
    best = " ".join(str(explain_schedule(graph, planned(graph).schedule)).split())
    assert "This op alone needs that much" in best
