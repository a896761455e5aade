"""The words of a plan claim what was proven: the least extra cost within a budget, and up to which cost a peak is a bound."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from extra_solver import extra_solver
from graphs_by_hand import chain
from plan_documents import tampered, toy_plan
from rekindle import Graph, Schedule, simulate
from rekindle.ask import Budget, Fraction, Goal, LeastMemory, MaxOverhead, PlanOptions
from rekindle.errors import FormatError, InfeasibleBudget
from rekindle.model import formats
from rekindle.model.graph import BOUNDARY, Op
from rekindle.model.op_names import op_words, op_words_of, operator_name
from rekindle.model.plan import Plan
from rekindle.parts.files import load
from rekindle.planning.frontiers import frontier_graph
from rekindle.planning.planner import plan_graph
from rekindle.saying.shares import percent, percent_down
from rekindle.saying.sizes import of_bytes
from rekindle.show.text import frontier_table
from strategies import examples, graphs

EPS = 1e-9


TIGHT = Fraction(0.2)  # of `chain(70)`: `dtr` keeps it, and costs more than is certified


def planned(goal: Goal, solver: str = "dtr", graph: Graph | None = None, **how: Any) -> Plan:
    return plan_graph(graph or chain(70), PlanOptions(goal, solver=solver, **how))


@examples(60)
@given(graph=graphs(), share=st.floats(0.2, 1), cost=st.sampled_from(["seconds", "flops", "unit"]))
def test_no_schedule_within_the_budget_costs_less_than_certified(graph: Graph, share: float, cost: str) -> None:
    goal = Fraction(share)
    try:
        planned(goal, "dtr", graph, cost=cost)
    except InfeasibleBudget:
        goal = Fraction(1.0)  # the plain step keeps it
    best = planned(goal, "exact", graph, cost=cost)
    other = planned(goal, "dtr", graph, cost=cost)
    assert best.least_overhead <= best.overhead + EPS
    assert other.least_overhead <= best.overhead + EPS
    assert (best.status == "optimal") == (best.overhead <= best.least_overhead + EPS)


@examples(20)
@given(graph=graphs())
def test_no_schedule_within_a_plan_of_the_curve_costs_less_than_certified(graph: Graph) -> None:
    for plan in frontier_graph(graph, PlanOptions(LeastMemory(), solver="dtr")):
        best = planned(Budget(plan.peak_bytes), "exact", graph)
        assert plan.least_overhead <= best.overhead + EPS
        assert plan.status == "feasible" or plan.overhead <= best.overhead + EPS


def test_a_budgets_sentence_gives_the_certified_least_extra_time() -> None:
    plan = planned(TIGHT)
    assert 0 < plan.least_overhead < plan.overhead
    limit = plan.goal.limit(plan.graph, plan.baseline_activation_bytes)
    assert limit is not None
    start = f"fits: {plan.peak_bytes} of {limit} B, {percent(plan.overhead)} step time "
    assert plan.sentence.startswith(
        f"{start}(proven: at least {percent_down(plan.least_overhead)}), smallest reachable about "
    )
    assert "best possible" not in plan.sentence
    assert f"  at best, in this budget   {percent_down(plan.least_overhead)} step time" in str(plan)
    plain = planned(Budget(10**6), cost="flops")
    assert plain.sentence.startswith(
        f"fits: {plain.peak_bytes} B of 976.6 KiB, +0.0 % FLOPs (proven the least), solved"
    )


def test_a_dear_plan_of_a_usual_search_names_the_longer_one() -> None:
    words = ', effort="thorough" may find a cheaper plan,'
    dear = replace(planned(TIGHT), solver="auto", least_overhead=0.1)
    assert words in dear.sentence
    thorough = replace(dear.options, effort="thorough")
    for other in (
        {"overhead": 0.19},
        {"solver": "dtr"},
        {"status": "optimal"},
        {"asked": thorough},
        {"goal": LeastMemory()},
    ):
        assert words not in replace(dear, **other).sentence


def test_a_bound_of_nothing_is_left_out() -> None:
    plan = replace(planned(TIGHT), least_overhead=0.0004)
    assert "proven" not in plan.sentence
    assert "at best, in this budget" not in str(plan)
    assert ", +45.7 % step time, smallest reachable" in plan.sentence


def test_a_curve_shows_a_peak_that_reads_alike_once() -> None:
    points = ((9000, 0.0), (6680, 0.1), (6670, 0.2), (6660, 0.3))
    plans = [replace(planned(TIGHT), peak_bytes=n << 10, overhead=o) for n, o in points]
    out = io.StringIO()
    Console(file=out, width=120).print(frontier_table(plans))
    assert [line.split()[0] for line in out.getvalue().splitlines() if " MiB " in line] == ["8.8", "6.5"]
    assert "+10.0 %" in out.getvalue()
    assert "+30.0 %" not in out.getvalue()
    assert "2 more plans take as much to the last digit" in out.getvalue()


def test_other_goals_say_up_to_which_cost_the_bound_holds() -> None:
    plan = planned(MaxOverhead(0.35))
    most = percent_down(plan.overhead)
    start = f"takes {plan.peak_bytes} B, {percent(plan.overhead)} step time, "
    assert plan.sentence.startswith(f"{start}no schedule with at most {most} goes below {plan.bound_bytes} B, ")
    assert re.search(f"peak at best, at this cost +{plan.bound_bytes} B, set by {plan.bound_op}\n", str(plan))
    assert plan.least_overhead == 0
    least = planned(LeastMemory(), "exact", chain(4))
    assert least.status == "optimal"
    assert ", proven the smallest, solved in" in least.sentence


def test_the_smallest_peak_that_the_search_met_is_reachable() -> None:
    plan = planned(Fraction(0.3))
    assert plan.smallest_known_bytes is not None
    assert plan.smallest_known_bytes < plan.peak_bytes
    assert planned(Budget(plan.smallest_known_bytes)).peak_bytes <= plan.smallest_known_bytes
    with extra_solver("only-one", lambda problem: [Schedule.baseline(problem.graph)]) as name:
        plain = planned(Fraction(1.0), name)
    assert plain.smallest_known_bytes is None
    assert "smallest" not in plain.sentence


def test_a_file_carries_the_certified_overhead_and_older_files_are_read(tmp_path: Path) -> None:
    plan, path = planned(TIGHT), tmp_path / "plan.json"
    plan.save(path)
    again = load(path)
    assert again == plan
    assert again.least_overhead == plan.least_overhead > 0
    document = plan.to_json()
    del document["least_overhead"]
    formats.write_json(path, document)
    older = load(path)
    assert (older.least_overhead, older.verified) == (0.0, again.verified)


def test_a_certified_overhead_that_is_not_proven_again_is_shown_as_such(tmp_path: Path) -> None:
    plan, path = planned(TIGHT), tmp_path / "plan.json"
    formats.write_json(path, plan.to_json() | {"least_overhead": plan.overhead, "bound_bytes": 0, "gap": 1.0})
    lied = load(path)
    assert not lied.verified
    assert f"(its file says at least {percent_down(plan.overhead)}: not verified)" in lied.sentence
    formats.write_json(path, plan.to_json() | {"least_overhead": 0.001, "bound_bytes": 0, "gap": 1.0})
    assert load(path).verified, "less than what is proven may be claimed"


@pytest.mark.parametrize("least", [-0.1, 0.1, "a", None, 1e300])
def test_an_overhead_that_cannot_be_certified_is_refused(tmp_path: Path, least: Any) -> None:
    assert toy_plan().overhead == 0
    with pytest.raises(FormatError):
        load(tampered(tmp_path, least_overhead=least))


def test_what_is_certified_is_never_rounded_up() -> None:
    assert (percent(0.0799), percent_down(0.0799), percent_down(0.08)) == ("+8.0 %", "+7.9 %", "+8.0 %")
    assert (percent(-1e-17), percent_down(0.0), percent_down(1.2999)) == ("+0.0 %", "+0.0 %", "+129.9 %")


def test_two_sizes_share_a_unit() -> None:
    assert of_bytes(21.4 * 2**30, 24 * 2**30) == "21.4 of 24.0 GiB"
    assert of_bytes(2**29, 2**30) == "512.0 MiB of 1.0 GiB"
    assert of_bytes(3, 12) == "3 of 12 B"


def test_an_op_is_named_by_its_place_its_operator_and_its_shape() -> None:
    conv = Op("x", (), (), module="layer1.0.conv1", kind="aten", target="aten.convolution.default", shape="f32[8,64]")
    assert op_words(conv) == "layer1.0.conv1 (convolution, f32[8,64])"
    assert op_words(replace(conv, module="")) == "convolution, f32[8,64]"
    assert op_words(replace(conv, shape="", target="mine.fuse.default")) == "layer1.0.conv1 (mine.fuse)"
    assert op_words(Op("x", (), (), module="a.weight", kind="accumulate")) == "a.weight (a gradient handed over)"
    assert op_words(Op(BOUNDARY, (), (), kind=BOUNDARY)) == "the end of forward"
    assert op_words(Op("mine\x1b[2J", (), ())) == "mine\\x1b[2J"
    assert "\x1b" not in op_words(replace(conv, module="\x1b[2J"))
    assert [operator_name(t) for t in ("aten.add.Tensor", "mm", "aten.mm", "")] == ["add", "mm", "mm", ""]
    graph = Graph((), (conv,), ())
    assert (op_words_of(graph, "x"), op_words_of(graph, "y\n")) == (op_words(conv), "y\\n")


def test_the_judge_and_the_certificate_agree_on_a_step_without_costs() -> None:
    graph = chain(12).with_costs([0.0] * len(chain(12).ops), [0] * len(chain(12).ops))
    plan = planned(Fraction(0.6), graph=graph)
    assert (plan.overhead, plan.least_overhead, plan.status) == (0.0, 0.0, "optimal")
    assert simulate(graph, plan.schedule).peak_bytes == plan.peak_bytes
