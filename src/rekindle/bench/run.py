"""Runs a suite: lists its tasks and measures them, in this process or in several."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence

from ..errors import UsageError
from .methods import COSTS, TARGET, choose
from .row import Key, Row, Task
from .suites import OF_CHECKOUT, SUITES

COST_UNITS = ("seconds", "flops", "unit")


def tasks(
    suite: str,
    models: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    done: Collection[Key] = (),
    target: str = TARGET,
    cost: str | None = None,
) -> list[Task]:
    """The tasks of a run; arguments as for `run_suite`.

    Raises
    ------
    UsageError : unknown suite, model, method, target or cost; the message lists the valid ones.
    """
    from ..torch.costs.devices import get

    if suite in OF_CHECKOUT and suite not in SUITES:
        raise UsageError(
            f"suite {suite!r} belongs to the repository's own benchmark, which is not installed: in a checkout, run "
            "`python benchmarks/bench.py` with the same options"
        )
    if suite not in SUITES:
        raise UsageError(f"suite {suite!r} is unknown; choose one of: {', '.join(SUITES)}")
    known = SUITES[suite]()
    for name in models or ():
        if name not in known:
            raise UsageError(f"suite {suite!r} has no model {name!r}; it has: {', '.join(known)}")
    target, cost = get(target).name, COSTS[suite] if cost is None else cost
    if cost not in COST_UNITS:
        raise UsageError(f"cost={cost!r} is unknown; choose one of: {', '.join(COST_UNITS)}")
    chosen = choose(suite, methods)
    found = []
    for model in dict.fromkeys(models or known):
        left = tuple(m for m in chosen if (suite, model, m, cost, target) not in done)
        if left:
            found.append(Task(suite, model, left, target, cost))
    return found


def run_suite(
    suite: str,
    models: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
    *,
    done: Collection[Key] = (),
    target: str = TARGET,
    cost: str | None = None,
    jobs: int | None = None,
) -> Iterator[Row]:
    """The rows of a suite, each as soon as it is measured.

    suite : "seeds": the published table at its batch sizes, by its protocol, on fake tensors; needs no GPU, and the peaks are
        equal on every run. "smoke": three tiny models on real tensors, with allocator peaks, wall time and bitwise parity.
        `benchmarks/zoo_suites.py` of a checkout has more.
    models : only these; None: all.
    methods : names as `methods` explains them; None: the suite's own.
    done : keys of rows that need not be measured again; see `row.key`.
    target : the device whose roofline gives modelled seconds.
    cost : "seconds", "flops" or "unit", in which plans count their extra cost; None: the suite's own.
    jobs : processes; each measures one model at a time, and rows come as they finish. None: two for suites on fake tensors if
        the machine has two cores, else one.

    A method that fails on a model gives a row with status "failed" whose `note` says why.

    Raises
    ------
    UsageError : an argument is unknown; the message lists the valid ones.
    """
    if jobs is None:
        jobs = 1 if suite in ("cpu", "smoke") else min(2, os.cpu_count() or 1)
    if jobs < 1:
        raise UsageError(f"jobs={jobs} must be at least 1")
    work = tasks(suite, models, methods, done, target, cost)
    tell = progress or (lambda _: None)
    if jobs > 1 and len(work) > 1:
        from .pool import run_in_processes

        return run_in_processes(work, min(jobs, len(work)), tell)
    return _rows(work, tell)


def _rows(work: Sequence[Task], tell: Callable[[str], None]) -> Iterator[Row]:
    from .model_rows import model_rows

    for task in work:
        yield from model_rows(task, tell)
