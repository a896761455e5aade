"""Progress on stderr: after a quiet time, one live line on a terminal, else a line now and then; and nothing stays behind."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import rekindle
from command_line import screen, step
from extra_solver import extra_solver
from rekindle.model.schedule import Schedule
from rekindle.problem import Problem
from rekindle.saying import notices, progress
from rekindle.saying.progress import ProgressSettings, announce, telling

AT_ONCE = ProgressSettings(quiet_s=0.0, live_s=0.001, line_s=0.001)


class Stream(io.StringIO):
    """A stderr on which a test can wait for a text."""

    def __init__(self, terminal: bool):
        super().__init__()
        self.terminal, self._more = terminal, threading.Condition()

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        with self._more:
            self._more.notify_all()
            return super().write(text)

    def wait_for(self, text: str) -> None:
        with self._more:
            assert self._more.wait_for(lambda: text in self.getvalue(), timeout=60), self.getvalue()

    @property
    def screen(self) -> list[str]:
        """The lines as a terminal shows them."""
        return screen(self.getvalue())


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SETTINGS", AT_ONCE)


def as_stderr(monkeypatch: pytest.MonkeyPatch, stream: Any) -> None:
    """Let Rekindle's messages go to `stream`. (pytest itself puts another `sys.stderr` in place after fixtures have run.)"""
    for module in (progress, notices):
        monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=stream, modules={}))


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream(terminal=False)
    as_stderr(monkeypatch, stream)
    return stream


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Stream:
    monkeypatch.delenv("TERM", raising=False)
    stream = Stream(terminal=True)
    as_stderr(monkeypatch, stream)
    return stream


def reporting() -> int:
    return sum(t.name == "rekindle-progress" for t in threading.enumerate())


def test_short_work_prints_nothing(monkeypatch: pytest.MonkeyPatch, pipe: Stream) -> None:
    monkeypatch.setattr(progress, "SETTINGS", ProgressSettings(quiet_s=1e6))
    assert rekindle.plan(step(), 1.0, solver="none").overhead == 0
    assert pipe.getvalue() == ""
    assert reporting() == 0


@pytest.mark.usefixtures("soon")
def test_lines_come_also_while_nothing_is_new(pipe: Stream) -> None:
    with telling(None) as tell:
        announce(None, "measuring 7 operators")
        pipe.wait_for("rekindle: measuring 7 operators, ")
        pipe.wait_for("rekindle: still: measuring 7 operators, ")
        tell("a\x1b[2J")
        pipe.wait_for("rekindle: a\\x1b[2J, ")
    said = pipe.getvalue()
    assert reporting() == 0
    assert pipe.getvalue() == said


def test_lines_that_differ_in_numbers_alone_wait_until_the_time_has_doubled(
    monkeypatch: pytest.MonkeyPatch, pipe: Stream
) -> None:
    monkeypatch.setattr(progress, "SETTINGS", ProgressSettings(quiet_s=0.0, line_s=0.001, again=1e9))
    with telling(None):
        for ops in (700, 725):
            announce(None, f"searching for a plan of {ops} ops")
            pipe.wait_for("rekindle: searching for a plan of 700 ops, ")
        announce(None, "proving bounds")
        pipe.wait_for("rekindle: proving bounds, ")
    assert pipe.getvalue().count("searching") == 1


@pytest.mark.usefixtures("soon")
def test_the_live_line_is_erased(terminal: Stream) -> None:
    with telling(None):
        announce(None, "searching " + "far " * 100)
        terminal.wait_for(" s, searching far")
        assert max(len(line) for line in terminal.screen) <= notices.USUAL_COLUMNS
        announce(None, "short")
        terminal.wait_for(" s, short")
        assert len(terminal.screen) == 1
        assert terminal.screen[0].endswith("s, short")
    assert terminal.screen == [""]


@pytest.mark.usefixtures("soon")
def test_an_interruption_leaves_the_terminal_clean(terminal: Stream) -> None:
    def interrupted() -> None:
        with telling(None):
            terminal.wait_for("working")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.screen == [""]
    assert reporting() == 0


@pytest.mark.usefixtures("soon")
def test_news_and_warnings_take_the_live_lines_place(terminal: Stream) -> None:
    with telling(None):
        terminal.wait_for("working")
        notices.say("news")
        with pytest.warns(rekindle.RekindleWarning, match="a warning"):
            notices.warn("a warning")
    assert terminal.screen == ["rekindle: news", ""]


