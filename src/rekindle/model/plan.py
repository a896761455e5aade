"""A plan: a schedule with its costs, its certificate and its provenance."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..ask import Aim, Goal, PlanOptions, TraceOptions
from ..printed import name
from ..saying.shares import COST_WORDS, percent
from ..saying.sizes import format_bytes
from ..version import __version__
from . import formats, options_file, verdict
from .any_plan import FACES, AnyPlan
from .arena import Arena, plan_offsets
from .floor import single_op
from .graph import Graph
from .op_names import op_words_of
from .rewriting import Rewriting
from .schedule import Schedule

if TYPE_CHECKING:
    from ..explain import Explanation


@dataclass(frozen=True)
class Plan(AnyPlan):
    """A schedule with its costs, its certificate and the options it was made with.

    peak_bytes : bytes held at the peak of the step, everything included: parameters, buffers, the user's inputs,
        a gradient for every trained parameter, activations, workspace.
    activation_peak_bytes : the same less what is held during the whole step (`graph.resident_bytes`).
    baseline_peak_bytes : peak_bytes of the step that recomputes nothing.
    baseline_measured : `baseline_peak_bytes` is what eager's plain step was measured to take, where that is another than the
        judge says: eager holds tensors in variables, and makes some that nobody reads.
    stays_plain : a measured step took more than the plain step, so that calls of this kind run plain.
    seconds : modelled time of one planned step.
    overhead : extra cost / baseline cost, in the unit `cost`.
    flops_overhead : extra FLOPs / baseline FLOPs.
    status : "optimal" if proven, else "feasible".
    bound_bytes : certified lower bound on peak_bytes at that overhead; bound_op : the op that sets it.
    gap : (peak_bytes - bound_bytes) / peak_bytes.
    least_overhead : certified, of a budget: no schedule within it costs less, in the unit `cost`. 0.0 where no more is proven,
        and for goals that are no budget.
    smallest_known_bytes : a smaller budget that is known to be reachable, at a higher cost; None where none is known. It is
        not saved in files.
    offer : (bytes, overhead) of a somewhat larger budget that is known to cost far less; None where none is known. Not saved.
    rewriting : how `graph` was made from the captured step: smaller saves, ops in slices; None: it is the captured step's own.
        overhead, flops_overhead, least_overhead and baseline_peak_bytes compare with the captured step; bounds are of `graph`.
    host_bytes, moved_bytes : the most that the host holds of values that were copied to it, and the bytes of all these copies
        in one step.
    solve_seconds : how long the solver took.
    verified : False: status, bound_bytes, gap and least_overhead were read from a file and could not be proven again in short
        time.
    asked : the options of the search; captured : the options of the capture, of a plan from a file. A plan for another shape
        is made with the same ones; see `options` and `trace_options`.

    `arena_bytes` is what one block takes that holds everything made during the step, each storage at a fixed offset: to
    be compared with activation_peak_bytes. `sum_bytes` is the same where no storage shares an address with another.
    """

    kind: ClassVar[Literal["step"]] = "step"
    graph: Graph
    schedule: Schedule
    peak_bytes: int
    activation_peak_bytes: int
    baseline_peak_bytes: int
    seconds: float
    overhead: float
    flops_overhead: float
    solver: str
    status: str
    bound_bytes: int
    bound_op: str
    gap: float
    graph_hash: str
    goal: Goal
    cost: str
    solve_seconds: float
    created_with: dict[str, str] = field(default_factory=lambda: _created_with())
    trace: Any = field(default=None, repr=False, compare=False)  # the Trace it was made from, in this process only
    checked: Any = field(
        default=None, repr=False, compare=False
    )  # the Check of its measured step, in this process only
    asked: PlanOptions | None = field(default=None, repr=False, compare=False)
    verified: bool = field(default=True, compare=False)
    captured: TraceOptions = field(default_factory=TraceOptions, repr=False, compare=False)  # as a file says it
    least_overhead: float = 0.0
    smallest_known_bytes: int | None = field(default=None, compare=False)
    rewriting: Rewriting | None = field(default=None, repr=False)
    offer: tuple[int, float] | None = field(default=None, compare=False)
    host_bytes: int = 0
    moved_bytes: int = 0
    baseline_measured: bool = False
    stays_plain: bool = False

    FIGURES = (
        "peak_bytes", "activation_peak_bytes", "baseline_peak_bytes", "arena_bytes", "sum_bytes",
        "seconds", "overhead", "flops_overhead",
        "host_bytes", "moved_bytes", "solver", "status", "bound_bytes", "bound_op", "gap", "least_overhead", "graph_hash",
        "cost",
        "solve_seconds", "created_with",
    )  # fmt: skip

    @property
    def pieces(self) -> Sequence[tuple[str, Plan]]:
        """The plan itself, at the path ""."""
        return [("", self)]

    def each(self, change: Callable[[Plan], Plan]) -> Plan:
        """The changed plan."""
        return change(self)

    @property
    def options(self) -> PlanOptions:
        """The options that the plan was made with; a plan for another shape is made with the same ones."""
        return self.asked or PlanOptions(self.goal, self.solver, self.cost)

    @property
    def trace_options(self) -> TraceOptions:
        """How the step was captured; a call of another shape is captured the same way."""
        return self.captured if self.trace is None else self.trace.options

    @property
    def optimizer(self) -> Any:
        """The optimizer whose state was counted: an optimizer, a class or a name; None: no state was counted."""
        return self.trace_options.optimizer

    def _options_json(self) -> dict[str, Any]:
        state_bytes = self.captured.state_bytes if self.trace is None else self.trace.state_bytes
        return options_file.to_json(self.options, replace(self.trace_options, state_bytes=state_bytes))

    @property
    def aim(self) -> Aim:
        """The goal on the plan's graph; a fraction is one of the plain step's activation peak."""
        return self.goal.aim(self.graph, self.baseline_activation_bytes)

    @property
    def limit(self) -> int | None:
        """The largest peak in bytes that the goal allows, resident bytes included; None: the goal is no budget."""
        return self.aim.limit

    @property
    def baseline_activation_bytes(self) -> int:
        """activation_peak_bytes of the step that recomputes nothing."""
        return self.graph.beside_resident(self.baseline_peak_bytes)

    @property
    def resident_bytes(self) -> int:
        """Bytes held during the whole step: parameters, buffers, gradients, inputs."""
        return self.graph.resident_bytes

    @property
    def op_runs(self) -> int:
        """How many times ops run in one step."""
        return len(self.schedule.runs)

    @property
    def rewritten(self) -> str | None:
        """How the step was rewritten, in a cell of a table; None: it is the captured one."""
        return None if self.rewriting is None else self.rewriting.short()

    @cached_property
    def arena(self) -> Arena:
        """The memory plan of the schedule."""
        return plan_offsets(self.graph, self.schedule)

    @property
    def arena_bytes(self) -> int:
        """Bytes of one block that holds all storages of the step at fixed offsets."""
        return self.arena.arena_bytes

    @property
    def sum_bytes(self) -> int:
        """Bytes of all storages of the step where none shares an address with another."""
        return self.arena.sum_bytes

    @property
    def splitting_op(self) -> str:
        """Name of the op that by itself needs what the plan holds at its peak, to within 2 %: below that no schedule
        helps, only splitting the op. "" where there is none."""
        floor = single_op(self.graph)
        at_floor = self.activation_peak_bytes <= 1.02 * self.graph.beside_resident(floor.bytes)
        return self.graph.ops[floor.op].name if at_floor and floor.op is not None else ""

    @property
    def splitting_words(self) -> str:
        """`splitting_op` in readable words."""
        return op_words_of(self.graph, self.splitting_op)

    def figures(self) -> dict[str, Any]:
        """The plan's figures by name, as `plan --json` prints them; `rewritten` says how its step was rewritten, if it was."""
        return self._own_figures() | ({} if self.rewriting is None else {"rewritten": self.rewriting.figures()})

    def _own_figures(self) -> dict[str, Any]:
        missed = self.options.missed(self.goal)
        more = {"goal": self.goal.to_json()} | ({} if missed is None else {"missed": missed.to_json()})
        measured = {k: True for k in ("baseline_measured", "stays_plain") if getattr(self, k)}
        return {k: getattr(self, k) for k in self.FIGURES} | more | measured

    def to_json(self) -> dict[str, Any]:
        """The document `rekindle.plan/1`."""
        return {
            "format": formats.PLAN,
            **self._own_figures(),
            "options": self._options_json(),
            **({} if self.rewriting is None else {"rewriting": self.rewriting.to_json()}),
            "graph": formats.graph_to_json(self.graph),
            "schedule": schedule_document(self),
        }

    def to_snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write the predicted memory over time as a snapshot of PyTorch's allocator, which pytorch.org/memory_viz shows.

        It can be looked at beside a measured one, of `torch.cuda.memory._dump_snapshot`. The file is a pickle, as PyTorch's
        format asks; Rekindle never reads one. Raises as `save`.
        """
        FACES["snapshot"](self, path)

    def explain(self) -> Explanation:
        """Where the plan's memory goes, by module, and who holds its peak: printed, one screen of 80 columns."""
        explanation: Explanation = FACES["explain"](self)
        return explanation

    @property
    def doubt(self) -> str:
        """Text that follows a certificate which was read from a file and not proven again; else ""."""
        return "" if self.verified else ", as its file says: not verified"

    @property
    def sentence(self) -> str:
        """One plain sentence: does it fit, at what price, and what is proven."""
        return verdict.sentence(self)

    def _rows(self) -> list[tuple[str, str]]:
        runs = self.schedule.runs
        return [
            ("peak", f"{format_bytes(self.peak_bytes)} (baseline {format_bytes(self.baseline_peak_bytes)})"),
            ("  of which activations", f"{format_bytes(self.activation_peak_bytes)} "
                                       f"(baseline {format_bytes(self.baseline_activation_bytes)})"),
            ("  laid out in one block", format_bytes(self.arena_bytes)),
            ("extra", f"{percent(self.overhead)} {COST_WORDS[self.cost]}, {percent(self.flops_overhead)} FLOPs"),
            *([(verdict.AT_BEST_EXTRA, least)] if (least := verdict.least_cost_words(self)) else []),
            (verdict.AT_BEST, verdict.bound_words(self)),
            *([("to go lower, split", verdict.splitting_claim(self))] if self.splitting_op else []),
            *([] if self.rewriting is None else self.rewriting.rows()),
            *([("copied to the host", f"{format_bytes(self.moved_bytes)} each step, at most {format_bytes(self.host_bytes)} "
                                      "at once")] if self.moved_bytes else []),
            ("ops run again", f"{len(runs) - len(set(runs))} of {len(set(runs))}"),
            ("solver", f"{name(self.solver)} ({self.status}{self.doubt})"),
        ]  # fmt: skip


def schedule_document(plan: Plan, steps: bool = True) -> dict[str, Any]:
    """The schedule document of a plan."""
    doc: dict[str, Any] = {
        "format": formats.schedule_format(plan.schedule), "graph_hash": plan.graph_hash, "solver": plan.solver,
        "status": plan.status, "peak_bytes": plan.peak_bytes, "seconds": plan.seconds, "overhead": plan.overhead,
        "flops_overhead": plan.flops_overhead, "bound_bytes": plan.bound_bytes, "gap": plan.gap,
        "arena_bytes": plan.arena_bytes,
    }  # fmt: skip
    if plan.moved_bytes:
        doc |= {"host_bytes": plan.host_bytes, "moved_bytes": plan.moved_bytes}
    return doc | {"steps": formats.steps_to_json(plan.schedule)} if steps else doc


def _created_with() -> dict[str, str]:
    return {"rekindle": __version__, "python": platform.python_version()}
