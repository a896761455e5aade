"""The memory plan: no two storages that live at once share an address, and the block is near the peak."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.ask import LeastMemory, PlanOptions
from rekindle.model import arena as arenas
from rekindle.model.arena import plan_offsets
from rekindle.model.graph import Graph, Op, Value
from rekindle.model.judge import simulate
from rekindle.model.plan import schedule_document
from rekindle.model.schedule import Free, Run, Schedule
from rekindle.planning.planner import plan_graph
from strategies import graphs, schedules


class Life(NamedTuple):
    first: int
    last: int
    bytes: int
    value: int


def lives(graph: Graph, schedule: Schedule) -> list[Life]:
    """By the judge's rules, in plain Python: what exists from when to when."""
    done: list[Life] = []
    live: dict[int, tuple[int, int, int]] = {}  # value: first step, bytes, the value that began it

    def end(value: int, step: int) -> None:
        first, size, began = live.pop(value)
        done.append(Life(first, step, size, began))

    for s, step in enumerate(schedule.steps):
        if isinstance(step, Free):
            end(step.value, s - 1)
            continue
        assert isinstance(step, Run)
        op = graph.ops[step.op]
        if op.workspace:
            done.append(Life(s, s, op.workspace, -1))
        for k, v in enumerate(op.outputs):
            if k == 0 and step.into is not None:
                if v in live:
                    end(step.into, s)
                else:
                    live[v] = live.pop(step.into)
            elif v in live:
                done.append(Life(s, s, graph.values[v].bytes, v))
            else:
                live[v] = (s, graph.values[v].bytes, v)
    for v in list(live):
        end(v, len(schedule.steps) - 1)
    return done


@given(st.data(), graphs(), st.sampled_from([1, 16, 512]), st.booleans())
def test_what_lives_at_once_lies_apart(data: st.DataObject, graph: Graph, alignment: int, is_large: bool) -> None:
    schedule = data.draw(schedules(graph))
    with pytest.MonkeyPatch.context() as patch:
        if is_large:
            patch.setattr(arenas, "LIVES_MOST", 0)
        arena = plan_offsets(graph, schedule, alignment)
    rows = list(zip(*(x.tolist() for x in (arena.first, arena.last, arena.bytes, arena.value)), strict=True))
    assert sorted(rows) == sorted(lives(graph, schedule))
    assert not (arena.offsets % alignment).any()
    step = np.zeros((len(schedule.steps), arena.arena_bytes), np.int8)
    for (first, last, size, _), at in zip(rows, arena.offsets.tolist(), strict=True):
        assert 0 <= at <= at + size <= arena.arena_bytes
        step[first : last + 1, at : at + size] += 1
    assert step.max(initial=0) <= 1
    judged = simulate(graph, schedule)
    assert judged.peak_bytes - graph.resident_bytes <= arena.arena_bytes <= arena.sum_bytes


@given(graphs())
def test_a_plan_says_what_one_block_takes(graph: Graph) -> None:
    plan = plan_graph(graph, PlanOptions(LeastMemory(), solver="every"))
    assert plan.activation_peak_bytes <= plan.arena_bytes <= plan.sum_bytes
    assert schedule_document(plan, steps=False)["arena_bytes"] == plan.figures()["arena_bytes"] == plan.arena_bytes


def test_an_op_that_writes_over_its_input_stays_where_it_is() -> None:
    graph = Graph(
        (Value(1), Value(1024), Value(1024), Value(1024)),
        (Op("a", (0,), (1,)), Op("b", (1,), (2,), inplace=(1,)), Op("c", (2,), (3,))),
        (3,),
    )
    arena = plan_offsets(graph, Schedule.baseline(graph))
    assert arena.value.tolist() == [1, 3]
    assert arena.arena_bytes == arena.sum_bytes == 2048


@pytest.mark.parametrize("n", [10, 300, 12_000])
def test_a_chain_that_recomputes_nothing_takes_no_more_than_its_peak(n: int) -> None:
    rng = np.random.default_rng(n)
    sizes = (512 * rng.integers(1, 100, n + 1)).tolist()
    ops = [Op(f"f{i}", (i,), (i + 1,)) for i in range(n)] + [Op("boundary", (n,), (n + 1,), recompute=False)]
    ops += [Op(f"b{i}", (2 * n - i, i), (2 * n - i + 1,), backward=True) for i in range(n - 1, -1, -1)]
    graph = Graph(tuple(Value(s) for s in sizes + sizes[::-1]), tuple(ops), (2 * n + 1,))
    schedule = Schedule.baseline(graph)
    arena = plan_offsets(graph, schedule)
    assert arena.arena_bytes <= 1.02 * simulate(graph, schedule).peak_bytes
