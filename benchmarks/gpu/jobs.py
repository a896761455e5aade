"""The jobs of a run, what tells most first. Each is a process of its own, so that none can lose another's rows."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gpu.turns import KERNELS

SCRIPT = Path(__file__).parent.parent / "gpu.py"
ROOT = SCRIPT.parent.parent
SECONDS = "REKINDLE_GPU_JOB_SECONDS"  # in a job's environment: how long it may take
FIRST = ("gpt2", "vit_b16", "resnet50", "vgg16", "densenet121", "resnet152")


@dataclass(frozen=True)
class Job:
    """A command that appends its rows to a file.

    part : the table that its rows belong to. estimate : seconds it takes, about, its waiting for the device included; it
        is not begun where less is left. allowance : seconds after which it is stopped.
    holds : name of a lock that others wait for while it runs. alone : whether no other job may run meanwhile.
    """

    name: str
    part: str
    command: list[str]
    estimate: float
    allowance: float
    environment: dict[str, str] = field(default_factory=dict)
    holds: str | None = None
    alone: bool = False


# cuBLAS gives the same bits in every run only with a workspace of fixed size; NVIDIA, cuBLAS, Results Reproducibility
CUDA_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
# segments that grow leave less of a cap unusable; the user's own setting goes before
LESS_FRAGMENTED = {"PYTORCH_ALLOC_CONF": os.environ.get("PYTORCH_ALLOC_CONF", "expandable_segments:True")}


def jobs(
    kind: str, small: bool, work: Path, minutes: float, solve_seconds: float, device_bytes: int | None = None
) -> list[Job]:  # fmt: skip
    """All jobs, in the order in which they are begun. solve_seconds : time limit of every plan. device_bytes : the device's
    memory, None where it is not known."""
    from gpu.cases import caps, largest_cases, step_cases

    whole = 60 * minutes
    make = partial(_job, kind, small, work, solve_seconds)
    steps = {c.name: make(f"steps:{c.name}", "steps", 20.0, 0.5 * whole) for c in step_cases(small)}
    first = [steps.pop(name) for name in FIRST if name in steps]
    tests = make("tests", "tests", 30.0, 0.4 * whole)
    grown = [
        make(
            f"largest:{c.name}:{cap}", "largest", 30.0 if _fits(cap_bytes, device_bytes) else 0.0, 0.6 * whole,
            {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
            alone=_fits(cap_bytes, device_bytes) and _crowds(cap_bytes, max(caps(small).values()), device_bytes),
        )
        for cap, cap_bytes in caps(small).items()
        for c in largest_cases(small)
    ]  # fmt: skip
    kernels = make("kernels", "kernels", 0.0, 0.6 * whole, {"CUDA_VISIBLE_DEVICES": ""}, KERNELS)
    alone = [j for j in grown if j.alone]
    once = [j for j in grown[: len(largest_cases(small))] if not j.alone]
    rest = [j for j in grown[len(largest_cases(small)) :] if not j.alone]
    return [kernels, *first, tests, *once, *steps.values(), *rest, *alone]


def _fits(cap_bytes: int, device_bytes: int | None) -> bool:
    from gpu.cases import SOLD

    return device_bytes is None or SOLD * cap_bytes <= device_bytes


def _crowds(cap_bytes: int, largest_bytes: int, device_bytes: int | None) -> bool:
    """Whether what other jobs hold on the device while they wait (a context, a model) may leave less than the cap."""
    return cap_bytes == largest_bytes or 2 * cap_bytes > (device_bytes or 0)


def facts(kind: str, small: bool, work: Path) -> Job:
    """What must be known before the results have a name."""
    return _job(kind, small, work, 0.0, "facts", "facts", 0.0, 120.0)


def _job(
    kind: str, small: bool, work: Path, solve_seconds: float, name: str, part: str, estimate: float, allowance: float,
    environment: dict[str, str] | None = None, holds: str | None = None, alone: bool = False,
) -> Job:  # fmt: skip
    command = [sys.executable, str(SCRIPT), "--job", name, "--device", kind, "--work", str(work)]
    command += ["--solve-seconds", str(solve_seconds)]
    more = (CUDA_ENVIRONMENT if kind == "cuda" else {}) | (environment or {})
    return Job(name, part, command + ["--small"] * small, 0.0 if small else estimate, allowance, more, holds, alone)


def rows_file(work: Path, name: str) -> Path:
    """Where a job puts its rows."""
    return work / f"{name.replace(':', '-').replace(' ', '')}.jsonl"


def run(name: str, kind: str, small: bool, work: Path, solve_seconds: float) -> None:
    """Do one job, in this process."""
    end = time.monotonic() + float(os.environ.get(SECONDS, "inf"))  # before torch is imported, which takes seconds
    from gpu import facts, kernels, largest, steps, suite
    from gpu.cases import caps, largest_cases, step_cases
    from gpu.rows import appended

    what, _, which = name.partition(":")
    emit = partial(appended, rows_file(work, name))
    found: Callable[[], None]
    if what == "steps":
        case = next(c for c in step_cases(small) if c.name == which)
        found = partial(steps.measure, case, kind, work, solve_seconds, emit)
    elif what == "largest":
        model, _, cap = which.partition(":")
        case = next(c for c in largest_cases(small) if c.name == model)
        found = partial(largest.measure, case, cap, caps(small)[cap], kind, work, solve_seconds, emit, end)
    elif what == "tests":
        found = partial(suite.run, ROOT, kind, work, emit)
    elif what == "facts":
        found = partial(facts.run, kind, emit)
    else:
        found = partial(kernels.run, emit)
    found()


def environment(job: Job) -> dict[str, str]:
    """A job's environment: this package and the library importable, few threads, its own settings."""
    paths = [str(ROOT / "src"), str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")]
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    return os.environ | threads | {"PYTHONPATH": os.pathsep.join(p for p in paths if p)} | job.environment
