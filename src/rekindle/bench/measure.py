"""All methods on one model: the plain step, the trace, and then a row for each."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import InfeasibleBudget, RekindleError
from .methods import COMPARATORS, Asked, parse
from .row import MB, About, Row, Task, make_row
from .suites import SUITES
from .wall import wall_ratio

if TYPE_CHECKING:
    from ..model.plan import Plan
    from ..torch.trace import Trace
    from .cases import Case, Measured

Tell = Callable[[str], None]
CERTIFYING = 4.0  # seconds, about, for what a budget costs at least


def measure(task: Task, tell: Tell) -> Iterator[Row]:
    """The rows of one model, each as soon as it is measured. What fails gives a row that says why."""
    model, methods = task.model, task.methods
    entry = SUITES[task.suite]()[model]
    about = About(task, dict(entry.known))
    tell(f"{model}: plain step")
    try:
        case = entry.make()
        about.known["batch"], about.extra_bytes = case.batch, case.extra_bytes
        about.plain = case.measure(task.target)
    except Exception as e:  # one model must not end the suite
        yield from (make_row(about, method, note=_why(e)) for method in methods)
        return
    tell(f"{model}: tracing")
    traced = _traced(case, about)
    with _frozen():
        for method in methods:
            tell(f"{model}: {method}")
            if method == "plain":
                yield make_row(about, method, about.plain)
            elif method in COMPARATORS:
                yield _compared(case, about, method, traced)
            else:
                asked = parse(method)
                assert asked is not None
                yield _planned(case, about, method, asked, traced)


@contextmanager
def _frozen() -> Iterator[None]:
    """What lives now, a captured graph above all, is left out by the garbage collections before each measured step: they take
    a fifth of it otherwise."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Traced:
    """The captured step, with a plan that runs each op once."""

    def __init__(self, trace: Trace, about: About, case: Case) -> None:
        from .. import api

        self.trace, self._about, self._case = trace, about, case
        self.once: Plan = api.plan(trace, minimize="memory", solver="none", cost="flops", time_limit=0.01)
        self._measured: dict[bytes, Measured] = {}

    def measure(self, key: bytes) -> Measured:
        """The step that runs meanwhile; of the same `key` on tensors without data once, since it would be the same again."""
        if key not in self._measured:
            measured = self._case.measure(self._about.task.target)
            if not self._case.fake:
                return measured
            self._measured[key] = measured
        return self._measured[key]

    def measure_once(self) -> Measured:
        """The step of that plan."""
        with _applied(self._case, self.once):
            return self.measure(_told_by(self.once))


def _told_by(plan: Plan) -> bytes:
    """What tells a planned step from others."""
    return plan.schedule.array.tobytes()


def _traced(case: Case, about: About) -> _Traced | Exception:
    """On real tensors seconds and workspaces are measured; on fake ones they are the target's."""
    from ..model.schedule import Schedule
    from ..torch.trace import trace
    from .nodes import node_runs

    start = time.perf_counter()
    try:
        found = trace(case.model, case.sample, target=about.task.target if case.fake else None)
        about.ops, about.trace_seconds = len(found.graph.ops), time.perf_counter() - start
        about.nodes = node_runs(found.lowered, Schedule.baseline(found.graph).runs)
        return _Traced(found, about, case)
    except Exception as e:
        return e


def _compared(case: Case, about: About, method: str, traced: _Traced | Exception) -> Row:
    from .checkpointing import NotApplicable
    from .comparators import comparator, needs_trace

    if isinstance(traced, Exception) and needs_trace(method):
        return make_row(about, method, note=_why(traced))
    trace, once = (None, None) if isinstance(traced, Exception) else (traced.trace, traced.once)

    def within() -> AbstractContextManager[bytes | None]:
        return comparator(method, case, trace, once)

    try:
        with within() as key:
            measured = (
                case.measure(about.task.target) if key is None or isinstance(traced, Exception) else traced.measure(key)
            )
        about.peaks[method] = measured.peak
        return make_row(about, method, measured, wall=_wall(case, within))
    except NotApplicable as e:
        return make_row(about, method, note=f"does not apply: {e}")
    except Exception as e:
        return make_row(about, method, note=_why(e))


