"""The command line as a process: Ctrl-C, closed pipes, full disks, users' files that print or exit."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from command_line import Ran, assert_one_paragraph, screen, step, without_progress
from marks import few, sweep
from rekindle.model import formats

COMMAND = [sys.executable, "-m", "rekindle"]
SEEN = "the solver is at work"

# A program that is the command line, with one more solver: it says that it is at work, and goes on for a minute in
# Python or in compiled code.
SLOW = """
import sys, time
import numba, numpy as np
sys.orig_argv = ["python", "-m", "rekindle"]
from rekindle.cli import main
from rekindle.model.schedule import Schedule
from rekindle.planning import registry
from rekindle.problem import register
registry.all_solvers()

@numba.njit(nogil=True)
def spin(n):
    x = 0.0
    for i in range(n):
        x += np.sin(x + i)
    return x

def solve(problem):
    spin(1)
    print("{seen}", file=sys.stderr, flush=True)
    {work}
    return [Schedule.baseline(problem.graph)]

register("slow", graphs="any", objective="", complexity="", citation="")(solve)
sys.exit(main())
"""
IN_PYTHON = "time.sleep(60)"
ONE_CALL = "spin(20_000_000_000)"
COMPILED = "[spin(1_000_000) for _ in range(10_000)]"
SWALLOWED = """
    try:
        time.sleep(60)
    except BaseException:
        raise ImportError('as an import that was cut off may say') from None"""
EXECUTED = "exec('time.sleep(60)')"


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "graph.json"
    formats.write_json(path, formats.graph_to_json(step()))
    return path


def started(*args: object, **more: Any) -> subprocess.Popen[str]:
    """A process that Ctrl-C reaches: a shell starts what runs in the background with the signal ignored."""
    return subprocess.Popen(
        [str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **more,
    )  # fmt: skip


def ran(*args: object, **more: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *map(str, args)], stdout=more.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE, text=True,
        timeout=300, **more,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    done.stderr = without_progress(done.stderr)
    return done


@pytest.mark.parametrize(
    ("work", "as_json"),
    few(
        itertools.product([IN_PYTHON, COMPILED, ONE_CALL, SWALLOWED, EXECUTED], [True, False]),
        [(IN_PYTHON, True), (COMPILED, False), (ONE_CALL, True)],
    ),
)
def test_ctrl_c_gives_one_line_one_document_and_1(graph: Path, tmp_path: Path, work: str, as_json: bool) -> None:
    out = tmp_path / "out.json"
    args = ("solve", graph, "--budget", "1GiB", "--solver", "slow", "--out", out, *(["--json"] if as_json else []))
    p = started(sys.executable, "-c", SLOW.format(seen=SEEN, work=work), *args)
    assert p.stderr is not None
    assert any(SEEN in line for line in iter(p.stderr.readline, ""))
    time.sleep(0.2)
    start = time.monotonic()
    p.send_signal(signal.SIGINT)
    said, complaint = p.communicate(timeout=60)
    assert time.monotonic() - start < 30
    assert (p.returncode, without_progress(complaint)) == (1, "error: interrupted before it was done\n")
    assert not out.exists()
    if as_json:
        assert json.loads(said)["error"]["type"] == "Interrupted"
    else:
        assert said == ""


@sweep
@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_ctrl_c_on_a_terminal_leaves_no_part_of_the_live_line(graph: Path) -> None:
    ours, theirs = os.openpty()
    args = ("solve", graph, "--budget", "1GiB", "--solver", "slow")
    program = SLOW.format(seen=SEEN, work=IN_PYTHON)
    p = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, args)], stdin=theirs, stdout=theirs, stderr=theirs,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    said = ""
    while "s, searching for a plan of 7 ops" not in said:
        said += os.read(ours, 4096).decode()
    p.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # the other end is closed
        while more := os.read(ours, 4096).decode():
            said += more
    os.close(ours)
    assert p.wait(60) == 1
    assert [line for line in screen(said) if line] == [SEEN, "error: interrupted before it was done"]


INTERRUPTED_IMPORT = """
import os, signal, sys
sys.orig_argv = ["python", "/usr/bin/rekindle", *sys.argv[1:]]
class Finder:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from rekindle.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("name", "as_json"),
    few(
        itertools.product(
            ["numpy", "numba", "typer", "torch", "torch.nn.modules", "rekindle.torch.capture.capture"], [True, False]
        ),
        [("numpy", True), ("torch.nn.modules", False)],
    ),
)
def test_ctrl_c_during_an_import(name: str, as_json: bool) -> None:
    args = ("plan", "zoo:gpt", "--budget", "1GiB", "--solver", "none", *(["--json"] if as_json else []))
    p = started(sys.executable, "-c", INTERRUPTED_IMPORT.format(name=name), *args)
    said, complaint = p.communicate(timeout=120)
    assert (p.returncode, without_progress(complaint)) == (1, "error: interrupted before it was done\n")
    assert said == "" if not as_json else json.loads(said)["error"]["type"] == "Interrupted"


