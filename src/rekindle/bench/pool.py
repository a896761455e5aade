"""Models measured in several processes."""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .row import About, Row, Task, make_row

WAIT = 0.5  # seconds between looks at whether the processes live


def run_in_processes(work: Sequence[Task], jobs: int, tell: Callable[[str], None]) -> Iterator[Row]:
    """The rows of all tasks as they finish. A process that dies (killed for its memory, say) gives rows that say so for
    what it left undone, and another takes its place."""
    context = multiprocessing.get_context("spawn")
    waiting = list(work)
    running: list[_Worker] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_Worker(context, waiting.pop(0), max(1, (os.cpu_count() or 1) // jobs)))
            for worker in list(running):
                yield from worker.rows(tell)
                if worker.finished:
                    yield from worker.undone()
                    running.remove(worker)
    finally:
        for worker in running:
            worker.process.terminate()


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
        why = f"the process that measured {self.task.model} ended early (exit code {self.process.exitcode})"
        yield from (make_row(about, method, note=why) for method in self.left)


def _work(task: Task, threads: int, results: Any) -> None:
    import torch

    from .measure import measure

    torch.set_num_threads(threads)
    for row in measure(task, lambda line: results.put(("line", line))):
        results.put(("row", row))
    results.put(("end", None))
