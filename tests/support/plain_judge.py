"""The judge in plain Python: the readable twin of the compiled one, against which it is tested."""

from __future__ import annotations

import pytest

from rekindle import FormatError, Graph, simulate
from rekindle.model.schedule import Fetch, Free, Offload, Run, Schedule


def both_agree(graph: Graph, schedule: Schedule) -> None:
    """Check that both judges say the same of a schedule, or both refuse it."""
    try:
        plain = simulate_plain(graph, schedule)
    except FormatError:
        with pytest.raises(FormatError):
            simulate(graph, schedule)
    else:
        judged = simulate(graph, schedule)
        assert (judged.peak_bytes, judged.seconds) == plain


def simulate_plain(graph: Graph, schedule: Schedule) -> tuple[int, float]:
    """(peak bytes, seconds) by the rules of `simulate`, in plain Python; the readable twin of the compiled judge.

    Seconds: each step ends after those before it in its own engine (for ops, to the host, and back) and after those that it
    waits for; a free takes no time in the engine for ops.
    """
    produced = {v for op in graph.ops for v in op.outputs}
    live: set[int] = set()
    ran: set[int] = set()
    away: set[int] = set()  # values of which the host has a copy
    coming: set[int] = set()  # values that have been fetched and not been needed since
    ended: dict[str | tuple[str, int], float] = {}  # when an engine is free, and when a copy ends, by ("out", value)
    peak = graph.resident_bytes

    def held() -> int:
        return graph.with_resident(sum(graph.values[v].bytes for v in live))

    def work(engine: str, seconds: float, *after: str | tuple[str, int]) -> float:
        ended[engine] = max(ended.get(x, 0.0) for x in (engine, *after)) + seconds
        return ended[engine]

    def copy(way: str, value: int, *after: str | tuple[str, int]) -> None:
        assert graph.link is not None
        rate = graph.link.out_bytes_per_s if way == "out" else graph.link.in_bytes_per_s
        seconds = (graph.values[value].bytes / rate) + graph.link.copy_s
        ended[way, value] = work(way if graph.link.both_at_once else "link", seconds, "ops", *after)

    for step in schedule.steps:
        if isinstance(step, Free):
            if step.value not in live:
                raise FormatError(f"frees {step.value}, which is not live")
            live.remove(step.value)
            away -= coming & {step.value}
            coming.discard(step.value)
            work("ops", 0.0, ("out", step.value), ("back", step.value))
            continue
        if isinstance(step, Offload):
            if step.value not in live or step.value in away:
                raise FormatError(f"cannot copy {step.value} to the host")
            away.add(step.value)
            copy("out", step.value, ("back", step.value))
            continue
        if isinstance(step, Fetch):
            if step.value in live or step.value not in away:
                raise FormatError(f"cannot fetch {step.value}")
            coming.add(step.value)
            live.add(step.value)
            peak = max(peak, held())
            copy("back", step.value, ("out", step.value))
            continue
        assert isinstance(step, Run)
        op = graph.ops[step.op]
        if step.op in ran and not op.recompute:
            raise FormatError(f"op {step.op} runs twice")
        ran.add(step.op)
        for v in op.inputs:
            if v in produced and v not in live:
                raise FormatError(f"reads {v}, which is not live")
        away -= coming & set(op.inputs)
        coming -= set(op.inputs)
        costing = op.outputs
        if step.into is not None:
            if step.into not in op.inplace or step.into not in live:
                raise FormatError(f"cannot write into {step.into}")
            if graph.values[op.outputs[0]].bytes > graph.values[step.into].bytes:
                raise FormatError(f"value {step.into} is too small to write into")
            costing = op.outputs[1:]
        peak = max(peak, held() + sum(graph.values[v].bytes for v in costing) + op.workspace)
        after = [("back", v) for v in op.inputs]
        work("ops", op.seconds, *after, *([] if step.into is None else [("out", step.into)]))
        live |= set(op.outputs)
        live.discard(-1 if step.into is None else step.into)
    if any(v in produced and v not in live for v in graph.keep):
        raise FormatError("a value to keep is not live at the end")
    return peak, max(ended.values(), default=0.0)
