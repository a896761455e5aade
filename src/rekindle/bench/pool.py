"""Models measured in several processes."""

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

from .row import About, Row, Task, make_row

NEEDED = ["rekindle.bench.measure", "rekindle.bench.comparators", "rekindle.torch.trace", "rekindle.torch.run.planned"]
NEEDED += ["rekindle.portfolio.auto", "rekindle.zoo.seeds"]
WAIT = 0.5  # seconds between looks at whether the processes live
MEASURED, ENDED_EARLY = "the process that measured ", " ended early (exit code "  # in the note of what was left undone


def run_in_processes(work: Sequence[Task], jobs: int, tell: Callable[[str], None]) -> Iterator[Row]:
    """The rows of all tasks as they finish. A process that dies (killed for its memory, say) gives rows that say so for
    what it left undone, and another takes its place. None outlives this one.

    The last tasks begin first: suites have their largest models there, and one of these, begun last, would run alone."""
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
    """How processes are started: where the system can, forked from one that has imported what all of them need (5 seconds each
    otherwise) and done nothing else."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(NEEDED)
    return context


def interrupted(row: Row) -> bool:
    """Whether a row only says that its process ended before it came to the method: that is no result."""
    note = row.get("note") or ""
    return row["status"] == "failed" and note.startswith(MEASURED) and ENDED_EARLY in note


@contextmanager
def _told_to_end() -> Iterator[None]:
    """SIGTERM raises SystemExit meanwhile, so that what is to be done at the end is done. A program that handles it in its
    own way keeps that; outside of the main thread nothing can be set."""
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
    """A process for one task."""

    def __init__(self, context: Any, task: Task, threads: int) -> None:
        self.left = list(task.methods)
        self.task = task
        self.results: Any = context.Queue()
        self.process = context.Process(target=_work, args=(task, threads, self.results), daemon=True)
        self.process.start()
        self.finished = False

    def rows(self, tell: Callable[[str], None]) -> Iterator[Row]:
        """What it has sent by now."""
        alive = self.process.is_alive()  # asked first: what it sent before it ended is then in the queue
        try:
            kind, content = self.results.get(timeout=WAIT)
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
        """A row for each method that it did not come to."""
        about = About(self.task)
        why = f"{MEASURED}{self.task.model}{ENDED_EARLY}{self.process.exitcode})"
        yield from (make_row(about, method, note=why) for method in self.left)


def _work(task: Task, threads: int, results: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    from .measure import measure

    torch.set_num_threads(threads)
    for row in measure(task, lambda line: results.put(("line", line))):
        results.put(("row", row))
    results.put(("end", None))


def _end_with_parent() -> None:
    """A parent that was killed can tell nobody."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
