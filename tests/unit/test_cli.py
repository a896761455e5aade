"""The command line: documents, exit codes, and nothing on stdout beside one document."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import rekindle
from command_line import PLAIN, Ran, assert_one_paragraph, step
from extra_solver import extra_solver
from rekindle.cli.models import load_model
from rekindle.errors import UsageError
from rekindle.model import formats
from rekindle.model.graph import BOUNDARY
from rekindle.model.judge import simulate
from rekindle.model.schedule import Schedule
from rekindle.planning import certify
from rekindle.problem import Problem


@pytest.fixture
def noisy() -> Iterator[str]:
    """A solver that prints, from Python and past it."""

    def solve(problem: Problem) -> list[Schedule]:
        print("noise")
        os.write(1, b"more noise\n")
        return [Schedule.baseline(problem.graph)]

    with extra_solver("noisy", solve) as name:
        yield name


def test_solve_gives_the_schedule_document_without_steps(graph: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capfd, "solve", graph, "--budget", PLAIN, "--solver", "none", "--json")
    assert ran.code == 0
    assert ran.document["format"] == "rekindle.schedule/1"
    assert ran.document["graph_hash"] == step().hash
    assert ran.document["peak_bytes"] == PLAIN
    assert "steps" not in ran.document
    assert ran.err == ""


def test_solve_writes_the_whole_schedule(graph: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out, svg = tmp_path / "schedule.json", tmp_path / "timeline.svg"
    ran = Ran(capfd, "solve", graph, "--budget", "1KiB", "--solver", "none", "--out", out, "--svg", svg)
    assert ran.code == 0
    assert "fits" in ran.out
    doc = formats.read_json(out)
    judged = simulate(step(), formats.schedule_from_json(doc))
    assert (judged.peak_bytes, judged.seconds) == (doc["peak_bytes"], doc["seconds"])
    assert svg.read_text().startswith("<svg")


def test_solve_copies_values_where_the_graph_has_a_link(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph, plain = tmp_path / "linked.json", tmp_path / "plain.json"
    formats.write_json(graph, formats.graph_to_json(replace(step(), link=rekindle.Link(1e3, 1e3, 0.0))))
    formats.write_json(plain, formats.graph_to_json(step()))
    goal = ("--budget", "140", "--no-cache", "--json")
    ran = Ran(capfd, "solve", graph, *goal, "--offload", "yes", "--host-budget", "1KiB")
    assert (ran.code, ran.document["format"]) == (0, "rekindle.schedule/2")
    assert 0 < ran.document["host_bytes"] <= ran.document["moved_bytes"]
    assert Ran(capfd, "solve", plain, *goal, "--offload", "auto").document["format"] == "rekindle.schedule/1"
    for wrong, words in (
        (("--offload", "yes"), "plain.json has no link"),
        (("--offload", "true"), "choose one of no, yes, auto"),
        (("--host-budget", "1KiB"), "--offload yes"),
        (("--offload", "yes", "--cost", "flops"), "--offload yes"),
        (("--offload", "auto", "--host-budget", "much"), "'much' is no size"),
    ):
        ran = Ran(capfd, "solve", plain, *goal, *wrong)
        assert ran.code == 2
        assert_one_paragraph(ran.err)
        assert words in ran.err


def test_the_command_line_asks_back_as_python_does(graph: Path, capfd: pytest.CaptureFixture[str]) -> None:
    solver = ("--solver", "none", "--json")
    ran = Ran(capfd, "solve", graph, "--max-overhead", "10", *solver)
    assert (ran.code, "--max-overhead 10 would allow 1,000 % extra cost" in ran.err) == (2, True)
    assert Ran(capfd, "solve", graph, "--max-overhead", "10.0", *solver).code == 0
    ran = Ran(capfd, "solve", graph, "--budget", "8", *solver)
    assert (ran.code, 'budget 8 bytes (or "8GiB"?) cannot be met' in ran.err) == (3, True)
    assert "--budget 50% is no size" in Ran(capfd, "solve", graph, "--budget", "50%", *solver).err


def test_compare_proves_what_it_can(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a file may leave its certificate unproven where that takes long; `compare` takes the longer time."""
    plan = tmp_path / "plan.json"
    rekindle.plan(step(), budget=140, cache=False).save(plan)
    monkeypatch.setattr(certify, "holds", lambda plan, limits=None: limits is certify.PATIENT)
    ran = Ran(capfd, "compare", plan, plan)
    assert "not verified" not in ran.out
    assert [line.split() for line in ran.out.splitlines() if line.startswith("verified")] == [
        ["verified", "yes", "yes"]
    ]


@pytest.mark.parametrize("goal", [("--max-overhead", "0.1"), ("--minimize", "memory"), ("--budget", "1.0")])
def test_every_goal(graph: Path, capfd: pytest.CaptureFixture[str], goal: tuple[str, str]) -> None:
    ran = Ran(capfd, "solve", graph, *goal, "--solver", "none", "--json", "--time-limit", 5, "--seed", 3)
    assert (ran.code, ran.document["peak_bytes"]) == (0, PLAIN)


