"""One row: the result of one method on one model, with where it was measured and with which versions.

docs/formats.md defines each field. MB is 2^20 bytes.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..version import __version__
from .methods import COMPARATORS, parse
from .suites import PUBLISHED

if TYPE_CHECKING:
    from ..model.plan import Plan
    from ..model.rewriting import Rewriting
    from .cases import Measured

MB = 2**20
Row = dict[str, Any]
Key = tuple[Any, ...]


def key(row: Row) -> Key:
    """The fields that identify a row: (suite, model, method, cost, target)."""
    return tuple(row.get(k) for k in ("suite", "model", "method", "cost", "target"))


@dataclass(frozen=True)
class Task:
    """The methods to measure on one model, in order.

    target : the device whose roofline gives modelled seconds. cost : the unit in which plans count their extra cost.
    """

    suite: str
    model: str
    methods: tuple[str, ...]
    target: str
    cost: str


@dataclass
class ModelFacts:
    """The facts that all rows of a task share; filled in while the model is measured.

    known : batch, image and published figures.
    plain : measurements of the plain step.
    ops, nodes : sizes of the captured graph.
    trace_seconds : time to capture it.
    extra_bytes : see `Case`.
    peaks : peak bytes of the methods that ran.
    """

    task: Task
    known: dict[str, Any] = field(default_factory=dict)
    plain: Measured | None = None
    ops: int | None = None
    nodes: int | None = None
    trace_seconds: float | None = None
    extra_bytes: int = 0
    peaks: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodResult:
    """The outcome of one method. None is unknown.

    measured : None if the method failed; `note` then says why.
    plan : None for the plain step and comparators.
    parity : whether the step gave the plain step's bits. Only a plan that adds up gradients in another order need not.
    bound_bytes : if no plan fits, the certified bound on activations.
    least_overhead : certified least extra cost of any plan within the same budget.
    wall_ratio : seconds of a step divided by the plain step's.
    node_runs : graph nodes that the plan runs; see `cases.node_runs`.
    """

    measured: Measured | None = None
    plan: Plan | None = None
    parity: bool | None = None
    note: str = ""
    bound_bytes: int | None = None
    least_overhead: float | None = None
    wall_ratio: float | None = None
    node_runs: int | None = None


def make_row(facts: ModelFacts, method: str, outcome: MethodResult) -> Row:
    """The row of one method on one model."""
    asked, plain, task = parse(method), facts.plain, facts.task
    measured, plan = outcome.measured, outcome.plan
    failed = measured is None or outcome.parity is False and not (plan is not None and sums(plan))
    flops = _ratio(measured, plain, "flops")
    bound = outcome.bound_bytes and outcome.bound_bytes + facts.extra_bytes
    if plan is not None:
        bound = _bound(plan, facts.extra_bytes)
    eager = method == "plain" or method in COMPARATORS
    runs = outcome.node_runs
    return {
        "suite": task.suite, "model": task.model, "method": method, "cost": task.cost, "target": task.target,
        "batch": facts.known.get("batch"), "image": facts.known.get("image"), "ops": facts.ops,
        "nodes": facts.nodes,
        "solver": None if asked is None else asked.solver,
        "peak_mb": None if measured is None else measured.peak / MB,
        "predicted_mb": None if plan is None else (plan.activation_peak_bytes + facts.extra_bytes) / MB,
        "plain_mb": None if plain is None else plain.peak / MB,
        "flops_overhead": flops,
        "seconds_overhead": _ratio(measured, plain, "seconds"),
        "wall_ratio": outcome.wall_ratio,
        "overhead": plan.overhead if plan is not None else flops if eager and task.cost == "flops" else None,
        "nodes_overhead": None if runs is None or not facts.nodes else runs / facts.nodes - 1,
        "bound_mb": None if bound is None else bound / MB,
        "gap": None if plan is None else plan.gap,
        "least_overhead": outcome.least_overhead,
        "plan_status": None if plan is None else plan.status,
        "parity": outcome.parity,
        "rewrites": None if plan is None else len(made.steps) if (made := rewriting(plan)) else 0,
        "slices": None if plan is None else ops_in_slices(plan), "sums": None if plan is None else sums(plan),
        "trace_seconds": facts.trace_seconds,
        "solve_seconds": None if plan is None else plan.solve_seconds,
        **{k: facts.known.get(k) for k in PUBLISHED},
        **provenance(),
        "status": "failed" if failed else "ok",
        "note": outcome.note or ("the planned step does not give the plain step's bits" if failed else ""),
    }  # fmt: skip


def rewriting(plan: Plan) -> Rewriting | None:
    """How the plan's graph was made from the captured step; None: it is the captured step's."""
    found: Rewriting | None = getattr(plan, "rewriting", None)
    return found


def ops_in_slices(plan: Plan) -> int:
    """Number of ops of the captured step that the plan runs in slices."""
    made = rewriting(plan)
    return 0 if made is None else sum(len(s.ops) for s in made.slices)


def sums(plan: Plan) -> list[str]:
    """The parameters whose gradients the plan adds up from slices, in another order than the plain step."""
    made = rewriting(plan)
    return [] if made is None else list(made.sums)


def _ratio(measured: Measured | None, plain: Measured | None, field: str) -> float | None:
    """Extra cost over the plain step, as a fraction."""
    if measured is None or plain is None or not getattr(plain, field):
        return None
    return getattr(measured, field) / getattr(plain, field) - 1


def _bound(plan: Plan, extra_bytes: int) -> int:
    """The certified bound, in the quantity that the instrument measures."""
    return max(0, plan.graph.beside_resident(plan.bound_bytes)) + extra_bytes


def provenance() -> dict[str, Any]:
    """versions, commit, hardware, date."""
    return {
        "versions": _versions(), "commit": _commit(), "hardware": _hardware(),
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip


@cache
def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    import torch

    found = {"rekindle": __version__, "torch": torch.__version__, "python": platform.python_version()}
    for library in ("torchvision", "timm", "transformers"):
        with suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


@cache
def _commit() -> str | None:
    """The commit of the checkout that this runs from, with a + if its source or comparators were changed since; None outside a
    checkout."""
    source = str(Path(__file__).parent.parent)
    git, watched = (
        ["git", "-C", source],
        [source, ":/benchmarks/comparators", ":/benchmarks/zoo_suites.py", ":/benchmarks/more_models"],
    )
    try:
        found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *watched], capture_output=True).returncode
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{found.stdout.strip()}{'+' if changed else ''}"


@cache
def _hardware() -> str:
    import torch

    from ..torch.costs.cache import cpu_model

    gpu = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    return f"{gpu}{cpu_model()}, {os.cpu_count()} cores"