def test_a_program_that_imports_rekindle_keeps_its_own_ctrl_c() -> None:
    script = (
        "import signal; before = signal.getsignal(signal.SIGINT); import rekindle; "
        "assert signal.getsignal(signal.SIGINT) is before"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.parametrize(
    "args", few([["solvers"], ["solvers", "--json"], ["--help"], ["solve", "--help"]], [["solvers"], ["--help"]])
)
def test_a_reader_that_closes_the_pipe_is_no_cause_for_words(args: list[str]) -> None:
    end, start = os.pipe()
    os.close(end)
    done = ran(*args, stdout=start)
    os.close(start)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_full_disk_behind_stdout_gives_one_line(more: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = ran("solvers", *more, stdout=full)
    assert done.returncode == 1
    assert_one_paragraph(done.stderr)
    assert "No space left" in done.stderr


@pytest.mark.parametrize("option", ["--out", "--svg"])
def test_a_full_disk_leaves_the_old_file(graph: Path, tmp_path: Path, option: str) -> None:
    out = tmp_path / "old"
    out.write_text("old")

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

    done = ran("solve", graph, "--budget", "1GiB", "--solver", "none", "--json", option, out, preexec_fn=small)
    assert done.returncode == 1
    assert "cannot write" in json.loads(done.stdout)["error"]["message"]
    assert_one_paragraph(done.stderr)
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["graph.json", "old"], "nothing else stays behind"


def test_closed_standard_streams(graph: Path) -> None:
    args = ("solve", graph, "--budget", "1GiB", "--solver", "none", "--json")
    done = ran(*args, preexec_fn=lambda: os.close(2))
    assert done.returncode == 0
    assert json.loads(done.stdout)["solver"] == "none"
    done = ran(*args, preexec_fn=lambda: os.close(1))
    assert done.returncode == 1
    assert_one_paragraph(done.stderr)


AT_IMPORT, IN_MAKE = "import sys\nsys.exit({0})\n", "def make():\n    raise SystemExit({0})\n"


@pytest.mark.parametrize(
    ("code", "place"),
    few(
        itertools.product(["7", "0", "None", "'a word'"], [AT_IMPORT, IN_MAKE]),
        [("0", AT_IMPORT), ("'a word'", IN_MAKE)],
    ),
)
def test_a_users_file_that_exits_is_an_error(tmp_path: Path, code: str, place: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(place.format(code))
    done = ran("plan", f"{path}:make", "--budget", "1GiB", "--solver", "none", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["type"] == "RekindleError"
    assert_one_paragraph(done.stderr)
    assert f"sys.exit({code})" in done.stderr


NOISY = """
import atexit, ctypes, os, sys
print("at import")
atexit.register(lambda: print("at exit", flush=True))
atexit.register(lambda: os.write(1, b"past Python at exit"))
def make():
    import torch
    print("in make")
    sys.__stdout__.write("into the buffer")
    os.write(1, b"past Python")
    ctypes.CDLL(None).printf(b"into the buffer of C")
    return torch.nn.Linear(3, 3), torch.rand(2, 3)
"""


def test_a_users_file_that_prints_leaves_one_document(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(NOISY)
    done = ran("plan", f"{path}:make", "--budget", "1GiB", "--solver", "none", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["solver"] == "none"
    for noise in ("at import", "in make", "into the buffer", "past Python", "into the buffer of C", "at exit"):
        assert noise in done.stderr


def test_the_program_says_its_version_and_helps() -> None:
    said = ran("--version")
    assert (said.returncode, said.stdout) == (0, "rekindle 0.1.0\n")
    assert json.loads(ran("--version", "--json").stdout) == {"version": "0.1.0"}
    for args in (["-h"], ["--help"], ["solve", "-h"]):
        done = ran(*args)
        assert done.returncode == 0
        assert "Usage" in done.stdout


def test_a_terminal_without_these_letters_gets_others(graph: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    for args in (["solvers"], ["solve", graph, "--budget", "1GiB", "--solver", "none"]):
        assert ran(*args, env=environment).returncode == 0


MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        block = lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
        self.blocks = nn.ModuleList([block() for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x

def make():
    return Model(), torch.randn(32, 16)
"""


@pytest.mark.parametrize("more", [[], ["--compile"]])
def test_plan_takes_an_optimizer_and_writes_a_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], more: list[str]
) -> None:
    source, page = tmp_path / "net.py", tmp_path / "report.html"
    source.write_text(MODEL)
    goal = ("--budget", "0.7", "--effort", "quick", "--no-cache", "--json")
    plain = Ran(capfd, "plan", f"{source}:make", *goal, *more)
    ran = Ran(capfd, "plan", f"{source}:make", *goal, *more, "--optimizer", "adamw", "--html", page)
    assert (plain.code, ran.code) == (0, 0)
    state = 8 * 3 * (16 * 64 + 64 + 64 * 16 + 16)
    assert ran.document["baseline_peak_bytes"] - plain.document["baseline_peak_bytes"] == pytest.approx(state, rel=0.1)
    assert page.read_text().startswith("<!")
    assert bool(ran.document.get("stages")) == bool(more)


def test_compiled_parts_are_not_drawn(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for more in (("--svg", tmp_path / "x.svg"), ("--target", "h100")):
        ran = Ran(capfd, "plan", "zoo:gpt", "--budget", "0.5", "--compile", *more)
        assert ran.code == 2
        assert "leave out --svg and --target" in ran.err


def test_help_wraps_at_the_width_of_the_screen(capfd: pytest.CaptureFixture[str]) -> None:
    """Docstrings kept the breaks of their source."""
    out = " ".join(Ran(capfd, "estimate", "-h").out.split("\n")[5:8])
    assert "the step planned for the device" in " ".join(out.split())
    assert not any(line.rstrip().endswith("the step planned") for line in Ran(capfd, "estimate", "-h").out.split("\n"))
