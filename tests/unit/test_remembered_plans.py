"""Plans are remembered on disk: a second request of the same makes no search, and no file is trusted."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import asked
import rekindle
from command_line import Ran, step
from extra_solver import extra_solver
from rekindle import InfeasibleBudget
from rekindle.ask import Aim, Budget, Fraction, Goal, LeastMemory, MaxOverhead, PlanOptions
from rekindle.model.graph import Graph, Link
from rekindle.model.judge import simulate
from rekindle.model.schedule import Schedule
from rekindle.planning import remembered
from rekindle.planning.frontiers import frontier_graph
from rekindle.planning.planner import make_problem, plan_graph
from rekindle.problem import REGISTERED, Problem

SOLVER = "exact"
LEAST = PlanOptions(LeastMemory(), solver=SOLVER)
GOALS = [Budget(140), Fraction(0.9), MaxOverhead(0.5), LeastMemory()]


@pytest.fixture
def folder(memory_of_plans: Path) -> Path:
    return memory_of_plans


@pytest.fixture
def searches() -> Iterator[list[Problem]]:
    """The problems that the solver is asked from here on."""
    with asked.searches(SOLVER) as found:
        yield found


def plain(x: Any) -> Any:
    """A plan without the time that it took."""
    return [replace(p, solve_seconds=0.0) for p in x] if isinstance(x, list) else replace(x, solve_seconds=0.0)


def the_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


# -- remembered ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("goal", GOALS, ids=str)
@pytest.mark.parametrize("bookkeeping", [None, 0])
def test_the_second_plan_is_the_first_and_makes_no_search(
    folder: Path, searches: list[Problem], goal: Goal, bookkeeping: int | None
) -> None:
    news: list[str] = []
    options = replace(LEAST, goal=goal, progress=news.append)
    first = plan_graph(step(), options, bookkeeping=bookkeeping)
    count = len(searches)
    assert count > 0
    assert remembered.NEWS not in news
    again = plan_graph(step(), options, bookkeeping=bookkeeping)
    assert len(searches) == count
    assert news.count(remembered.NEWS) == 1
    assert plain(again) == plain(first)
    assert (again.status, again.bound_bytes) == (first.status, first.bound_bytes)
    assert again.verified


def test_a_frontier_is_remembered(folder: Path, searches: list[Problem]) -> None:
    first = frontier_graph(step(), LEAST)
    count = len(searches)
    assert len(first) > 1
    assert count > 0
    assert plain(frontier_graph(step(), LEAST)) == plain(first)
    assert len(searches) == count
    plan_graph(step(), LEAST)  # another request than the frontier
    assert len(searches) > count


def other_costs() -> Graph:
    ops = step().ops
    return replace(step(), ops=(replace(ops[0], seconds=1.5), *ops[1:]))


OTHER_REQUESTS: dict[str, Callable[[], Any]] = {
    "goal": lambda: plan_graph(step(), replace(LEAST, goal=MaxOverhead(0.25))),
    "cost": lambda: plan_graph(step(), replace(LEAST, cost="flops")),
    "effort": lambda: plan_graph(step(), replace(LEAST, effort="quick")),
    "parity": lambda: plan_graph(step(), replace(LEAST, parity="close")),
    "time limit": lambda: plan_graph(step(), replace(LEAST, time_limit=5.0)),
    "seed": lambda: plan_graph(step(), replace(LEAST, seed=1)),
    "costs of ops": lambda: plan_graph(other_costs(), LEAST),
    "resident bytes": lambda: plan_graph(replace(step(), resident_bytes=101), LEAST),
    "finish": lambda: plan_graph(step(), LEAST, finish=lambda graph, schedule: schedule),
}


@pytest.mark.parametrize("name", OTHER_REQUESTS)
def test_another_request_is_another_search(folder: Path, searches: list[Problem], name: str) -> None:
    plan_graph(step(), LEAST)
    searches.clear()
    OTHER_REQUESTS[name]()
    assert searches
    searches.clear()
    OTHER_REQUESTS[name]()
    assert not searches


def test_bytes_to_spare_are_part_of_the_request(folder: Path, searches: list[Problem]) -> None:
    options = replace(LEAST, goal=Budget(1000))
    for spare in (None, 0, 8):
        searches.clear()
        plan_graph(step(), options, bookkeeping=spare)
        assert searches


@pytest.mark.parametrize("what", ["SEARCH_VERSION", "__version__"])
def test_another_version_searches_again(
    folder: Path, searches: list[Problem], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    plan_graph(step(), LEAST)
    searches.clear()
    monkeypatch.setattr(remembered, what, "another")
    plan_graph(step(), LEAST)
    assert searches


def test_without_cache_nothing_is_read_or_written(folder: Path, searches: list[Problem]) -> None:
    plan_graph(step(), replace(LEAST, cache=False))
    frontier_graph(step(), replace(LEAST, cache=False))
    assert not folder.exists()
    plan_graph(step(), LEAST)
    searches.clear()
    plan_graph(step(), replace(LEAST, cache=False))
    assert searches


@pytest.mark.parametrize("command", [("solve", "--minimize", "memory"), ("frontier",)])
def test_the_command_line_says_no_cache(
    folder: Path, searches: list[Problem], graph: Path, capfd: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    args = (command[0], graph, *command[1:], "--solver", SOLVER, "--json")
    assert Ran(capfd, *args, "--no-cache").code == 0
    assert not folder.exists()
    assert searches
    assert Ran(capfd, *args).code == 0
    assert len(list(folder.iterdir())) == 1
    searches.clear()
    assert Ran(capfd, *args).code == 0
    assert not searches
    assert Ran(capfd, *args, "--no-cache").code == 0
    assert searches


# -- not remembered --------------------------------------------------------------------------------------------------------
def test_a_hopeless_request_is_not_remembered(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(InfeasibleBudget):
            plan_graph(step(), replace(LEAST, goal=Budget(101)))
    assert not folder.exists()


@pytest.mark.parametrize("verb", [plan_graph, frontier_graph])
def test_an_interrupted_search_is_not_remembered(
    folder: Path, searches: list[Problem], monkeypatch: pytest.MonkeyPatch, verb: Callable[..., Any]
) -> None:
    solver = REGISTERED[SOLVER]

    @functools.wraps(solver.solve)
    def interrupted(problem: Problem) -> Iterator[Schedule]:
        with problem.interruptible():
            raise KeyboardInterrupt
        yield Schedule.baseline(problem.graph)

    monkeypatch.setitem(REGISTERED, SOLVER, replace(solver, solve=interrupted))
    assert verb(step(), LEAST)
    assert not folder.exists()


def test_a_search_with_copies_that_was_interrupted_before_them_is_not_remembered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = REGISTERED[SOLVER]
    asked: list[Problem] = []

    @functools.wraps(solver.solve)
    def interrupted(problem: Problem) -> Iterator[Schedule]:
        asked.append(problem)
        with problem.interruptible():
            if len(asked) == 1:
                raise KeyboardInterrupt
        yield Schedule.baseline(problem.graph)

    monkeypatch.setitem(REGISTERED, SOLVER, replace(solver, solve=interrupted))
    assert plan_graph(replace(step(), link=Link(1e9, 1e9)), replace(LEAST, offload=True))
    assert asked[-1].interrupted.is_set()
    assert not folder.exists()


def test_a_solver_of_another_package_is_asked_each_time(folder: Path) -> None:
    asked = []

    def solve(problem: Problem) -> list[Schedule]:
        asked.append(problem)
        return [Schedule.baseline(problem.graph)]

    with extra_solver("mine", solve) as name:
        for _ in range(2):
            plan_graph(step(), replace(LEAST, solver=name))
    assert len(asked) == 2
    assert not folder.exists()


# -- no file is trusted ----------------------------------------------------------------------------------------------------
def rewritten(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        doc = json.loads(file.read_text())
        change(doc)
        file.write_text(json.dumps(doc))

    return write


def with_schedule(schedule: Schedule) -> Callable[[Path], None]:
    """Its figures are right; only the goal is not kept."""
    judged = simulate(step(), schedule)

    def change(doc: dict[str, Any]) -> None:
        doc["schedules"][0] |= {
            "steps": rekindle.model.formats.steps_to_json(schedule),
            "peak_bytes": judged.peak_bytes,
            "bound_bytes": 0,
            "overhead": judged.overhead,
        }

    return rewritten(change)


def first_schedule(**fields: Any) -> Callable[[Path], None]:
    return rewritten(lambda doc: doc["schedules"][0].update(fields))


WRONG: dict[str, Callable[[Path], None]] = {
    "empty": lambda file: file.write_text(""),
    "cut off": lambda file: file.write_text(file.read_text()[:-20]),
    "no text": lambda file: file.write_bytes(b"\xff\xfe\x00"),
    "another document": lambda file: file.write_text("[1, 2]"),
    "deep": lambda file: file.write_text("[" * 100_000),
    "another format": rewritten(lambda doc: doc.update(format="rekindle.remembered/2")),
    "another request": rewritten(lambda doc: doc["request"].update(seed=5)),
    "no request": rewritten(lambda doc: doc.pop("request")),
    "no schedules": rewritten(lambda doc: doc.update(schedules=[])),
    "schedules are numbers": rewritten(lambda doc: doc.update(schedules=[7])),
    "another graph": first_schedule(graph_hash="0" * 64),
    "unknown op": first_schedule(steps=[{"run": 99}]),
    "negative op": first_schedule(steps=[{"run": -1}]),
    "huge id": first_schedule(steps=[{"run": 2**61}]),
    "invalid order": first_schedule(steps=[{"run": 6}]),
    "no steps": first_schedule(steps=[]),
    "steps of another kind": first_schedule(steps=[{"call": "print"}]),
    "another peak": first_schedule(peak_bytes=1),
    "a bound above its peak": first_schedule(bound_bytes=10**6),
    "a bound below 0": first_schedule(bound_bytes=-1),
    "another overhead": first_schedule(overhead=0.123),
    "no figures": rewritten(lambda doc: doc["schedules"][0].pop("peak_bytes")),
    "a long name": first_schedule(solver="x" * 10_000),
    "a name that does not print": first_schedule(solver="\x1b[2J"),
    "a schedule beyond the goal": with_schedule(Schedule.baseline(step())),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file))[0],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_counts_as_absent_and_is_replaced(folder: Path, searches: list[Problem], name: str) -> None:
    options = replace(LEAST, goal=Budget(140))
    first = plan_graph(step(), options)
    WRONG[name](the_file(folder))
    searches.clear()
    assert plain(plan_graph(step(), options)) == plain(first)
    assert searches
    if name == "a pipe":  # no regular file is replaced by one
        return
    searches.clear()
    assert plain(plan_graph(step(), options)) == plain(first)
    assert not searches


def test_a_bound_is_proven_and_not_read(folder: Path, searches: list[Problem]) -> None:
    """A file cannot strengthen a certificate. One that claims less gets less proven, and what is said is true."""
    options = replace(LEAST, goal=MaxOverhead(0.5))
    plan_graph(step(), options)
    wasteful = Schedule.from_runs(step(), [*range(3), 1, 2, *range(3, 7)])
    with_schedule(wasteful)(the_file(folder))
    searches.clear()
    bounds = []
    for claimed in (0, 140, 150):
        first_schedule(bound_bytes=claimed)(the_file(folder))
        plan = plan_graph(step(), options)
        assert plan.schedule.runs == wasteful.runs
        assert (plan.peak_bytes, plan.status) == (150, "feasible")
        bounds.append(plan.bound_bytes)
    assert bounds == [130, 140, 140]  # 140 is proven by a search without the file too
    assert not searches


def test_a_file_that_is_too_large_is_neither_read_nor_written(
    folder: Path, searches: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_graph(step(), LEAST)
    monkeypatch.setattr(remembered, "SETTINGS", replace(remembered.SETTINGS, file_most_bytes=100))
    searches.clear()
    before = the_file(folder).stat().st_mtime_ns
    plan_graph(step(), LEAST)
    assert searches
    assert the_file(folder).stat().st_mtime_ns == before


@pytest.mark.parametrize("where", ["a file in the way", "no home"])
def test_where_nothing_can_be_written_plans_are_made_in_silence(
    where: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if where == "no home":
        monkeypatch.delenv("REKINDLE_CACHE")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    else:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "file" / "cache"))
    assert plain(plan_graph(step(), LEAST)) == plain(plan_graph(step(), LEAST))
    assert capfd.readouterr() == ("", "")


# -- bounded, and safe under several writers -------------------------------------------------------------------------------
def keep(seed: int, age_s: float, folder: Path) -> Path:
    """The file of a new plan, as if last used some seconds ago."""
    before = set(folder.iterdir()) if folder.exists() else set()
    plan_graph(step(), replace(LEAST, seed=seed))
    (new,) = set(folder.iterdir()) - before
    at = new.stat().st_mtime - age_s
    os.utime(new, (at, at))
    return new


@pytest.mark.parametrize("limit", ["files", "bytes"])
def test_the_least_recently_used_go_first(
    folder: Path, searches: list[Problem], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    files = [keep(seed, 100 - seed, folder) for seed in range(3)]
    plan_graph(step(), replace(LEAST, seed=0))  # the oldest is used again
    other = folder / "of the user.json"
    other.write_text("kept")
    size = sum(f.stat().st_size for f in files)
    most = {"files_most": 3} if limit == "files" else {"all_most_bytes": size + 10}
    monkeypatch.setattr(remembered, "SETTINGS", replace(remembered.SETTINGS, **most))
    new = keep(3, 0, folder)
    assert set(folder.iterdir()) == {files[0], files[2], new, other}


def test_files_left_unfinished_are_deleted_once_they_are_old(folder: Path) -> None:
    folder.mkdir(parents=True)
    old, young = folder / f".rekindle-{'0' * 16}", folder / f".rekindle-{'1' * 16}"
    for file in (old, young):
        file.write_text("{")
    os.utime(old, (0, 0))
    plan_graph(step(), LEAST)
    assert not old.exists()
    assert young.exists()


def several(cache: str, first: int) -> list[int]:
    """The peaks of plans of some seeds, while only few are kept."""
    os.environ["REKINDLE_CACHE"] = cache
    remembered.SETTINGS = replace(remembered.MemorySettings(), files_most=3)
    return [plan_graph(step(), replace(LEAST, seed=(first + i) % 5)).peak_bytes for i in range(15)]


@pytest.mark.parametrize(
    "pool",
    [
        pytest.param(ThreadPoolExecutor, id="threads"),
        pytest.param(
            functools.partial(ProcessPoolExecutor, mp_context=get_context("spawn")),
            id="processes",
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_several_write_at_once(folder: Path, pool: Callable[[int], Executor]) -> None:
    peak = plan_graph(step(), LEAST).peak_bytes
    with pool(2) as workers:
        found = [workers.submit(several, str(folder.parent), first) for first in (0, 2)]
        assert [f.result() for f in found] == [[peak] * 15] * 2
    assert 1 <= len(list(folder.iterdir())) <= 3
    for file in folder.iterdir():
        assert json.loads(file.read_text())["format"] == remembered.FORMAT


def test_ctrl_c_while_numba_loads_a_loop_ends_the_search_alone() -> None:
    """numba makes a SystemError of it, which the user saw."""
    problem = make_problem(step(), LEAST, Aim())
    with problem.interruptible():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as e:
            raise SystemError("returned a result with an exception set") from e
    assert problem.interrupted.is_set()
    with pytest.raises(SystemError), problem.interruptible():
        raise SystemError("another one")
