"""Work in two threads; compiled loops run without Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..problem import Problem

T = TypeVar("T")
THREADS_MOST = 2


def in_threads(problem: Problem, work: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> Iterator[T]:
    """Call `work` for each row of arguments, two at a time, and yield the results in order.

    An interruption does not end the waiting: the work under way sees `problem.time_left` run out and returns what it has.
    """
    with ThreadPoolExecutor(min(THREADS_MOST, os.cpu_count() or 1)) as pool:
        waiting = [pool.submit(work, *row) for row in arguments]
        for one in waiting:
            while True:
                with problem.interruptible():
                    result = one.result()
                    break
            yield result
