"""How far a comparator's step is from the plain one, in words: the note of its row.

A case on tensors without data has a small copy of its model measured in its place.
"""

from __future__ import annotations

from rekindle import api
from rekindle.bench.cases import Case, difference
from rekindle.bench.methods import REGISTERED, Within
from rekindle.model.plan import Plan
from rekindle.torch import accept
from rekindle.torch.trace import Trace, TraceOptions, trace_call


def beside_plain(method: str, case: Case, within: Within) -> str:
    """The note of a comparator's row; "" for a case without data that has no copy."""
    if not case.fake:
        return f"beside the plain step: {difference(case, within)}"
    if case.twin is None:
        return ""
    twin, comparator = case.twin(), REGISTERED[method]
    trace, once = captured(twin) if comparator.needs_trace else (None, None)
    return f"a small copy beside its plain step: {difference(twin, lambda: comparator.within(twin, trace, once))}"


def captured(case: Case) -> tuple[Trace, Plan]:
    """The captured step without costs, and a plan that runs each op once."""
    args, kwargs = accept.sample(case.sample)
    traced = trace_call(case.model, args, kwargs, TraceOptions(unused=case.unused), inputs={})
    return traced, api.plan(traced, minimize="memory", solver="none", cost="flops", cache=False, progress=False)
