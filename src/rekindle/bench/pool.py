"""Measures models in several processes."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .methods import REGISTERED, Comparator
from .row import MethodResult, ModelFacts, Row, Task, make_row
from .suites import SUITES, Suite

PRELOADED = [
    "rekindle.bench.model_rows", "rekindle.torch.trace", "rekindle.torch.serve.planned", "rekindle.portfolio.auto",
    "rekindle.zoo.seeds",
]  # fmt: skip
# the note of a row whose process ended before it came to the method: MEASURED model ENDED_EARLY code
MEASURED, ENDED_EARLY = "the process that measured ", " ended early (exit code "


POLL_S = 0.5  # between two checks whether a process still lives; a guess


def run_in_processes(work: Sequence[Task], jobs: int, tell: Callable[[str], None]) -> Iterator[Row]:
    """The rows of all tasks as they finish.

    If a process dies (killed for its memory, say), its unmeasured methods get rows that say so, and a new process takes its
    place. No process outlives this one. The last tasks start first: suites list their largest models last, and a large model
    that starts last would run alone.
    """
    context = _context()
    waiting = list(work)
    running: list[_Worker] = []
    with _told_to_end():
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(_Worker(context, waiting.pop(), max(1, (os.cpu_count() or 1) // jobs)))
                for worker in list(running):
                    yield from worker.rows(tell)
                    if worker.finished:
                        yield from worker.undone()
                        running.remove(worker)
        finally:
            for worker in running:
                worker.process.terminate()


def _context() -> Any:
    """How to start processes: if the system allows, forked from a server that has only imported the needed modules, which
    saves 5 seconds for each process."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def interrupted(row: Row) -> bool:
    """Whether the row only says that its process ended before it came to the method, which is no result."""
    note = row.get("note") or ""
    return row["status"] == "failed" and note.startswith(MEASURED) and ENDED_EARLY in note


@contextmanager
def _told_to_end() -> Iterator[None]:
    """Inside the context SIGTERM raises SystemExit, so that cleanup runs. A program's own handler stays in place, and outside
    the main thread no handler can be set."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Worker:
    """A process that measures one task."""

    def __init__(self, context: Any, task: Task, threads: int) -> None:
        self.left = list(task.methods)
        self.task = task
        self.results: Any = context.Queue()
        self.process = context.Process(
            target=_work, args=(task, threads, REGISTERED, SUITES, self.results), daemon=True
        )
        self.process.start()
        self.finished = False

    def rows(self, tell: Callable[[str], None]) -> Iterator[Row]:
        """The next row that it has sent, if any."""
        alive = self.process.is_alive()  # ask first: rows that it sent before it ended are then in the queue
        try:
            kind, content = self.results.get(timeout=POLL_S)
        except queue.Empty:
            self.finished = not alive
            return
        if kind == "row":
            self.left.remove(content["method"])
            yield content
        elif kind == "end":
            self.process.join()
            self.finished = True
        else:
            tell(content)

    def undone(self) -> Iterator[Row]:
        """A row for each method that the process did not come to."""
        facts = ModelFacts(self.task)
        why = f"{MEASURED}{self.task.model}{ENDED_EARLY}{self.process.exitcode})"
        yield from (make_row(facts, method, MethodResult(note=why)) for method in self.left)


def _work(
    task: Task, threads: int, comparators: dict[str, Comparator], suites: dict[str, Callable[[], Suite]], results: Any
) -> None:
    REGISTERED.update(comparators)  # a new process has only what is installed
    SUITES.update(suites)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    from .model_rows import model_rows

    torch.set_num_threads(threads)
    for row in model_rows(task, lambda line: results.put(("line", line))):
        results.put(("row", row))
    results.put(("end", None))


def _end_with_parent() -> None:
    """End this process when its parent ends: a killed parent cannot end its children."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
