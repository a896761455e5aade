"""The rows of one model: measures the plain step, captures it, then measures every method."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import InfeasibleBudget, RekindleError
from .cases import wall_ratio
from .methods import COMPARATORS, REGISTERED, Asked, NotApplicable, parse
from .row import MB, MethodResult, ModelFacts, Row, Task, make_row, rewriting, sums
from .suites import SUITES

if TYPE_CHECKING:
    from ..model.plan import Plan
    from ..torch.trace import Trace
    from .cases import Case, Measured

Tell = Callable[[str], None]


CERTIFY_S = 4.0  # for the certified least extra cost within a budget (`least_overhead` of a row); a guess
ONCE_S = 0.01  # for the plan that runs each op once, which needs no search; a guess


def model_rows(task: Task, tell: Tell) -> Iterator[Row]:
    """The rows of one model, each as soon as it is measured. A method that fails gives a row that says why."""
    model, methods = task.model, task.methods
    from ..torch.measure.memory import old_objects_aside

    entry = SUITES[task.suite]()[model]
    facts = ModelFacts(task, dict(entry.known))
    tell(f"{model}: plain step")
    try:
        case = entry.make()
        facts.known["batch"], facts.extra_bytes = case.batch, case.extra_bytes
        facts.plain = case.measure(task.target)
    except Exception as e:  # one model must not end the suite
        yield from (make_row(facts, method, _failed(e)) for method in methods)
        return
    tell(f"{model}: tracing")
    traced = _traced(case, facts)
    with old_objects_aside():
        for method in methods:
            tell(f"{model}: {method}")
            if method == "plain":
                yield make_row(facts, method, MethodResult(facts.plain))
            elif method in COMPARATORS:
                yield _compared(case, facts, method, traced)
            else:
                asked = parse(method)
                assert asked is not None
                yield _planned(case, facts, method, asked, traced)


class _Traced:
    """The captured step, with a plan that runs each op once."""

    def __init__(self, trace: Trace, facts: ModelFacts, case: Case) -> None:
        from .. import api

        self.trace, self._facts, self._case = trace, facts, case
        self.once: Plan = api.plan(
            trace,
            minimize="memory",
            solver="none",
            cost="flops",
            time_limit=ONCE_S,
            cache=False,
            progress=False,
        )
        self._measured: dict[bytes, Measured] = {}

    def measure(self, key: bytes) -> Measured:
        """Measure the step that the model runs now. Steps of equal `key` on tensors without data are measured once, since the
        figures would be equal."""
        if key not in self._measured:
            measured = self._case.measure(self._facts.task.target)
            if not self._case.fake:
                return measured
            self._measured[key] = measured
        return self._measured[key]

    def measure_once(self) -> Measured:
        """Measure the step of the plan that runs each op once."""
        with _applied(self._case, self.once):
            return self.measure(_key(self.once))


def _key(plan: Plan) -> bytes:
    """A key that equal planned steps share. Plans whose ops run in slices have graphs of their own."""
    return plan.graph_hash.encode() + plan.schedule.array.tobytes()


def _traced(case: Case, facts: ModelFacts) -> _Traced | Exception:
    """Capture the step. Seconds and workspaces are measured on real tensors, and modelled for the target on fake ones."""
    from ..model.schedule import Schedule
    from ..torch.trace import trace
    from .cases import node_runs

    start = time.perf_counter()
    try:
        found = trace(case.model, case.sample, unused=case.unused, progress=False)
        if case.fake:  # with the operators of the CPU, on which plain steps and comparators run
            found = found.costed(facts.task.target)
        facts.ops, facts.trace_seconds = len(found.graph.ops), time.perf_counter() - start
        facts.nodes = node_runs(found.lowered, Schedule.baseline(found.graph).runs)
        return _Traced(found, facts, case)
    except Exception as e:
        return e


def _compared(case: Case, facts: ModelFacts, method: str, traced: _Traced | Exception) -> Row:
    """The row of a comparator."""
    comparator = REGISTERED[method]
    if isinstance(traced, Exception) and comparator.needs_trace:
        return make_row(facts, method, _failed(traced))
    trace, once = (None, None) if isinstance(traced, Exception) else (traced.trace, traced.once)

    def within() -> AbstractContextManager[bytes | None]:
        return comparator.within(case, trace, once)

    try:
        with within() as key:
            measured = (
                case.measure(facts.task.target) if key is None or isinstance(traced, Exception) else traced.measure(key)
            )
        facts.peaks[method] = measured.peak
        note = "" if comparator.note is None else comparator.note(method, case, within)
        return make_row(facts, method, MethodResult(measured, wall_ratio=_wall(case, within), note=note))
    except NotApplicable as e:
        return make_row(facts, method, MethodResult(note=f"does not apply: {e}"))
    except Exception as e:
        return make_row(facts, method, _failed(e))


def _planned(case: Case, facts: ModelFacts, method: str, asked: Asked, traced: _Traced | Exception) -> Row:
    """The row of a solver's plan, which really runs."""
    from .. import api
    from ..planning import registry
    from .cases import difference, node_runs

    if isinstance(traced, Exception):
        return make_row(facts, method, _failed(traced))
    why = registry.get(asked.solver).declines(traced.trace.graph)
    if why:
        return make_row(facts, method, MethodResult(note=f"does not apply: {why}"))
    plan: Plan | None = None
    try:
        goal = _goal(asked, facts, case, traced)
        plan = api.plan(
            traced.trace,
            solver=asked.solver,
            cost=facts.task.cost,
            effort="thorough",
            cache=False,
            parity=asked.parity,
            progress=False,
            **goal,
        )
        within = partial(_applied, case, plan)
        with within():
            measured, same = traced.measure(_key(plan)), case.parity()
        note = f"beside the plain step: {difference(case, within)}" if same is False and sums(plan) else ""
        least, nodes = _least(plan, case), node_runs(plan.trace.lowered, plan.schedule.runs)
        outcome = MethodResult(
            measured, plan, same, note, least_overhead=least, wall_ratio=_wall(case, within), node_runs=nodes
        )
        row = make_row(facts, method, outcome)
        if row["status"] == "ok":
            facts.peaks[method] = measured.peak
        return row
    except InfeasibleBudget as e:
        bound = traced.trace.graph.beside_resident(e.bound_bytes)
        return make_row(facts, method, MethodResult(note=_why(e), bound_bytes=bound))
    except Exception as e:
        return make_row(facts, method, MethodResult(plan=plan, note=_why(e)))


