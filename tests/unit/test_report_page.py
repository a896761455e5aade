"""The report's page: its figures are the judge's, it is one safe file, and it stays small."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rekindle
from command_line import Ran
from rekindle.ask import Budget, LeastMemory, MaxOverhead
from rekindle.compiling import SAVES
from rekindle.errors import FormatError, UsageError
from rekindle.explain import explain_schedule
from rekindle.explain.holding import peak
from rekindle.model.graph import BOUNDARY, OPERATOR, Graph, Op, Value
from rekindle.model.judge import simulate
from rekindle.model.plan import Plan
from rekindle.model.schedule import RUN, Schedule
from rekindle.parts.plan import CompiledPart, Offloaded, Part, PartsPlan
from rekindle.planning import certify
from rekindle.show.report.curve import points_of_file
from rekindle.show.report.held import PART_OF, PARTS, RECOMPUTED, SAVED, MemoryByPart, recomputed
from rekindle.show.report.make import report
from strategies import graphs, run_sequences, schedules
from traced_steps import PAGE, blocks

EVIL = "</script><img src=x onerror=alert(1)>\x1b[2J<!--"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return rekindle.plan(blocks(8), 0.6, solver="every", cache=False)


def data_of(page: str) -> Any:
    """The data that a page holds."""
    found = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


@given(st.data())
def test_the_parts_of_memory_add_up_to_the_judges(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = Schedule.from_runs(graph, data.draw(run_sequences(graph)))
    held = MemoryByPart.of(graph, schedule)
    judged = held.lives.judged
    memory = simulate(graph, schedule).memory[schedule.array[:, 0] == RUN]
    assert (held.parts >= 0).all()
    assert (held.parts.sum(axis=0) + graph.resident_bytes == memory).all()
    if held.lives.peak >= 0:
        assert sum(h.bytes for h in held.at_peak.held) + graph.resident_bytes == judged.peak_bytes
        by_part = [sum(h.bytes for h in held.at_peak.held if PART_OF[h.role] == part) for part in range(len(PARTS))]
        assert by_part == held.parts[:, held.lives.peak].tolist()
    extra = sum(r.cost for r in recomputed(graph, schedule, graph.weights("unit"), {}))
    assert extra == judged.runs @ graph.weights("unit") - graph.weights("unit")[judged.runs > 0].sum()


@given(st.data())
def test_the_report_and_explain_say_the_same_bytes_of_each_reason(data: st.DataObject) -> None:
    """Of any plan, in the treemap, in the chart at the peak, and in the chart when backward begins."""
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    explained = explain_schedule(graph, schedule)
    held = MemoryByPart.of(graph, schedule)
    for part in range(len(PARTS)):
        said = sum(h.bytes for h in explained.holders if PART_OF.get(h.role) == part)
        assert held.lives.peak < 0 or held.parts[part, held.lives.peak] == said
    end = held.lives.boundary
    if end is not None and end + 1 < held.parts.shape[1]:
        assert held.parts[SAVED, end + 1] == sum(r.kept_bytes for r in explained.rows)


def by_hand(sizes: Sequence[int], ops: Sequence[Op], keep: tuple[int, ...]) -> Graph:
    return Graph(tuple(map(Value, sizes)), tuple(ops), keep, 0, "by hand")


def test_a_value_that_the_end_of_forward_reads_last_is_not_saved() -> None:
    ops = [
        Op("f", (0,), (1,)), Op("head", (1,), (2,)), Op(BOUNDARY, (2,), (3,), recompute=False, kind=BOUNDARY),
        Op("b", (3, 1), (4,), backward=True),
    ]  # fmt: skip
    graph = by_hand((0, 100, 40, 10, 10), ops, (4,))
    held = MemoryByPart.of(graph, Schedule.baseline(graph))
    assert held.parts[SAVED].tolist() == [0, 100, 100, 100]
    assert held.parts[PARTS.index("passing")].tolist() == [0, 0, 40, 10]
    assert held.lives.boundary == 2


def test_a_value_of_forward_that_is_first_made_in_backward_is_not_recomputed() -> None:
    ops = [
        Op("f", (0,), (1,)), Op("aside", (1,), (2,)), Op(BOUNDARY, (1,), (3,), recompute=False, kind=BOUNDARY),
        Op("b", (3, 2), (4,), backward=True),
    ]  # fmt: skip
    graph = by_hand((0, 10, 100, 10, 200), ops, (4,))
    late = Schedule.from_runs(graph, [0, 2, 1, 3])
    roles = {h.value: h.role for h in peak(graph, late).held}
    assert (roles[2], roles[3]) == ("forward", "gradient")
    assert not MemoryByPart.of(graph, late).parts[RECOMPUTED].any()


def test_only_the_first_value_of_an_op_has_its_shape() -> None:
    """The other outputs of a norm are small, and the graph does not say their shapes."""
    norm = {"module": "h.0.ln", "kind": "aten", "target": "aten.native_layer_norm.default", "shape": "f32[16,64]"}
    ops = [
        Op("ln", (0,), (1, 2, 3), **norm), Op(BOUNDARY, (1,), (4,), recompute=False, kind=BOUNDARY),
        Op("b", (4, 1, 2, 3), (5,), backward=True),
    ]  # fmt: skip
    graph = by_hand((0, 4096, 64, 64, 10, 10), ops, (5,))
    data = data_of(report(rekindle.plan(graph, 1.0, solver="none", cache=False)))
    rows = [[*(data["strings"][k] for k in row[:3]), *row[5:]] for row in data["parts"][0]["holders"][1]]
    assert rows[:1] == [["h.0.ln", "layer_norm", "f32[16,64]", 1, 4096]]
    assert ["h.0.ln", "layer_norm", "(output 2)", 1, 64] in rows


def test_what_is_saved_and_what_is_recomputed_is_told_apart(plan: Plan) -> None:
    plain, planned = (MemoryByPart.of(plan.graph, s) for s in (Schedule.baseline(plan.graph), plan.schedule))
    assert plain.parts[SAVED].max() > planned.parts[SAVED].max() > 0
    assert planned.parts[RECOMPUTED].max() > plain.parts[RECOMPUTED].max() == 0


def test_the_page_holds_the_plans_figures(plan: Plan) -> None:
    page = report(plan, frontier=[plan])
    data = data_of(page)
    (part,) = data["parts"]
    assert data["verdict"] == plan.sentence
    assert (part["peak"], part["plainPeak"]) == (plan.peak_bytes, plan.baseline_peak_bytes)
    for track, schedule in zip(part["tracks"], (Schedule.baseline(plan.graph), plan.schedule), strict=True):
        totals = [part["resident"] + sum(row) for row in zip(*track["parts"], strict=True)]
        assert track["runs"] == schedule.runs
        assert max(totals) == totals[track["peak"]] == simulate(plan.graph, schedule).peak_bytes
    assert {data["strings"][i] for i in part["ops"]["source"]} == {"", *(f"models/net.py:{10 + k}" for k in range(3))}
    assert any(data["strings"][row[0]] == "layers.*.fc1" for row in part["holders"][1])
    added = sum(row[4] for row in part["recomputed"])
    assert added == pytest.approx(plan.seconds - simulate(plan.graph, Schedule.baseline(plan.graph)).seconds, rel=1e-3)
    assert part["curve"][0]["peak"] == max(part["curve"][0]["bytes"]) == plan.peak_bytes


def test_no_text_of_a_model_becomes_markup(tmp_path: Path) -> None:
    graph = blocks(4, name=EVIL, model=EVIL)
    made = rekindle.plan(graph, 0.7, solver="every", cache=False)
    plan = replace(made, created_with={EVIL: EVIL}, solver=EVIL[:60])
    page = report(plan, frontier=[plan])
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert "<!--" not in page
    assert "\x1b" not in page
    assert EVIL.replace("\x1b", "\\x1b") in data_of(page)["title"]
    assert "<img" not in plan._repr_html_()


def test_the_page_asks_nothing_of_the_network(plan: Plan) -> None:
    page = report(plan)
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", page)
    assert "default-src 'none'" in page
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", page) == ["data:,"]


def test_the_report_of_7000_ops_stays_small() -> None:
    graph = blocks(1000)
    assert len(graph.ops) > 7000
    runs = [*range(3 * 1000 + 1), *range(3000), *range(3 * 1000 + 1, len(graph.ops))]
    planned = Schedule.from_runs(graph, runs)
    judged = simulate(graph, planned)
    plain = rekindle.plan(graph, 1.0, solver="none", cache=False)
    plan = replace(plain, schedule=planned, peak_bytes=judged.peak_bytes, overhead=judged.overhead, goal=LeastMemory())
    page = report(plan, frontier=[plan] * 24)
    assert len(page.encode()) < 3_000_000


def test_plans_of_parts_have_a_section_for_each_different_part(plan: Plan, tmp_path: Path) -> None:
    other = rekindle.plan(blocks(3), 0.8, solver="every", cache=False)
    parts = PartsPlan(
        "Model", (Part("blocks.0", (plan,)), Part("blocks.1", (plan,)), Part("head", (other,)), Part("x", again=True)),
        400 * PAGE, None, 30 * PAGE, None, 0.1, 0.0, MaxOverhead(0.1), "seconds", "planned: 3 of 4 parts", 1.0,
    )  # fmt: skip
    parts.to_html(tmp_path / "report.html", frontier=False)
    data = data_of((tmp_path / "report.html").read_text())
    assert [p["title"] for p in data["parts"]] == ["2 × blocks.*", "head"]
    assert "planned: 3 of 4 parts" in data["verdict"]
    assert "planned: 3 of 4 parts" in parts._repr_html_()
    with pytest.raises(UsageError, match="a curve for each part"):
        parts.to_html(tmp_path / "report.html", frontier=[plan])  # type: ignore[arg-type]


def test_every_way_of_a_part_has_its_bytes_in_the_page(plan: Plan) -> None:
    """Planned, compiled, copied to the host, run again: as `explain` has them."""
    compiled = CompiledPart("inputs", held_bytes=3 * PAGE, min_cut_bytes=40 * PAGE, extra_seconds=1e-3)
    away = replace(compiled, saves="min-cut", held_bytes=40 * PAGE)
    parts = (
        Part("blocks.0", (plan,)), Part("a.0", compiled=compiled), Part("a.1", compiled=compiled),
        Part("b", compiled=away, offloaded=Offloaded(30 * PAGE)), Part("x", again=True),
    )  # fmt: skip
    whole = PartsPlan(
        "Model", parts, 400 * PAGE, None, 30 * PAGE, 900 * PAGE, 0.1, 0.05, Budget(500 * PAGE), "seconds", "", 1.0
    )
    data = data_of(report(whole))["whole"]
    rows = {r["pattern"]: r for r in data["ways"]}
    assert [(r.pattern, r.kept_bytes, r.moved_bytes) for r in whole.explain().rows] == [
        (x["pattern"], x["kept"], x["moved"]) for x in data["ways"]
    ]
    assert (rows["a.*"]["kept"], rows["a.*"]["plain"], rows["a.*"]["count"]) == (6 * PAGE, 80 * PAGE, 2)
    assert (rows["b"]["kept"], rows["b"]["moved"], data["away"]) == (10 * PAGE, 30 * PAGE, 30 * PAGE)
    assert rows["x"]["kind"] == "runs again whole"
    assert data["saves"] == [["saves inputs", SAVES["inputs"]], ["saves min-cut", SAVES["min-cut"]]]
    assert (data["plainPeak"], data["least"]) == (900 * PAGE, 0.05)


def test_the_sentences_about_the_peak_stand_in_the_page() -> None:
    """Above all the one that says that the peak is the loss, with the remedy."""
    loss = {"kind": OPERATOR, "target": "aten.nll_loss_forward.default", "shape": "f32[]"}
    logits = {"kind": OPERATOR, "target": "aten.mm.default", "module": "head", "shape": "f32[64,1000]"}
    ops = [
        Op("head", (0,), (1,), **logits), Op("softmax", (1,), (2,), **logits | {"target": "aten._log_softmax.default"}),
        Op("loss", (2,), (3,), **loss), Op(BOUNDARY, (3,), (4,), recompute=False, kind=BOUNDARY),
        Op("back", (4, 2), (5,), backward=True),
    ]  # fmt: skip
    plan = rekindle.plan(by_hand((0, 256000, 256000, 4, 4, 4), ops, (5,)), 1.0, solver="none", cache=False)
    (part,) = data_of(report(plan))["parts"]
    assert part["remarks"] == list(plan.explain().remarks)
    assert any(x.startswith("The peak is the loss: logits 64×1000") for x in part["remarks"])


def test_a_curve_of_another_graph_is_refused(plan: Plan) -> None:
    other = rekindle.plan(blocks(3), 0.8, solver="every", cache=False)
    with pytest.raises(UsageError, match="the frontier is for graph"):
        report(plan, frontier=[other])
    with pytest.raises(UsageError, match="is no list of plans"):
        report(plan, frontier="quick")  # type: ignore[arg-type]


def test_nothing_is_written_where_the_report_fails(plan: Plan, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("old")
    with pytest.raises(UsageError):
        plan.to_html(page, frontier=[3])  # type: ignore[list-item]
    assert page.read_text() == "old"
    with pytest.raises(UsageError, match="it is a folder"):
        plan.to_html(tmp_path)


def test_a_plan_in_a_notebook(plan: Plan) -> None:
    html = plan._repr_html_()
    assert html.startswith("<div>")
    assert html.count("<svg") == html.count("</svg>") == 1
    assert plan.sentence in html
    assert "<script" not in html


def test_the_command_writes_the_page_and_proves_its_certificate(
    plan: Plan, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, page = tmp_path / "plan.json", tmp_path / "report.html"
    plan.save(file)
    ran = Ran(capfd, "report", file, "--html", page, "--frontier", "none", "--json")
    assert ran.code == 0
    assert ran.document == {"html": str(page), "bytes": page.stat().st_size, "verdict": plan.sentence}
    assert data_of(page.read_text())["parts"][0]["curve"] == []
    monkeypatch.setattr(certify, "LOADED", certify.CertificateSettings(looks_s=()))  # reading proves nothing
    assert not rekindle.load(file).verified
    assert "not verified" not in Ran(capfd, "report", file, "--frontier", "none", "--json").document["verdict"]
    ran = Ran(capfd, "report", file, "--frontier", "none")
    assert (ran.code, (tmp_path / "plan.html").exists()) == (0, True)


def test_the_command_takes_a_frontier_file(plan: Plan, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file, page, curve = tmp_path / "plan.json", tmp_path / "report.html", tmp_path / "frontier.json"
    plan.save(file)
    curve.write_text(json.dumps({"format": "rekindle.frontier/1", "plans": [plan.figures()]}))
    assert Ran(capfd, "report", file, "--html", page, "--frontier", curve).code == 0
    (point,) = data_of(page.read_text())["parts"][0]["curve"]
    assert (point["peak"], point["verified"], point["bytes"]) == (plan.peak_bytes, False, [])
    curve.write_text(json.dumps({"format": "rekindle.frontier/1", "plans": [plan.figures() | {"graph_hash": "x"}]}))
    refused = Ran(capfd, "report", file, "--html", page, "--frontier", curve)
    assert (refused.code, "another graph" in refused.err) == (1, True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"overhead": -5.0, "least_overhead": 0.0}, "least overhead"), ({"bound_bytes": 10**15}, "its bound"),
        ({"bound_bytes": -1}, "its bound"), ({"least_overhead": 9.0}, "least overhead"), ({"status": "proven"}, "its status"),
        ({"flops_overhead": -1.0}, "extra FLOPs"),
    ],
)  # fmt: skip
def test_points_that_contradict_themselves_are_refused(
    plan: Plan, tmp_path: Path, wrong: dict[str, Any], words: str
) -> None:
    file = tmp_path / "frontier.json"
    file.write_text(json.dumps({"format": "rekindle.frontier/1", "plans": [plan.figures() | wrong]}))
    with pytest.raises(FormatError, match=f"plan 0 contradicts itself: .*{words}"):
        points_of_file(str(file), plan)


def test_the_command_refuses_early(plan: Plan, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    plan.save(file)
    before = file.read_bytes()
    assert Ran(capfd, "report", file, "--html", file).code == 2
    assert Ran(capfd, "report", file, "--frontier", "best").code == 2
    assert Ran(capfd, "report", tmp_path / "missing.json").code == 1
    assert file.read_bytes() == before


def test_equal_plans_of_parts_are_one(plan: Plan) -> None:
    parts = (Part("a.0", (plan,)), Part("a.1", (replace(plan),)))
    whole = PartsPlan("M", parts, 1, None, 0, None, 0.0, 0.0, MaxOverhead(0.1), "seconds", "", 0.0)
    assert [paths for _, paths in whole.distinct()] == [["a.0", "a.1"]]