def _planned(case: Case, about: About, method: str, asked: Asked, traced: _Traced | Exception) -> Row:
    from .. import api, registry
    from .nodes import node_runs

    if isinstance(traced, Exception):
        return make_row(about, method, note=_why(traced))
    why = registry.get(asked.solver).declines(traced.trace.graph)
    if why:
        return make_row(about, method, note=f"does not apply: {why}")
    plan: Plan | None = None
    try:
        goal = _goal(asked, about, case, traced)
        plan = api.plan(traced.trace, solver=asked.solver, cost=about.task.cost, **goal)
        within = partial(_applied, case, plan)
        with within():
            measured, same = traced.measure(_told_by(plan)), case.parity()
        least, nodes = _least(plan, case), node_runs(traced.trace.lowered, plan.schedule.runs)
        row = make_row(about, method, measured, plan, same, least_overhead=least, wall=_wall(case, within), nodes=nodes)
        if row["status"] == "ok":
            about.peaks[method] = measured.peak
        return row
    except InfeasibleBudget as e:
        return make_row(about, method, note=_why(e), impossible=e.bound_bytes - traced.trace.graph.resident_bytes)
    except Exception as e:
        return make_row(about, method, plan=plan, note=_why(e))


@contextmanager
def _applied(case: Case, plan: Plan) -> Iterator[None]:
    from .. import api

    api.apply(case.model, plan, on_new_shape="error")
    try:
        yield
    finally:
        api.restore(case.model)


def _wall(case: Case, within: Callable[[], AbstractContextManager[object]]) -> float | None:
    """None where steps run on tensors without data."""
    return None if case.fake else wall_ratio(case.step, within)


def _least(plan: Plan, case: Case) -> float | None:
    """What a plan within the same budget costs at least, certified; None: there is no budget, or costs are measured,
    and so not the same twice."""
    from .. import bounds

    graph = plan.graph
    limit = plan.goal.limit(graph.resident_bytes, plan.baseline_activation_bytes)
    if limit is None or not case.fake:
        return None
    weights = graph.weights(plan.cost)
    once = float(weights[graph.needed].sum())
    return bounds.time_at(graph, weights, limit, CERTIFYING) / once if once else None


def _goal(asked: Asked, about: About, case: Case, traced: _Traced) -> dict[str, Any]:
    """The goal as `api.plan` takes it: memory as a share of what the captured step holds without a plan, which can be
    less than what the plain step holds."""
    once = traced.once
    if asked.max_overhead is not None:
        return {"max_overhead": _over_captured(asked.max_overhead, about, case, traced)}
    if asked.share is not None:
        assert about.plain is not None
        limit = asked.share * about.plain.peak
    elif asked.like is not None:
        limit = _memory_of(asked.like, about, case, traced)
    else:
        return {"minimize": "memory"}
    share = (limit - about.extra_bytes) / once.baseline_activation_bytes
    if share <= 0:
        raise RekindleError("what is measured beside the activations is more than that by itself")
    return {"budget": min(1.0, share)}


def _over_captured(extra: float, about: About, case: Case, traced: _Traced) -> float:
    """Extra modelled time over the plain step, as extra cost of a plan: over the captured step, which takes less or more by
    itself, and without the launches that are in no graph. FLOPs and op runs need no such thing, nor what was measured.
    """
    if about.task.cost != "seconds" or not case.fake:
        return extra
    assert about.plain is not None
    graph = traced.trace.graph
    modelled = float(graph.weights("seconds")[graph.needed].sum())
    left = (1 + extra) * about.plain.seconds - traced.measure_once().seconds
    return max(0.0, left / modelled) if modelled else extra


def _memory_of(method: str, about: About, case: Case, traced: _Traced) -> float:
    """Bytes that a comparator takes, a solver's smallest plan, or "ogc": the published solver, as it was measured."""
    if method == "ogc":
        figure = about.known.get("measured_ogc_nonreentrant_mb")
        if figure is None:
            raise RekindleError("nobody has measured the published solver's memory on this model")
        return float(figure * MB)
    if method not in about.peaks:
        row = (
            _compared(case, about, method, traced)
            if method in COMPARATORS
            else _planned(case, about, method, Asked(method), traced)
        )
        if row["status"] != "ok":
            raise RekindleError(f"{method} does not run on this model: {row['note']}")
    return about.peaks[method]


def _why(e: Exception) -> str:
    return f"{type(e).__name__}: {e}"
