"""Runs jobs in parallel until all are done or the time is up. Every job leaves at least one record."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.jobs import SECONDS, Job, environment, rows_file
from gpu.rows import Row, read
from gpu.turns import turn


@dataclass(frozen=True)
class DriverSettings:
    """grace_s : time before the deadline in which nothing runs any more. poll_s : time between two looks at the jobs.
    Guesses."""

    grace_s: float = 10.0
    poll_s: float = 0.05


SETTINGS = DriverSettings()


@dataclass
class Running:
    """A job's process, when it is to be stopped, and what others wait for meanwhile."""

    job: Job
    process: subprocess.Popen[bytes]
    log: Path
    begin: float
    end: float
    held: ExitStack


def run(
    waiting: Sequence[Job], work: Path, deadline: float, workers: int, done: Callable[[Job, list[Row]], None]
) -> None:
    """Run the jobs, `workers` at a time, in their order.

    deadline : of `time.monotonic`. A job that fails, is stopped or is left out adds a row that says so to those it wrote.
    done : called with each job and its rows when it ends.
    """
    queue, running = list(waiting), list[Running]()
    deadline -= SETTINGS.grace_s
    try:
        while queue or running:
            now = time.monotonic()
            for r in list(running):
                why = _over(r, now)
                if why is not None:
                    running.remove(r)
                    r.held.close()
                    done(r.job, read(rows_file(work, r.job.name)) + _said(r, why, now))
            while queue and len(running) < workers and _may_begin(queue[0], running):
                job = queue.pop(0)
                if now + job.estimate >= deadline:
                    note = (
                        f"left out: {max(0.0, deadline - now):.0f} s were left, and it takes about {job.estimate:.0f} s"
                    )
                    done(job, [row_of(job, "left out", note)])
                    continue
                # those that run alone come last, one after another: each may search for its share of the time
                share = (deadline - now) / (len(queue) + 1) if job.alone else math.inf
                running.append(_start(job, work, now, min(deadline, now + job.allowance), share))
            time.sleep(SETTINGS.poll_s)
    finally:
        for r in running:  # interrupted
            _stop(r)
            r.held.close()


def row_of(job: Job, status: str, note: str) -> Row:
    """A record of a job as a whole."""
    what, _, which = job.name.partition(":")
    model, _, cap = which.partition(":")
    found: dict[str, Any] = {"part": job.part, "name": job.name, "status": status, "note": note}
    return found | ({"model": model} if model else {}) | ({"cap": cap} if cap else {})


def _may_begin(job: Job, running: Sequence[Running]) -> bool:
    return not any(job.alone or r.job.alone for r in running)


def _start(job: Job, work: Path, now: float, end: float, share: float) -> Running:
    held = ExitStack()
    if job.holds:
        held.enter_context(turn(work / job.holds))
    log = rows_file(work, job.name).with_suffix(".log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            job.command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            env=environment(job) | {SECONDS: str(min(share, end - now))},
        )  # fmt: skip
    return Running(job, process, log, now, end, held)


def _over(r: Running, now: float) -> str | None:
    """None while the job runs; "" if it ended well; else why it ended."""
    code = r.process.poll()
    if code is not None:
        return "" if code == 0 else f"ended with code {code}"
    if now < r.end:
        return None
    _stop(r)
    return f"stopped after {now - r.begin:.0f} s: its time was up"


def _stop(r: Running) -> None:
    """The job and what it started: it leads a process group of its own."""
    with suppress(ProcessLookupError):
        os.killpg(r.process.pid, signal.SIGKILL)
    r.process.wait()


def _said(r: Running, why: str, now: float) -> list[Row]:
    row = {"part": "jobs", "name": r.job.name, "seconds": now - r.begin}
    if not why:
        return [row | {"status": "ok", "note": ""}]
    last = next((line for line in reversed(_lines(r.log)) if line.strip()), "").strip()[:400]
    note = f"{why}; its last words: {last}" if last else why
    return [row_of(r.job, "failed", note), row | {"status": "failed", "note": note}]


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()
