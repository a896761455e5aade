"""Processes that measure end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from marks import every
from rekindle.bench.pool import _told_to_end

SCRIPT = """
import os, time
import rekindle.bench.model_rows as m
from rekindle.bench.pool import run_in_processes
from rekindle.bench.row import Task

def stuck(task, tell):
    tell(str(os.getpid()))
    time.sleep(60)
    yield {}

m.model_rows = stuck  # in the worker too: it imports this file
if __name__ == "__main__":
    for row in run_in_processes([Task("smoke", "cnn", ("plain",), "", "")], 1, lambda line: print(line, flush=True)):
        pass
"""


@pytest.mark.parametrize("number", every(2, [signal.SIGTERM, signal.SIGKILL]))
def test_they_end_when_it_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.send_signal(number)
        try:
            parent.communicate(timeout=20)  # until nobody has its stdout, which the worker shares
        except subprocess.TimeoutExpired:
            parent.kill()
            os.kill(worker, signal.SIGKILL)
            raise
    assert parent.returncode == (128 + number if number == signal.SIGTERM else -number)


def mine(*_: object) -> None: ...


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN, mine])
def test_the_handler_is_put_back_and_a_program_s_own_is_kept(handler: Any) -> None:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with _told_to_end():
            assert (signal.getsignal(signal.SIGTERM) == handler) == (handler != signal.SIG_DFL)
            if handler == signal.SIG_DFL:
                with pytest.raises(SystemExit):
                    signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread_nothing_is_set() -> None:
    def look() -> None:
        with _told_to_end():
            found.append(signal.getsignal(signal.SIGTERM))

    before, found = signal.getsignal(signal.SIGTERM), []
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [before]