@contextmanager
def _applied(case: Case, plan: Plan) -> Iterator[None]:
    from .. import api

    api.apply(case.model, plan, on_new_shape="error")
    try:
        yield
    finally:
        api.restore(case.model)


def _wall(case: Case, within: Callable[[], AbstractContextManager[object]]) -> float | None:
    """The wall-time ratio; None where steps run on tensors without data."""
    return None if case.fake else wall_ratio(case.step, within)


def _least(plan: Plan, case: Case) -> float | None:
    """The certified least extra cost of any plan within the same budget.

    None: there is no budget, or costs are measured and so differ from run to run, or the plan rewrites the captured step, whose
    other plans are then not looked at.
    """
    from .. import bounds

    graph = plan.graph
    limit = plan.limit
    if limit is None or not case.fake or rewriting(plan) is not None:
        return None
    weights = graph.weights(plan.cost)
    once = float(weights[graph.needed].sum())
    return bounds.time_at(graph, weights, limit, CERTIFY_S) / once if once else None


def _goal(asked: Asked, facts: ModelFacts, case: Case, traced: _Traced) -> dict[str, Any]:
    """The goal as arguments of `api.plan`. A budget is a share of the captured step's activations without a plan, which can
    be smaller than the plain step's."""
    once = traced.once
    if asked.max_overhead is not None:
        return {"max_overhead": _over_captured(asked.max_overhead, facts, case, traced)}
    if asked.share is not None:
        assert facts.plain is not None
        limit = asked.share * facts.plain.peak
    elif asked.like is not None:
        limit = _memory_of(asked.like, facts, case, traced)
    else:
        return {"minimize": "memory"}
    share = (limit - facts.extra_bytes) / once.baseline_activation_bytes
    if share <= 0:
        raise RekindleError("the memory measured beside the activations alone exceeds that budget")
    return {"budget": min(1.0, share)}


def _over_captured(extra: float, facts: ModelFacts, case: Case, traced: _Traced) -> float:
    """Converts extra modelled time over the plain step to extra cost of a plan.

    A plan counts from the captured step, whose time differs from the plain step's, and the graph lacks some launches. FLOPs, op
    runs and measured seconds need no conversion.
    """
    if facts.task.cost != "seconds" or not case.fake:
        return extra
    assert facts.plain is not None
    graph = traced.trace.graph
    modelled = float(graph.weights("seconds")[graph.needed].sum())
    left = (1 + extra) * facts.plain.seconds - traced.measure_once().seconds
    return max(0.0, left / modelled) if modelled else extra


def _memory_of(method: str, facts: ModelFacts, case: Case, traced: _Traced) -> float:
    """Peak bytes of a comparator, of a solver's smallest plan, or ("ogc") of the published solver as measured."""
    if method == "ogc":
        figure = facts.known.get("measured_ogc_nonreentrant_mb")
        if figure is None:
            raise RekindleError("the published solver's memory on this model is not measured")
        return float(figure * MB)
    if method not in facts.peaks:
        row = (
            _compared(case, facts, method, traced)
            if method in COMPARATORS
            else _planned(case, facts, method, Asked(method), traced)
        )
        if row["status"] != "ok":
            raise RekindleError(f"{method} does not run on this model: {row['note']}")
    return facts.peaks[method]


def _failed(e: Exception) -> MethodResult:
    return MethodResult(note=_why(e))


def _why(e: Exception) -> str:
    return f"{type(e).__name__}: {e}"