@pytest.mark.usefixtures("soon")
def test_the_best_plan_stays_in_view_until_other_work_begins(pipe: Stream) -> None:
    with telling(None) as tell:
        tell("10 MiB at +3 %; certified: none below 9 MiB")
        tell("a detail")
        pipe.wait_for("still: 10 MiB")
        announce(None, "proving bounds")
        pipe.wait_for("proving bounds")
    assert "a detail" not in pipe.getvalue()


@pytest.mark.usefixtures("soon")
def test_functions_that_call_one_another_share_a_reporter(pipe: Stream) -> None:
    with telling(None) as outer, telling(True) as inner:
        assert inner == outer
        assert reporting() == 1
        with telling(False) as silent:
            silent("unheard")
            announce(False, "unheard too")
        outer("heard")
        pipe.wait_for("heard")
    assert "unheard" not in pipe.getvalue()
    assert reporting() == 0


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK", "NODE_RANK"])
def test_only_the_first_process_of_a_distributed_run_speaks(
    monkeypatch: pytest.MonkeyPatch, pipe: Stream, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with telling(None) as tell:
        tell("unheard")
        assert reporting() == 0
    assert pipe.getvalue() == ""


@pytest.mark.usefixtures("soon")
def test_a_function_gets_every_line_and_stderr_none(pipe: Stream) -> None:
    said: list[str] = []
    rekindle.plan(step(), 1.0, solver="none", progress=said.append)
    assert said[0] == "searching for a plan of 7 ops"
    assert said[-1].startswith("proving bounds for the plan of 150 B at +0.0 %")
    rekindle.frontier(step(), solver="none", progress=said.append)
    assert "searching for the curve of 7 ops" in said
    assert pipe.getvalue() == ""


@pytest.mark.usefixtures("soon", "pipe")
def test_the_error_of_a_users_function_is_the_users() -> None:
    def refuse(line: str) -> None:
        raise ZeroDivisionError(line)

    with pytest.raises(ZeroDivisionError):
        rekindle.plan(step(), 1.0, solver="none", progress=refuse)


@pytest.fixture
def waiting(pipe: Stream) -> Iterator[str]:
    """A solver that goes on until stderr says that it does."""

    def solve(problem: Problem) -> list[Schedule]:
        pipe.wait_for("still: searching for a plan of 7 ops")
        problem.progress("halfway")
        pipe.wait_for("halfway")
        return [Schedule.baseline(problem.graph)]

    with extra_solver("waiting", solve) as name:
        yield name


@pytest.mark.usefixtures("soon")
def test_a_long_search_says_so_by_itself(waiting: str) -> None:
    assert rekindle.plan(step(), 1.0, solver=waiting).solver == waiting
    assert reporting() == 0


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("terminal", [True, False])
def test_a_stderr_that_fails_ends_no_search(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    tried = threading.Event()

    class Broken(io.StringIO):
        def isatty(self) -> bool:
            return terminal

        def write(self, text: str) -> int:
            tried.set()
            raise OSError(28, "No space left on device")

    def solve(problem: Problem) -> list[Schedule]:
        assert tried.wait(60)
        return [Schedule.baseline(problem.graph)]

    as_stderr(monkeypatch, Broken())
    with extra_solver("patient", solve) as name:
        assert rekindle.plan(step(), 1.0, solver=name).solver == name
    for gone in (None, io.StringIO()):
        if gone is not None:
            gone.close()
        as_stderr(monkeypatch, gone)
        assert rekindle.plan(step(), 1.0, solver="none").overhead == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.usefixtures("soon")
def test_a_forked_process_begins_anew(pipe: Stream) -> None:
    with telling(None):
        pipe.wait_for("working")
        child = os.fork()
        if child == 0:
            with telling(None):
                os._exit(0 if reporting() == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(("columns", "letters"), [(40, 39), (120, 100), (0, 79)])
def test_the_live_line_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: Stream, columns: int, letters: int
) -> None:
    monkeypatch.setattr(terminal, "fileno", lambda: 2)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((columns, 24)))
    notices.show_line("x" * 100)
    assert len(terminal.screen[0]) == letters
    notices.erase_line()
    assert terminal.screen == [""]
