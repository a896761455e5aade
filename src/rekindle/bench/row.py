"""One row: what one method did on one model. docs/formats.md says what each field means. MB is 2^20 bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .methods import COMPARATORS, parse
from .provenance import provenance
from .suites import PUBLISHED

if TYPE_CHECKING:
    from ..model.plan import Plan
    from .cases import Measured

MB = 2**20
Row = dict[str, Any]
Key = tuple[Any, ...]


def key(row: Row) -> Key:
    """What a row is a row of: (suite, model, method, cost, target)."""
    return tuple(row.get(k) for k in ("suite", "model", "method", "cost", "target"))


@dataclass(frozen=True)
class Task:
    """The methods to measure on one model, in order. target : device of the modelled seconds. cost : what plans count
    their extra cost in."""

    suite: str
    model: str
    methods: tuple[str, ...]
    target: str
    cost: str


@dataclass
class About:
    """What all rows of a task have in common, as far as it is known.

    known : batch, image, published figures. plain : the plain step. ops, nodes : of the captured graph.
    trace_seconds : to capture it. extra_bytes : see `Case`. peaks : of the methods that ran, in bytes.
    """

    task: Task
    known: dict[str, Any] = field(default_factory=dict)
    plain: Measured | None = None
    ops: int | None = None
    nodes: int | None = None
    trace_seconds: float | None = None
    extra_bytes: int = 0
    peaks: dict[str, int] = field(default_factory=dict)


def make_row(
    about: About, method: str, measured: Measured | None = None, plan: Plan | None = None, parity: bool | None = None,
    note: str = "", impossible: int | None = None, least_overhead: float | None = None, wall: float | None = None,
    nodes: int | None = None,
) -> Row:  # fmt: skip
    """measured : None where the method failed; `note` then says why, and `impossible` where no plan fits: the certified
    bound in bytes. least_overhead : certified, of any plan within the same budget. wall : seconds of a step over the plain
    step's. nodes : that the plan runs, see `nodes`."""
    asked, plain, task = parse(method), about.plain, about.task
    failed = measured is None or parity is False
    flops = _ratio(measured, plain, "flops")
    bound = impossible and impossible + about.extra_bytes if plan is None else _bound(plan, about.extra_bytes)
    eager = method == "plain" or method in COMPARATORS
    return {
        "suite": task.suite, "model": task.model, "method": method, "cost": task.cost, "target": task.target,
        "batch": about.known.get("batch"), "image": about.known.get("image"), "ops": about.ops,
        "nodes": about.nodes,
        "solver": None if asked is None else asked.solver,
        "peak_mb": None if measured is None else measured.peak / MB,
        "predicted_mb": None if plan is None else (plan.activation_peak_bytes + about.extra_bytes) / MB,
        "plain_mb": None if plain is None else plain.peak / MB,
        "flops_overhead": flops,
        "seconds_overhead": _ratio(measured, plain, "seconds"),
        "wall_ratio": wall,
        "overhead": plan.overhead if plan is not None else flops if eager and task.cost == "flops" else None,
        "nodes_overhead": None if nodes is None or not about.nodes else nodes / about.nodes - 1,
        "bound_mb": None if bound is None else bound / MB,
        "gap": None if plan is None else plan.gap,
        "least_overhead": least_overhead,
        "plan_status": None if plan is None else plan.status,
        "parity": parity,
        "trace_seconds": about.trace_seconds,
        "solve_seconds": None if plan is None else plan.solve_seconds,
        **{k: about.known.get(k) for k in PUBLISHED},
        **provenance(),
        "status": "failed" if failed else "ok",
        "note": note or ("the planned step does not give the plain step's bits" if failed else ""),
    }  # fmt: skip


def _ratio(measured: Measured | None, plain: Measured | None, what: str) -> float | None:
    """Extra over plain, as a fraction."""
    if measured is None or plain is None or not getattr(plain, what):
        return None
    return getattr(measured, what) / getattr(plain, what) - 1


def _bound(plan: Plan, extra_bytes: int) -> int:
    """The certified bound, on what the instrument measures."""
    return max(0, plan.bound_bytes - plan.graph.resident_bytes) + extra_bytes