def test_an_infeasible_budget_exits_3_and_says_what_would_do(graph: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capfd, "solve", graph, "--budget", PLAIN - 1, "--solver", "none", "--json")
    assert ran.code == 3
    error = ran.document["error"]
    assert error["type"] == "InfeasibleBudget"
    assert (error["budget"], error["smallest_peak"]) == (PLAIN - 1, PLAIN)
    assert error["bound_bytes"] <= PLAIN
    assert error["op"]
    assert_one_paragraph(ran.err)


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--budget", "100", "--minimize", "memory"],
        ["--budget", "much"],
        ["--budget", "1.5"],
        ["--max-overhead", "-1"],
        ["--max-overhead", "some"],
        ["--minimize", "time"],
        ["--budget", "1GiB", "--solver", "magic"],
        ["--budget", "1GiB", "--cost", "money"],
        ["--budget", "1GiB", "--time-limit", "0"],
        ["--budget", "1GiB", "--out", "no/such/folder/x.json"],
        ["--budget", "1GiB", "--unheard-of"],
        ["--budget", "1GiB", "extra"],
        ["--budget", "9" * 24],
        ["--budget", "1GiB", "--seed", "9" * 24],
        ["--budget", "1GiB", "--time-limit", "inf"],
        ["--budget", "1GiB", "--time-limit", "nan"],
        ["--budget", "9" * 400 + "GiB"],
        ["--budget", "9" * 5000],
        ["--budget", "nan"],
        ["--budget", "-0.5"],
        ["--max-overhead", "nan"],
        ["--max-overhead", "inf"],
        ["--budget", "1GiB", "--out", ""],
        ["--budget", "1GiB", "--out", "a\0b"],
        ["--budget", "1GiB", "--out", "new.json", "--svg", "new.json"],
        ["--budget", "1GiB", "--out", "/dev/stdout"],
        ["--budget", "1GiB", "--out", "/dev/fd/1"],
        ["--budget", "1GiB", "--out", "/proc/self/fd/1"],
        ["--budget", "1GiB", "--out", "n" * 300],
    ],
)
def test_bad_usage_exits_2(graph: Path, capfd: pytest.CaptureFixture[str], more: list[str]) -> None:
    solver = [] if "--solver" in more else ["--solver", "none"]
    ran = Ran(capfd, "solve", graph, *solver, *more, "--json")
    assert ran.code == 2
    assert ran.document["error"]["type"] == "UsageError"
    assert_one_paragraph(ran.err)
    said = Ran(capfd, "solve", graph, *solver, *more)
    assert (said.code, said.out) == (2, "")
    assert_one_paragraph(said.err)


@pytest.mark.parametrize("text", ["", "{", '{"format": "rekindle.graph/2"}', "[]", '{"format": "rekindle.graph/1"}'])
def test_a_damaged_file_exits_1(tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str) -> None:
    path = tmp_path / "graph.json"
    path.write_text(text)
    ran = Ran(capfd, "solve", path, "--budget", "1GiB", "--solver", "none", "--json")
    assert (ran.code, ran.document["error"]["type"]) == (1, "FormatError")
    assert_one_paragraph(ran.err)


def test_a_missing_file_exits_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capfd, "solve", tmp_path / "none.json", "--budget", "1GiB", "--solver", "none", "--json")
    assert (ran.code, ran.document["error"]["type"]) == (1, "FormatError")


