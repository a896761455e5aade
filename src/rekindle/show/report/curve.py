"""The points of a memory/time curve for the report: each plan's figures and its memory over time in few columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...ask import LeastMemory, PlanOptions
from ...errors import FormatError, UsageError
from ...explain.holding import run_memory
from ...model.formats import Reader, read_json
from ...model.graph import Graph
from ...model.judge import simulate
from ...model.plan import Plan
from ...model.schedule import Schedule
from ...planning.frontiers import frontier_graph
from ...planning.own_terms import beside_captured
from ...planning.plan_files import FILE_EPS
from ...printed import name, value
from ...saying.progress import Progress, announce, telling
from ..svg import TimeAxis, run_ends

FRONTIER = "rekindle.frontier/1"


# Guesses that keep a report small and its making short.
COLUMNS = 400  # of the memory of each point of the curve
SEARCH_MOST_S = 5.0  # for a curve
UNASKED_MOST_OPS = 12_000  # of the largest graph for which a curve is searched unasked


@dataclass(frozen=True)
class CurvePoint:
    """One plan of a curve: its figures, and its memory in few columns where its schedule is known.

    verified : False: the certificate is a file's own.
    ends, bytes : the end of each stretch of time, and the most bytes held in it; both empty where the schedule is not known.
    captured : it is a plan of the captured step, and the report's plan is of a rewritten one.
    """

    peak_bytes: int
    overhead: float
    flops_overhead: float
    bound_bytes: int
    least_overhead: float
    status: str
    solver: str
    verified: bool = True
    ends: tuple[float, ...] = ()
    bytes: tuple[int, ...] = ()
    captured: bool = False

    @classmethod
    def of(cls, plan: Plan, weights: np.ndarray, captured: bool = False) -> CurvePoint:
        """The point of a plan. weights : float64 [ops], the time of one run of each op."""
        ends, most = columns(plan.graph, plan.schedule, weights)
        return cls(
            plan.peak_bytes, plan.overhead, plan.flops_overhead, plan.bound_bytes, plan.least_overhead, plan.status,
            plan.solver, plan.verified, tuple(ends), tuple(most), captured,
        )  # fmt: skip


Frontier = Sequence[Plan | CurvePoint] | bool | None  # True: search, False: none, None: search if the graph is small


def points_of(plan: Plan, frontier: Frontier, weights: np.ndarray, progress: Progress = None) -> list[CurvePoint]:
    """The points of the curve that a report shows, in order of falling peak; none where no curve is wanted.

    frontier : plans of the same graph, or of the captured step where the plan's is rewritten, or points; True: a search of a
        few seconds; False: none; None: a search if the graph is small.
    weights : float64 [ops], the time of one run of each op.

    Raises
    ------
    UsageError : `frontier` is something else, or one of its plans is for a different graph.
    """
    if frontier is None:
        frontier = len(plan.graph.ops) <= UNASKED_MOST_OPS
    if isinstance(frontier, bool):
        frontier = _searched(plan, progress) if frontier else []
    if isinstance(frontier, str) or not isinstance(frontier, Sequence):
        raise UsageError(
            f"frontier={value(frontier)} is no list of plans; give rekindle.frontier(...), True, False or None"
        )
    captured = bool(frontier) and all(isinstance(p, Plan) and _is_captured(plan, p.graph_hash) for p in frontier)
    for p in frontier:
        if not isinstance(p, Plan | CurvePoint):
            raise UsageError(f"frontier takes the plans that rekindle.frontier gives, not {type(p).__name__}")
        if isinstance(p, Plan) and p.graph_hash != plan.graph_hash and not captured:
            raise UsageError(
                f"the frontier is for graph {p.graph_hash[:12]}, and the plan for graph {plan.graph_hash[:12]}; "
                "give rekindle.frontier(...) the trace or graph that the plan was made for"
            )
    points = [p if isinstance(p, CurvePoint) else _point(p, weights, captured) for p in frontier]
    return sorted(points, key=lambda p: -p.peak_bytes)


def points_of_file(path: str, plan: Plan) -> list[CurvePoint]:
    """The points of a file `rekindle.frontier/1`. They hold figures alone, and their certificates are the file's own.

    Raises
    ------
    FormatError : the file is damaged or foreign, its figures contradict each other, or its plans are for a different graph
        than `plan`.
    """
    where = name(path)
    points: list[CurvePoint] = []
    for i, doc in enumerate(Reader(read_json(path), where, FRONTIER).items("plans")):
        r = Reader(doc, f"{where}: plan {i}")
        captured = _is_captured(plan, r.text("graph_hash"))
        if not (captured or r.text("graph_hash") == plan.graph_hash) or r.text("cost") != plan.cost:
            raise FormatError(
                f"{where}: plan {i} is for another graph or another cost than the plan of the report; make both for the "
                "same model, sample and --cost"
            )
        point = CurvePoint(
            r.whole("peak_bytes"), r.number("overhead"), r.number("flops_overhead"), r.whole("bound_bytes"),
            r.number("least_overhead", 0.0), r.text("status"), r.text("solver"), verified=False, captured=captured,
        )  # fmt: skip
        if wrong := _contradiction(point):
            raise FormatError(
                f"{where}: plan {i} contradicts itself: {wrong}; make the file again with rekindle frontier"
            )
        points.append(point)
    return points


def _contradiction(p: CurvePoint) -> str:
    """The first contradiction among the figures of a point; "" where there is none."""
    if p.status not in ("optimal", "feasible"):
        return f"its status {value(p.status)} is neither optimal nor feasible"
    if not 0 <= p.bound_bytes <= p.peak_bytes:
        return f"its bound {p.bound_bytes} does not lie between 0 and its peak {p.peak_bytes}"
    if not 0 <= p.least_overhead <= p.overhead + FILE_EPS:
        return f"its least overhead {p.least_overhead:g} does not lie between 0 and its overhead {p.overhead:g}"
    if p.flops_overhead < -FILE_EPS:
        return f"its extra FLOPs {p.flops_overhead:g} are negative"
    return ""


def _searched(plan: Plan, progress: Progress) -> list[Plan]:
    options = PlanOptions(
        LeastMemory(), cost=plan.cost, effort="quick", time_limit=SEARCH_MOST_S, seed=plan.options.seed,
        cache=plan.options.cache, progress=progress,
    )  # fmt: skip
    with telling(progress):
        announce(progress, "searching for the memory/time curve that the report shows")
        found = frontier_graph(plan.graph, options)
    return found if plan.rewriting is None else [beside_captured(p, plan.rewriting, p.options) for p in found]


def _point(plan: Plan, weights: np.ndarray, captured: bool) -> CurvePoint:
    """The point of a plan. weights : as in `CurvePoint.of`, of the report's plan; a captured step's plan has another graph."""
    own = TimeAxis.of(plan.graph, plan.cost, plan.trace_options.target).weights if captured else weights
    return CurvePoint.of(plan, own, captured)


def _is_captured(plan: Plan, graph_hash: str) -> bool:
    """Whether the plan is of a rewritten step, and this is the graph of the step as it was captured."""
    return plan.rewriting is not None and graph_hash == plan.rewriting.captured_hash


def columns(graph: Graph, schedule: Schedule, weights: np.ndarray) -> tuple[list[float], list[int]]:
    """The memory of a schedule in `COLUMNS` stretches of equal time: the end of each, and the most bytes in it.

    weights : float64 [ops], the time of one run of each op.
    """
    judged = simulate(graph, schedule)
    memory, ends = run_memory(schedule.array, judged.memory), run_ends(graph, schedule, judged, weights)[0]
    if not len(ends) or not ends[-1]:
        return [], []
    # a run belongs to the column in which it ends
    column = np.minimum((ends / ends[-1] * COLUMNS).astype(np.int64), COLUMNS - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    last = np.append(starts[1:], len(ends)) - 1
    return [float(f"{x:.5g}") for x in ends[last]], np.maximum.reduceat(memory, starts).tolist()
