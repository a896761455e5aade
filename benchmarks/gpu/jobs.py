"""The jobs of a run, the most informative first. Each is a process of its own, so that none can lose another's rows.

The pool of `rekindle bench` is not used here: jobs on one GPU need deadlines, turns on the device and whole process groups
that end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gpu.turns import KERNELS

SCRIPT = Path(__file__).parent.parent / "gpu.py"
ROOT = SCRIPT.parent.parent
SECONDS = "REKINDLE_GPU_JOB_SECONDS"  # in a job's environment: how long it may take
COMPILED = ("gpt2", "llama", "vit", "resnet", "convnext")  # models whose compiled steps are measured
FIRST = ("gpt2", "gpt2_small-unused", "vgg16", "vit_b16", "resnet50", "resnet18", "alexnet", "densenet121", "resnet152")


@dataclass(frozen=True)
class RunOptions:
    """The options of a whole run, which all its jobs share.

    kind : "cuda" or "cpu". small : tiny models and caps. work : folder of rows and logs. minutes : time for the whole run.
    solve_s : time limit of every plan. device_bytes : memory of the device; None is unknown.
    """

    kind: str
    small: bool
    work: Path
    minutes: float
    solve_s: float
    device_bytes: int | None = None


@dataclass(frozen=True)
class Job:
    """A command that appends its rows to a file.

    part : the table that its rows belong to.
    estimate : seconds that it takes, about, including its wait for the device; it does not start with less time left.
    allowance : seconds after which it is stopped.
    holds : name of a lock that other jobs wait for while it runs. alone : whether no other job may run meanwhile.
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


def jobs(run: RunOptions) -> list[Job]:
    """All jobs, in the order in which they start."""
    from gpu.cases import caps, largest_cases, step_cases

    small, device_bytes, whole_s = run.small, run.device_bytes, 60 * run.minutes
    make, shared = partial(_job, run), _environment(run.kind)
    steps = {c.name: make(f"steps:{c.name}", "steps", 20.0, 0.5 * whole_s) for c in step_cases(small)}
    first = [steps.pop(name) for name in FIRST if name in steps]
    tests = make("tests", "tests", 30.0, 0.4 * whole_s)
    grown = [
        replace(
            make(f"largest:{c.name}:{cap}", "largest", 30.0 if _fits(cap_bytes, device_bytes) else 0.0, 0.6 * whole_s),
            environment=shared | LESS_FRAGMENTED,
            alone=_fits(cap_bytes, device_bytes) and _crowds(cap_bytes, max(caps(small).values()), device_bytes),
        )
        for cap, cap_bytes in caps(small).items()
        for c in largest_cases(small)
    ]  # fmt: skip
    kernels = replace(
        make("kernels", "kernels", 0.0, 0.6 * whole_s), environment=shared | {"CUDA_VISIBLE_DEVICES": ""}, holds=KERNELS
    )
    compiled = [replace(make(f"compiled:{name}", "compiled", 60.0, 0.4 * whole_s), alone=True) for name in COMPILED]
    alone = [j for j in grown if j.alone]
    once = [j for j in grown[: len(largest_cases(small))] if not j.alone]
    rest = [j for j in grown[len(largest_cases(small)) :] if not j.alone]
    return [kernels, *first, tests, *once, *steps.values(), *rest, *compiled, *alone]


def _fits(cap_bytes: int, device_bytes: int | None) -> bool:
    from gpu.cases import SOLD_SHARE

    return device_bytes is None or SOLD_SHARE * cap_bytes <= device_bytes


def _crowds(cap_bytes: int, largest_bytes: int, device_bytes: int | None) -> bool:
    """Whether waiting jobs, which hold contexts and models on the device, may leave less than the cap."""
    return cap_bytes == largest_bytes or 2 * cap_bytes > (device_bytes or 0)


def facts(run: RunOptions) -> Job:
    """The job that finds the device and versions, after which the results are named."""
    return _job(run, "facts", "facts", 0.0, 120.0)


def _job(run: RunOptions, name: str, part: str, estimate: float, allowance: float) -> Job:
    command = [sys.executable, str(SCRIPT), "--job", name, "--device", run.kind, "--work", str(run.work)]
    command += ["--solve-seconds", str(run.solve_s)] + ["--small"] * run.small
    return Job(name, part, command, 0.0 if run.small else estimate, allowance, _environment(run.kind))


def _environment(kind: str) -> dict[str, str]:
    return dict(CUDA_ENVIRONMENT) if kind == "cuda" else {}


def rows_file(work: Path, name: str) -> Path:
    """Where a job puts its rows."""
    return work / f"{name.replace(':', '-').replace(' ', '')}.jsonl"


def run(name: str, kind: str, small: bool, work: Path, solve_seconds: float) -> None:
    """Run one job in this process."""
    end = time.monotonic() + float(os.environ.get(SECONDS, "inf"))  # before torch is imported, which takes seconds
    from gpu import compiled, facts, kernels, largest, steps, suite
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
    elif what == "compiled":
        found = partial(compiled.run, which, kind, small, emit)
    else:
        found = partial(kernels.run, emit)
    found()


def environment(job: Job) -> dict[str, str]:
    """A job's environment: this package and the library importable, few threads, its own settings."""
    paths = [str(ROOT / "src"), str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")]
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    return os.environ | threads | {"PYTHONPATH": os.pathsep.join(p for p in paths if p)} | job.environment
