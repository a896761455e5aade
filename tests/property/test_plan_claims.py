"""Claims in plan files: those that cannot be are refused, certificates are proven again, names are printed and not obeyed."""

from __future__ import annotations

import cProfile
import io
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rich.console import Console

from extra_solver import extra_solver
from plan_documents import tampered, toy_plan
from rekindle import bounds
from rekindle.ask import Fraction, Goal, LeastMemory, MaxOverhead, PlanOptions
from rekindle.errors import FormatError
from rekindle.model import formats
from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.model.plan import Plan
from rekindle.model.schedule import Run, Schedule
from rekindle.parts.files import load
from rekindle.planning import certify
from rekindle.planning.planner import plan_graph
from rekindle.problem import Problem
from rekindle.show import text


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
        {"options": {"parity": "exact"}}, {"options": {"parity": None}}, {"options": {"unused": "a"}},
        {"options": {"unused": [3]}}, {"options": {"unused": ["a\x1b[2J"]}}, {"options": {"unused": None}},
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
    honest = plan_graph(chain(12), PlanOptions(LeastMemory(), solver=wasteful))
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


@pytest.mark.parametrize("goal", [LeastMemory(), MaxOverhead(0.2), Fraction(1.0), Fraction(0.6)])
def test_an_honest_certificate_is_proven_again(tmp_path: Path, goal: Goal) -> None:
    for solver in ("exact", "rotor"):
        plan_graph(chain(8), PlanOptions(goal, solver=solver)).save(tmp_path / "plan.json")
        assert load(tmp_path / "plan.json").verified


def lie_about(length: int, path: Path) -> Plan:
    """A plan of a chain, loaded from a file that says that it is optimal, which no short search proves."""
    plan = plan_graph(chain(length), PlanOptions(MaxOverhead(0.4), solver="chen-sqrt"))
    formats.write_json(path, claimed(plan, plan.peak_bytes, "optimal"))
    with mock.patch.object(certify, "holds", return_value=True):
        return load(path)


def test_no_longer_search_for_a_proof_begins_when_the_short_one_took_long(tmp_path: Path) -> None:
    lied, asked = lie_about(100, tmp_path / "plan.json"), []
    clock = (certify.LOADED.begin_before_s * 1.01 * i for i in itertools.count())

    def best(*args: Any) -> bounds.Bound:
        asked.append(args[3])
        return bounds.single_op(lied.graph)

    with (
        mock.patch.object(bounds, "best", best),
        mock.patch.object(certify.time, "thread_time", side_effect=clock),
    ):
        assert not certify.holds(lied)
    assert asked == [certify.LOADED.looks_s[0]]


def test_proving_again_calls_a_number_of_functions_that_grows_as_the_graph_does(tmp_path: Path) -> None:
    short, long = (lie_about(n, tmp_path / "plan.json") for n in (750, 1500))
    first, twice = (calls_of(lambda p=p: certify.holds(p)) for p in (short, long))
    assert twice < 2.3 * first
    assert twice < 600 * len(long.graph.ops)  # measured: 225 for each op, 0.2 ms


def calls_of(work: Callable[[], object]) -> int:
    """How many calls of functions `work` makes, in Python and below."""
    with cProfile.Profile() as profile:
        work()
    return sum(entry.callcount for entry in profile.getstats())


def test_names_in_a_plan_are_printed_and_not_obeyed(tmp_path: Path) -> None:
    evil = "\x1b[2J\x07\r\u202e\ud800"
    graph = chain(8)
    ops = tuple(replace(o, name=o.name + evil) if o.name != BOUNDARY else o for o in graph.ops)
    plan = plan_graph(replace(graph, ops=ops, name=evil), PlanOptions(LeastMemory(), solver="none"))
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
    default = {"effort": "normal", "time_limit": None, "seed": 0, "optimizer": None}
    assert plan.to_json()["options"] == default
    for options in (
        {"time_limit": 3.5, "seed": 7, "optimizer": "adamw"}, {"time_limit": None, "seed": 0, "optimizer": None}, {"seed": 1},
        {"effort": "quick", "cache": False}, {"parity": "close", "unused": ["logits", "more.0"]},
    ):  # fmt: skip
        again = load(tampered(tmp_path, options=options))
        again.save(path)
        for read in (again, load(path)):
            assert read.to_json()["options"] == default | options
    assert load(tampered(tmp_path, options={"seed": 2, "later": [1]}, more={"later": 10**60})).options.seed == 2
