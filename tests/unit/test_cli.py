"""The command line: documents, exit codes, and nothing on stdout beside one document."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from extra_solver import extra_solver
from rekindle.cli import main
from rekindle.cli.models import load_model
from rekindle.errors import UsageError
from rekindle.model import formats
from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.model.judge import simulate
from rekindle.model.schedule import Schedule
from rekindle.problem import Problem

PLAIN = 150  # peak of `step`: 100 resident, and during b2 the values 1, 2, 3, 4 and 5


def step() -> Graph:
    """A chain of two ops and its backward, 10 bytes each; the largest op holds 30."""
    ops = (
        Op("f0", (0,), (1,), seconds=1.0, flops=4),
        Op("f1", (1,), (2,), seconds=1.0, flops=4),
        Op("f2", (2,), (3,), seconds=1.0, flops=4),
        Op(BOUNDARY, (3,), (4,), recompute=False),
        Op("b2", (4, 2), (5,), seconds=2.0, flops=8, backward=True),
        Op("b1", (5, 1), (6,), seconds=2.0, flops=8, backward=True),
        Op("b0", (6,), (7,), seconds=2.0, flops=8, backward=True),
    )
    return Graph((Value(10),) * 8, ops, (7, 3), resident_bytes=100, name="step")


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "graph.json"
    formats.write_json(path, formats.graph_to_json(step()))
    return path


@pytest.fixture
def noisy() -> Iterator[str]:
    """A solver that prints, from Python and past it."""

    def solve(problem: Problem) -> list[Schedule]:
        print("noise")
        os.write(1, b"more noise\n")
        return [Schedule.baseline(problem.graph)]

    with extra_solver("noisy", solve) as name:
        yield name


class Ran:
    """What a command printed and returned."""

    def __init__(self, capfd: pytest.CaptureFixture[str], *args: object):
        self.code = main([str(a) for a in args])
        self.out, self.err = capfd.readouterr()

    @property
    def document(self) -> Any:
        """stdout as one JSON document; anything else there fails."""
        return json.loads(self.out)


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


@pytest.fixture
def never() -> Iterator[str]:
    """A solver that must not be asked."""

    def solve(problem: Problem) -> list[Schedule]:
        pytest.fail("planned before the files were looked at")

    with extra_solver("never", solve) as name:
        yield name


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))


def make_folder(path: Path) -> None:
    path.mkdir()


def make_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/null")


def make_link_into_nowhere(path: Path) -> None:
    path.symlink_to(path.parent / "no such folder" / "file")


def make_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


NOT_REGULAR = [
    make_pipe, make_socket, make_folder, make_link_to_a_device, make_link_into_nowhere, make_link_to_itself,
]  # fmt: skip


@pytest.mark.parametrize("make", NOT_REGULAR)
@pytest.mark.parametrize("option", ["--out", "--svg"])
@pytest.mark.parametrize("command", ["solve", "frontier"])
def test_only_regular_files_are_written_and_that_is_seen_before_planning(
    graph: Path, capfd: pytest.CaptureFixture[str], never: str, make: Any, option: str, command: str
) -> None:
    path = graph.parent / "x"
    make(path)
    before = os.lstat(path)
    goal = ["--budget", "1GiB"] if command == "solve" else []
    ran = Ran(capfd, command, graph, *goal, "--solver", never, option, path, "--json")
    assert (ran.code, ran.document["error"]["type"]) == (2, "UsageError")
    assert str(path) in ran.err
    assert_one_paragraph(ran.err)
    assert os.lstat(path).st_ino == before.st_ino
    assert sorted(p.name for p in graph.parent.iterdir()) == ["graph.json", "x"]


@contextmanager
def not_root(*paths: Path) -> Iterator[None]:
    """As a user who owns these paths: root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    nobody = 65534
    for path in paths:
        os.chown(path, nobody, nobody)
    os.setresuid(nobody, nobody, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_a_protected_file_or_folder_is_seen_before_planning(capfd: pytest.CaptureFixture[str], never: str) -> None:
    with tempfile.TemporaryDirectory(prefix="rekindle-test-") as name:  # pytest's own folders are their owner's alone
        graph, folder = Path(name) / "graph.json", Path(name) / "protected"
        formats.write_json(graph, formats.graph_to_json(step()))
        folder.mkdir()
        (folder / "file").touch(0o444)
        ran = Ran(capfd, "solve", graph, "--budget", "1GiB", "--solver", "none", "--out", graph.parent / "before")
        assert ran.code == 0  # and all that is needed has been imported
        for mode in (0o755, 0o555):
            folder.chmod(mode)
            with not_root(graph.parent, graph, folder, folder / "file"):
                ran = Ran(capfd, "solve", graph, "--budget", "1GiB", "--solver", never, "--out", folder / "file")
            assert ran.code == 2
            assert_one_paragraph(ran.err)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link(graph: Path, capfd: pytest.CaptureFixture[str], there: bool) -> None:
    folder = graph.parent / "folder"
    folder.mkdir()
    for option in ("--out", "--svg"):
        target, link = folder / f"target{option}", graph.parent / f"link{option}"
        if there:
            target.write_text("old")
            target.chmod(0o600)
        link.symlink_to(Path("folder") / target.name)
        ran = Ran(capfd, "solve", graph, "--budget", "1GiB", "--solver", "none", option, link)
        assert ran.code == 0
        assert link.is_symlink()
        assert not target.is_symlink()
        assert target.read_text().startswith("{" if option == "--out" else "<svg")
        if there:
            assert target.stat().st_mode & 0o777 == 0o600
    assert len(list(folder.iterdir())) == 2, "no temporary file stays behind"


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


def test_a_frontier_and_a_schedule_need_regular_input(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for path in ("/dev/zero", tmp_path):
        ran = Ran(capfd, "solve", path, "--budget", "1GiB", "--solver", "none", "--json")
        assert (ran.code, ran.document["error"]["type"]) == (1, "FormatError")


def test_bench_prints_and_appends_each_row(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    args = ("bench", "--suite", "smoke", "--models", "cnn, unet", "--methods", "plain")
    ran = Ran(capfd, *args, "--json", "--out", out)
    assert ran.code == 0
    assert [row["model"] for row in ran.document["rows"]] == ["cnn", "unet"]
    assert [json.loads(line) for line in out.read_text().splitlines()] == ran.document["rows"]
    assert "unet" in Ran(capfd, *args, "--out", out).out


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


def assert_one_paragraph(text: str) -> None:
    assert text.startswith("error: ")
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
