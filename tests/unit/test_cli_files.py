"""Files that the command line reads and writes: regular ones alone, seen before any planning; links stay links."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command_line import Ran, assert_one_paragraph, step
from plan_documents import toy_plan
from rekindle.model import formats


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


def test_a_frontier_and_a_schedule_need_regular_input(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for path in ("/dev/zero", tmp_path):
        ran = Ran(capfd, "solve", path, "--budget", "1GiB", "--solver", "none", "--json")
        assert (ran.code, ran.document["error"]["type"]) == (1, "FormatError")


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize(
    "args",
    [
        ("explain", "plan.json", "--out", "FILE"), ("report", "plan.json", "--html", "FILE"),
        ("report", "plan.json", "--frontier", "curve.json", "--html", "FILE"),
        ("solve", "plan.json", "--budget", "0.5", "--out", "FILE"), ("solve", "plan.json", "--budget", "0.5", "--svg", "FILE"),
        ("frontier", "plan.json", "--svg", "FILE"), ("frontier", "net.py:make", "--out", "FILE"),
        ("plan", "net.py:make", "--budget", "0.5", "--out", "FILE"), ("trace", "net.py:make", "--out", "FILE"),
    ],
)  # fmt: skip
def test_no_command_writes_over_a_file_that_it_reads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    link: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    toy_plan().save("plan.json")
    formats.write_json("curve.json", {"format": "rekindle.frontier/1", "plans": []})
    Path("net.py").write_text("def make():\n    raise SystemExit('planned before the files were looked at')\n")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    read = "curve.json" if "curve.json" in args else args[1].partition(":")[0]
    if link:
        Path("link").symlink_to(read)
    ran = Ran(capfd, *("link" if link and a == "FILE" else f"./{read}" if a == "FILE" else a for a in args))
    assert ran.code == 2
    assert_one_paragraph(ran.err)
    assert f"{read} is read by this command and would be written over" in ran.err
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if not p.is_symlink()} == before


@contextmanager
def piped(content: bytes) -> Iterator[str]:
    """The path of a pipe that holds the content once, as `<(cat FILE)` of a shell gives it."""
    end, start = os.pipe()
    with os.fdopen(start, "wb") as f:
        f.write(content)
    try:
        yield f"/dev/fd/{end}"
    finally:
        os.close(end)


@pytest.mark.parametrize(
    "args",
    [
        ("explain", "PIPE"), ("compare", "PIPE", "plan.json"), ("compare", "plan.json", "PIPE"),
        ("report", "PIPE", "--html", "plan.html", "--frontier", "none"),
        ("solve", "PIPE", "--budget", "1GiB", "--solver", "none"), ("frontier", "PIPE", "--solver", "none"),
    ],
)  # fmt: skip
def test_a_plan_may_come_from_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    toy_plan().save("plan.json")
    with piped(Path("plan.json").read_bytes()) as pipe:
        ran = Ran(capfd, *(pipe if a == "PIPE" else a for a in args))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out


def test_the_report_of_a_plan_from_a_pipe_needs_a_name(capfd: pytest.CaptureFixture[str]) -> None:
    with piped(b"") as pipe:
        ran = Ran(capfd, "report", pipe)
    assert ran.code == 2
    assert_one_paragraph(ran.err)
    assert "--html" in ran.err


def test_every_command_says_which_file_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Reading the plan of 12,000 ops takes longer than the two seconds that may pass in silence."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level("DEBUG", "rekindle")
    toy_plan().save("plan.json")
    toy_plan().save("other.json")
    for args, lines in (
        (["explain", "plan.json"], ["reading plan.json", "explaining plan.json"]),
        (["compare", "plan.json", "other.json"], ["reading plan.json", "reading other.json", "comparing the plans"]),
        (["report", "plan.json", "--frontier", "none"], ["reading plan.json", "writing the report"]),
        (["solve", "plan.json", "--budget", "1GiB", "--solver", "none"], ["reading plan.json"]),
        (["frontier", "plan.json", "--solver", "none"], ["reading plan.json"]),
    ):
        caplog.clear()
        assert Ran(capfd, *args).code == 0
        assert [line for line in caplog.messages if line in lines] == lines
