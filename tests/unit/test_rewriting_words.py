"""A plan of a rewritten step says so wherever it is shown, and for which step its claims hold."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

import rekindle
from command_line import step
from rekindle.ask import Fraction, Goal, LeastMemory, PlanOptions
from rekindle.errors import FormatError, UsageError
from rekindle.explain.comparison import compare
from rekindle.model import formats
from rekindle.model.plan import Plan
from rekindle.model.rewriting import CONVOLUTIONS, PICKED, SAVES, SLICES, Plain, Rewrite, Rewriting
from rekindle.model.verdict import AT_BEST, AT_BEST_EXTRA
from rekindle.planning.own_terms import beside_captured, plain_figures
from rekindle.planning.planner import plan_graph
from rekindle.show.compared import compared_view
from rekindle.show.report import document
from rekindle.show.report.curve import points_of
from rekindle.show.text import plan_table

HOLDS = "for this rewritten step"
SIGNS = "signs of 2 ReLUs, offsets of 1 pool"
STEPS = (
    Rewrite(CONVOLUTIONS, (4,), where="features.2"), Rewrite(PICKED, (7,)), Rewrite(SAVES, (1, 2, 3), where=SIGNS),
    Rewrite(SLICES, (5, 6), 8, (((0,), (0,)),) * 2, where="features.0-16, along the batch"),
)  # fmt: skip
MANY = tuple(f"layers.{i}.weight" for i in range(5))


def rewritten(goal: Goal | None = None, sums: tuple[str, ...] = (), solver: str = "exact", more: int = 7) -> Plan:
    """A plan of `step()`, as if it were the rewrite of a step that takes `more` bytes more and runs a second less."""
    goal = goal or LeastMemory()
    found = plan_graph(step(), PlanOptions(goal, solver=solver, cache=False))
    plain = plain_figures(step())
    captured = Plain(plain.peak_bytes + more, plain.seconds - 1, plain.flops, plain.unit)
    return beside_captured(found, Rewriting("c" * 64, captured, STEPS, sums), PlanOptions(goal, solver=solver))


def table_of(plan: Plan) -> str:
    console = Console(width=200)
    with console.capture() as got:
        console.print(plan_table(plan))
    return got.get()


def test_each_rewrite_has_a_row() -> None:
    made = Rewriting("", Plain(1, 1.0, 1.0, 1.0), STEPS, MANY)
    assert made.rows() == [
        ("convolutions", "backward of 1 in two calls: features.2"),
        ("picked first", "log-probabilities of 1 loss"),
        ("smaller saves", f"for 3 ops: {SIGNS}"),
        ("in slices", "2 ops in 8 slices: features.0-16, along the batch"),
        ("up to rounding",
         "gradients of layers.0.weight, layers.1.weight, layers.2.weight and 2 more; not measured"),
    ]  # fmt: skip
    assert made.clause() == "3 smaller saves and 2 ops in 8 slices, 5 gradients up to rounding"
    assert made.line().endswith("not measured)")
    assert made.short() == "2 ops in slices"


def test_gradients_that_are_added_up_are_named_with_their_difference() -> None:
    made = Rewriting("", Plain(1, 1.0, 1.0, 1.0), STEPS, ("head.weight",))
    assert made.sums_words() == "gradients of head.weight; not measured"
    assert (
        replace(made, sums_error=3.84e-7).sums_words()
        == "gradients of head.weight; largest relative difference 3.8e-07"
    )
    assert "1 gradient up to rounding" in made.clause()
    assert "\x1b" not in replace(made, sums=("\x1b[2J",)).sums_words()


def test_other_mixtures_of_rewrites() -> None:
    plain = Plain(1, 1.0, 1.0, 1.0)
    one, many = Rewrite(SLICES, (1,), 2, (((0,), (0,)),)), Rewrite(SLICES, (2, 3), 8, (((0,), (0,)),) * 2)
    assert Rewriting("", plain, (one,)).clause() == "1 op in 2 slices"
    assert Rewriting("", plain, (one, many)).clause() == "3 ops in slices"
    assert Rewriting("", plain, (one,)).rows() == [("in slices", "1 op in 2 slices")]
    saves = Rewriting("", plain, (Rewrite(SAVES, (1,)),))
    assert (saves.clause(), saves.short()) == ("1 smaller save", "smaller saves")
    other = Rewriting("", plain, (Rewrite(CONVOLUTIONS, (1, 2)),))
    assert (other.clause(), other.short()) == ("2 ops rewritten", "yes")


@pytest.mark.parametrize(
    ("goal", "solver"),
    [(LeastMemory(), "exact"), (LeastMemory(), "none"), (Fraction(0.9), "exact"),
     (Fraction(1.0), "every")],
)  # fmt: skip
def test_a_plan_says_for_which_step_its_claims_hold(goal: Goal, solver: str) -> None:
    plan = rewritten(goal, solver=solver)
    claims = [x for x in re.split(r", (?=no schedule|proven|solved)", plan.sentence) if "proven" in x or "no sch" in x]
    assert claims
    assert all(HOLDS in x for x in claims), plan.sentence
    assert re.search(r", with 3 smaller saves and 2 ops in 8 slices(, | \(proven)", plan.sentence)
    for shown in (str(plan), table_of(plan)):
        assert all(re.search(f"^{label} +{re.escape(words)} *$", shown, re.M) for label, words in plan.rewriting.rows())  # type: ignore[union-attr]
        for label in (AT_BEST, "to go lower, split", AT_BEST_EXTRA):
            said = re.findall(f"^{label} .*$", shown, re.M)
            assert said or label != AT_BEST
            assert all(x.rstrip().endswith(HOLDS) for x in said), said
    captured = replace(plan, rewriting=None)
    assert HOLDS not in str(captured) + table_of(captured)
    assert "slices" not in str(captured)


def test_an_op_at_the_floor_is_one_of_the_rewritten_step() -> None:
    plan = rewritten()
    low = replace(plan, activation_peak_bytes=1)
    assert low.splitting_op
    assert f"to go lower, split          {low.splitting_words}: it alone needs that much, {HOLDS}" in str(low)


def test_a_doubtful_certificate_names_its_step_too() -> None:
    plan = replace(rewritten(), verified=False)
    assert f"its file says the smallest {HOLDS}: not verified" in plan.sentence
    bounded = replace(rewritten(Fraction(0.9)), verified=False, status="feasible")
    assert re.search(f"its file says at least \\+[0-9.]+ % {HOLDS}: not verified", bounded.sentence)


def test_the_figures_and_the_file_say_what_was_rewritten(tmp_path: Path) -> None:
    plan = rewritten(sums=MANY)
    figures = json.loads(json.dumps(plan.figures()))["rewritten"]
    assert figures["steps"][3] == {"kind": "slices", "ops": 2, "slices": 8, "where": "features.0-16, along the batch"}
    assert (figures["sums"], figures["sums_error"]) == (list(MANY), None)
    assert "rewritten" not in replace(plan, rewriting=None).figures()
    plan.save(tmp_path / "plan.json")
    again = rekindle.load(tmp_path / "plan.json")
    assert again.rewriting == plan.rewriting
    assert again.rewriting.rows() == plan.rewriting.rows()  # type: ignore[union-attr]
    assert str(again) == str(plan)


@pytest.mark.parametrize("where", [None, 3, "a\nb", "\x1b[2J", "x" * 201, ["a"]])
def test_words_of_a_file_that_are_none_are_refused(where: Any, tmp_path: Path) -> None:
    doc = json.loads(json.dumps(rewritten().to_json()))
    doc["rewriting"]["steps"][0]["where"] = where
    formats.write_json(tmp_path / "plan.json", doc)
    with pytest.raises(FormatError, match="where"):
        rekindle.load(tmp_path / "plan.json")


def test_files_without_these_words_are_read(tmp_path: Path) -> None:
    doc = json.loads(json.dumps(rewritten().to_json()))
    for s in doc["rewriting"]["steps"]:
        del s["where"]
    formats.write_json(tmp_path / "plan.json", doc)
    again = rekindle.load(tmp_path / "plan.json")
    assert again.rewriting == rewritten().rewriting  # words are no part of what a rewrite is
    assert "2 ops in 8 slices\n" in str(again)


@pytest.mark.parametrize("more", [7, 0, -5])
def test_an_explanation_compares_with_the_captured_step(more: int) -> None:
    plan = rewritten(more=more)
    e = plan.explain()
    assert e.baseline_peak_bytes == plan.baseline_peak_bytes == plain_figures(step()).peak_bytes + more
    assert e.saved_bytes == plan.baseline_peak_bytes - plan.peak_bytes == sum(r.saved_bytes for r in e.rows)
    assert (e.rows[-1].kind, e.rows[-1].saved_bytes) == ("rewriting", more)
    assert e.added_seconds == pytest.approx(sum(r.added_seconds for r in e.rows))
    assert e.added_seconds == pytest.approx(plan.seconds - plan.rewriting.plain.seconds)  # type: ignore[union-attr]
    assert e.overhead == plan.overhead
    assert e.remarks[-1].startswith("Rewritten: ") or e.remarks[-2].startswith("Rewritten: ")
    assert max(map(cell_len, e.lines())) <= 80
    json.dumps(e.to_json())
    captured = plan_graph(step(), plan.options).explain()
    assert all(r.kind != "rewriting" for r in captured.rows)


def test_plans_of_the_captured_and_of_the_rewritten_step_are_compared() -> None:
    plan, captured = rewritten(), plan_graph(step(), PlanOptions(LeastMemory(), solver="exact", cache=False))
    c = compare(plan, captured, ("a.json", "b.json"))
    assert c.figures["rewritten"] == ("2 ops in slices", None)
    assert c.graphs[:2] == (
        f"a.json is of a rewritten step: {plan.rewriting.line()}.",
        "b.json is of the captured step.",
    )  # type: ignore[arg-type]
    lines = compared_view(c)
    assert max(map(cell_len, lines)) <= 80
    assert any(re.fullmatch(r"rewritten +2 ops in slices +- +\*", x) for x in lines)
    assert compare(plan, plan).graphs == ()
    assert not any(x.startswith("rewritten") for x in compared_view(compare(captured, captured)))


def test_the_report_shows_what_was_rewritten() -> None:
    plan = rewritten()
    (part,) = document.of_plan(plan, [[]])["parts"]
    assert part["rewriting"] == [list(row) for row in plan.rewriting.rows()]  # type: ignore[union-attr]
    assert part["plainPeak"] == plan.baseline_peak_bytes
    assert all(HOLDS in words for label, words in part["claims"] if label in ("smallest peak", AT_BEST))
    assert document.of_plan(replace(plan, rewriting=None), [[]])["parts"][0]["rewriting"] == []


def test_the_curve_of_a_report_says_of_which_step_it_is() -> None:
    """A curve may be of the captured step; a search is for the rewritten one, and compares with the captured one."""
    plan = rewritten()
    weights = document.time_axis(plan).weights
    searched = points_of(plan, True, weights)
    assert not any(p.captured for p in searched)
    assert min(p.overhead for p in searched) == pytest.approx(
        plain_figures(step()).seconds / (plain_figures(step()).seconds - 1) - 1
    )
    smaller = chain_as_captured()
    of_captured = replace(plan, rewriting=replace(plan.rewriting, captured_hash=smaller.graph_hash))  # type: ignore[type-var]
    given = points_of(of_captured, [smaller], weights)
    assert [(p.captured, p.peak_bytes) for p in given] == [(True, smaller.peak_bytes)]
    assert document.of_plan(of_captured, [given])["parts"][0]["curveStep"] == "captured"
    assert document.of_plan(plan, [searched])["parts"][0]["curveStep"] == "rewritten"
    with pytest.raises(UsageError, match="the frontier is for graph"):
        points_of(plan, [smaller], weights)


def chain_as_captured() -> Plan:
    """A plan of another graph, which stands for the captured step."""
    from graphs_by_hand import chain

    return plan_graph(chain(3), PlanOptions(Fraction(1.0), solver="none", cache=False))