def test_any_other_error_exits_1_and_names_the_line(
    graph: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr("rekindle.api.plan_graph", broken)
    ran = Ran(capfd, "solve", graph, "--budget", "1GiB", "--solver", "none", "--json")
    assert (ran.code, ran.document["error"]["type"]) == (1, "ZeroDivisionError")
    assert "by design" in ran.err
    assert "test_cli.py" in ran.err
    assert "Traceback" not in ran.err


def test_noise_goes_to_stderr(graph: Path, noisy: str, capfd: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capfd, "solve", graph, "--budget", "1GiB", "--solver", noisy, "--json")
    assert ran.document["solver"] == noisy
    assert ran.err == "noise\nmore noise\n" or ran.err == "more noise\nnoise\n"


def test_solvers(capfd: pytest.CaptureFixture[str], noisy: str) -> None:
    entries = {s["name"]: s for s in Ran(capfd, "solvers", "--json").document["solvers"]}
    assert {"none", noisy} <= entries.keys()
    for entry in entries.values():
        assert entry.keys() == {"name", "graphs", "objective", "optimal", "complexity", "citation"}
        assert entry["graphs"] in ("chain", "any")
        assert entry["optimal"] is False or entry["optimal"]
    assert entries[noisy]["optimal"] is False
    assert "none" in Ran(capfd, "solvers").out


def test_frontier_of_a_graph(graph: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out, svg = tmp_path / "frontier.json", tmp_path / "frontier.svg"
    ran = Ran(capfd, "frontier", graph, "--solver", "none", "--json", "--out", out, "--svg", svg)
    assert ran.code == 0
    assert [p["peak_bytes"] for p in ran.document["plans"]] == [PLAIN]
    assert formats.read_json(out) == ran.document
    assert svg.read_text().startswith("<svg")
    assert Ran(capfd, "frontier", graph, "--solver", "none").code == 0


def test_names_in_a_graph_never_reach_the_terminal_raw(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\r\n\u202e\ud800" + "x" * 10_000
    doc = formats.graph_to_json(step())
    doc["name"] = evil
    for op in doc["ops"]:
        op["name"] += evil if op["name"] != BOUNDARY else ""
    graph, svg = tmp_path / "graph.json", tmp_path / "x.svg"
    formats.write_json(graph, doc)
    for args in (
        ("solve", graph, "--budget", "1GiB", "--svg", svg), ("solve", graph, "--minimize", "memory"), ("frontier", graph),
        ("solve", graph, "--budget", 1), ("solve", graph, "--budget", evil), ("solve", evil, "--budget", 1),
        ("solve", graph, "--budget", "1GiB", "--out", evil), ("solve", graph, "--solver", evil, "--budget", 1),
        ("plan", evil, "--budget", 1), (evil,),
    ):  # fmt: skip
        for more in ((), ("--json",)):
            ran = Ran(capfd, *args, *(("--solver", "none") if "--solver" not in args else ()), *more)
            assert not set("\x1b\x07\r\u202e") & set(ran.out + ran.err)
            if more:
                assert ran.document
    doc["ops"][0]["inputs"] = [99]
    formats.write_json(graph, doc)
    ran = Ran(capfd, "solve", graph, "--budget", 1, "--solver", "none")
    assert ran.code == 1
    assert "\x1b" not in ran.err
    assert len(ran.err) < 2000


def test_bench_prints_and_appends_each_row(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    args = ("bench", "--suite", "smoke", "--models", "cnn, unet", "--methods", "plain")
    ran = Ran(capfd, *args, "--json", "--out", out)
    assert ran.code == 0
    assert [row["model"] for row in ran.document["rows"]] == ["cnn", "unet"]
    assert [json.loads(line) for line in out.read_text().splitlines()] == ran.document["rows"]
    assert "unet" in Ran(capfd, *args, "--out", out).out


@pytest.mark.parametrize("command", [("solve", "--budget", "1GiB"), ("frontier",)])
def test_a_plan_file_serves_as_its_graph(
    graph: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    path = tmp_path / "plan.json"
    rekindle.plan(formats.graph_from_json(formats.read_json(graph)), budget=PLAIN, solver="none").save(path)
    plan, own = (Ran(capfd, command[0], p, *command[1:], "--solver", "none", "--json") for p in (path, graph))
    assert plan.code == 0
    found, expected = (x.document.get("plans", [x.document]) for x in (plan, own))
    for key in ("graph_hash", "peak_bytes", "seconds", "overhead"):
        assert [p[key] for p in found] == [p[key] for p in expected]


@pytest.mark.parametrize("command", [("solve", "--budget", "1GiB"), ("frontier",)])
@pytest.mark.parametrize(
    ("doc", "says"),
    [
        ({"format": "rekindle.parts/1"}, "the parts of a model"),
        ({"format": "rekindle.schedule/1"}, "a schedule and no graph"),
    ],
)
def test_a_file_without_one_graph_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: tuple[str, ...], doc: dict[str, str], says: str
) -> None:
    path = tmp_path / "other.json"
    formats.write_json(path, doc)
    ran = Ran(capfd, command[0], path, *command[1:])
    assert ran.code == 2
    assert says in ran.err


@pytest.mark.parametrize("spec", ["resnet50", "nowhere.py:make", "file.txt:make", ":make", "file.py:"])
def test_a_model_that_cannot_be_found_exits_2(capfd: pytest.CaptureFixture[str], spec: str) -> None:
    ran = Ran(capfd, "plan", spec, "--budget", "1GiB", "--solver", "none", "--json")
    assert (ran.code, ran.document["error"]["type"]) == (2, "UsageError")


def test_a_model_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text("SIZE = 3\n")
    path = tmp_path / "mine.py"
    path.write_text("from sizes import SIZE\ndef make(batch=1): return 'model', batch * SIZE\ndef no(): return 7\n")
    assert load_model(f"{path}:make", None) == ("model", 3)
    assert load_model(f"{path}:make", 5) == ("model", 15)
    for name, batch in (("no", None), ("no", 2), ("absent", None), ("SIZE", None)):
        with pytest.raises(UsageError):
            load_model(f"{path}:{name}", batch)


def test_no_command_shows_the_help_and_exits_2(capfd: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capfd)
    assert ran.code == 2
    assert "solve" in ran.out
    assert Ran(capfd, "--help").code == 0
    assert Ran(capfd, "bogus").code == 2


def test_solve_and_solvers_import_no_torch(graph: Path) -> None:
    script = f"""
import sys
from rekindle.cli import main
assert main(["solvers", "--json"]) == 0
assert main(["solve", {str(graph)!r}, "--budget", "1KiB", "--solver", "none"]) == 0
assert "torch" not in sys.modules, "torch was imported"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_warm_says_what_it_did(capfd: pytest.CaptureFixture[str]) -> None:
    document = Ran(capfd, "warm", "--json").document
    assert document["kernels"] >= 0
    assert Path(document["folder"]).is_dir()
