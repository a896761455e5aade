"""Chains with copies to the host: the table against all decisions, carried out second by second; plans against rotor's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rekindle
from graphs_by_hand import chain as uniform
from rekindle.kernels import pofo as kernel
from rekindle.kernels import rotor as inner
from rekindle.kernels.pofo import PASS, REST, SAVE
from rekindle.model.graph import Graph, Link, Op, Value
from rekindle.model.judge import simulate
from rekindle.model.schedule import OFFLOAD
from rekindle.problem import Problem
from rekindle.solvers.pofo import Fluid, pofo
from rekindle.solvers.rotor import rotor
from rekindle.structure.chain import chain_of
from strategies import examples, graphs

Decision = tuple[
    int, int, int, int
]  # what forward does, its first and last stage, whether the input of the first is copied


# -- the model -------------------------------------------------------------------------------------------------------
def model(rng: np.random.Generator, uniform: bool) -> kernel.Model:
    """One second per byte each way, slots of one byte, and whole numbers of all: nothing is rounded."""
    n, slots = int(rng.integers(1, 6)), int(rng.integers(1, 13))

    def some(*shape: int, most: int = 3) -> np.ndarray:
        return np.full(shape, rng.integers(0, most + 1)) if uniform else rng.integers(0, most + 1, shape)

    unread, inputs = some(n, most=1), some(2, n)
    inputs[:, 0] = 0
    stages = inner.Stages(
        some(n, n), unread[:, None] + some(n, n), some(n, most=1), some(n).astype(float), some(n, 1), some(n, 1),
        some(n, 1).astype(float), some(n, 1), some(n, 1).astype(float), some(n, 1), some(n, 1).astype(float),
    )  # fmt: skip
    levels = inner.Stages(*(x[None] for x in stages))
    table = inner.solve(levels, np.zeros((1, 1, n + 1)), 1, slots)[0]
    return kernel.Model(stages, table, 1.0, inputs.astype(float), unread.astype(float), 1.0, slots, 1.0, 1.0)


def decisions(n: int, first: int = 0) -> Iterator[list[Decision]]:
    yield [(REST, first, n - 1, 0)]
    for last in range(first, n - 1):
        for rest in decisions(n, last + 1):
            for copied in (0, 1):
                yield [(PASS, first, last, copied), *rest]
                if last == first:
                    yield [(SAVE, first, last, copied), *rest]


@dataclass
class Step:
    """One model's decisions, carried out second by second."""

    m: kernel.Model
    done: list[Decision]

    def own(self, at: int) -> tuple[int, int]:
        """Bytes of the input of a part, and those of them that stay until its backward or are copied."""
        what, first, _, _ = self.done[at]
        size = int(self.m.input[1 if at and self.done[at - 1][0] == SAVE else 0, first])
        return size, size + (int(self.m.unread[first]) if what == PASS else 0)

    def kept(self, at: int) -> int:
        """Bytes that stay on the device when forward comes to a part."""
        return sum(self.own(k)[1] for k in range(at) if not self.done[k][3])

    def ahead(self) -> tuple[float, int]:
        """(seconds of forward up to the last part, bytes that still wait to be copied)."""
        stages, memory, now, waiting = self.m.stages, self.m.slots, 0, 0
        for at, (what, first, last, copied) in enumerate(self.done[:-1]):
            size, whole = self.own(at)
            for k in range(first, last + 1):
                peak = int(stages.save_peak[k, 0] if what == SAVE else stages.passing[first, k]) + int(
                    stages.gradient[-1]
                )
                held = self.kept(at) + peak
                if k == first or not copied:
                    held += size
                else:  # the whole input is in `waiting`, or gone
                    held -= whole - size
                while held + waiting > memory and waiting:
                    now, waiting = now + 1, waiting - 1
                if held + waiting > memory:
                    return math.inf, 0
                if k == first and copied:
                    waiting += whole
                for _ in range(int(stages.save_time[k, 0] if what == SAVE else stages.skip_time[k])):
                    now, waiting = now + 1, max(0, waiting - 1)
        return now, waiting

    def backwards(self, at: int = 0, missing: int = 0) -> Iterator[tuple[float, int]]:
        """(seconds from the last part to the end, bytes that must come back after the last part) seen from the end, for each
        number of bytes that come after a passed part has run again."""
        what, first, last, copied = self.done[at]
        if what == REST:
            yield 0, missing
            return
        stages, (size, whole) = self.m.stages, self.own(at)
        free = self.m.slots - self.kept(at) - size
        for late in range(missing + 1):
            beside, came = missing - late, late
            if what == SAVE:
                if beside + int(stages.backward_peak[first, 0]) > free:
                    continue
                took = int(stages.backward_time[first, 0])
            else:
                time = self.m.table[inner.row(first, last), free - beside] if beside <= free else math.inf
                if not math.isfinite(time):
                    continue
                took = int(time)
            left = max(0, beside - took) + copied * whole
            for more, rest in self.backwards(at + 1, left):
                yield came + took + more, rest

    def least(self) -> float:
        """The least time of these decisions."""
        seconds, out = self.ahead()
        if math.isinf(seconds):
            return math.inf
        at = len(self.done) - 1
        first = self.done[at][1]
        free, best = self.m.slots - self.kept(at) - self.own(at)[0], math.inf
        row = self.m.table[inner.row(first, len(self.m.unread) - 1)]
        for more, back in self.backwards():
            if free >= 0:
                best = min(best, seconds + more + out + row[free] + back)
            if free >= max(out, back):
                best = min(best, seconds + more + max(out + back, row[free - max(out, back)]))
        return best


@pytest.mark.parametrize("uniform", [False, True])
def test_no_decisions_take_less_time_than_the_table_says(uniform: bool) -> None:
    within, rng = 0, np.random.default_rng(0)
    for _ in range(300):
        m = model(rng, uniform)
        values = kernel.solve(m)
        least = min(Step(m, done).least() for done in decisions(len(m.unread)))
        assert values[0, 0, 0, 0, 0] == least
        if math.isinf(least):
            continue
        within += 1
        seconds, rows = kernel.path(m, values, m.slots)
        assert seconds == least
        assert Step(m, [(what, first, last, copied) for what, first, last, copied, _ in rows.tolist()]).least() == least
    assert within > 100


def test_less_memory_is_a_smaller_step_of_the_same_table() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        m = model(rng, False)
        values = kernel.solve(m)
        for slots in range(1, m.slots):
            assert values[0, 0, m.slots - slots, 0, 0] == kernel.solve(m._replace(slots=slots))[0, 0, 0, 0, 0]


@pytest.mark.parametrize("n", [5, 12])
def test_a_slow_link_leaves_the_times_of_rotor_and_a_fast_one_those_of_the_plain_step(n: int) -> None:
    graph = uniform(n)
    chain = chain_of(graph)
    assert chain is not None
    for rate, most in ((1e-6, None), (1e6, 2.0 * n)):
        fluid = Fluid(chain, graph.weights(), Link(rate, rate), 40)
        fluid.aim(n)
        enough = np.flatnonzero(np.isfinite(fluid.times))
        for slots in enough.tolist():
            alone = fluid.curve.times[min(fluid.curve.slots, slots * fluid.unit // fluid.curve.unit)]
            assert fluid.times[slots] <= alone + 1e-9
            if most is None:
                assert fluid.times[slots] == alone
        assert most is None or fluid.times[enough[1]] == pytest.approx(most, rel=1e-3)


# -- plans -----------------------------------------------------------------------------------------------------------
def random_chain(rng: np.random.Generator, n: int, rate: float) -> Graph:
    """Each stage makes an inner value and its output; its backward reads the input and the inner value.

    rate : bytes that the link copies while forward makes one.
    """
    values: list[Value] = []
    ops: list[Op] = []
    inside: list[tuple[int, float]] = []

    def new(least: float, most: float) -> int:
        values.append(Value(int(1000 * rng.uniform(least, most))))
        return len(values) - 1

    outputs = [new(1, 3)]
    for i in range(n):
        seconds = rng.uniform(0.5, 2)
        inside.append((new(0.5, 4), seconds))
        outputs.append(new(0.5, 2))
        ops.append(Op(f"p{i}", (outputs[-2],), (inside[-1][0],), 0.6 * seconds))
        ops.append(Op(f"q{i}", (inside[-1][0],), (outputs[-1],), 0.4 * seconds))
    made, forward_s = sum(v.bytes for v in values[1:]), sum(seconds for _, seconds in inside)
    gradient = new(1, 1)
    ops.append(Op("boundary", (outputs[-1],), (gradient,), recompute=False))
    for i, (a, seconds) in reversed(list(enumerate(inside))):
        after, gradient = gradient, new(1, 1)
        ops.append(Op(f"b{i}", (after, outputs[i], a), (gradient,), 2 * seconds, backward=True))
    link = Link(rate * made / forward_s, rate * made / forward_s, copy_s=1e-3)
    return Graph(tuple(values), tuple(ops), (gradient,), link=link)


@pytest.mark.parametrize("goal", [{"budget": 0.4}, {"budget": 0.6}, {"max_overhead": 0.05}, {"minimize": "memory"}])
@pytest.mark.parametrize("seed", range(3))
def test_plans_keep_the_goal_and_are_no_worse_than_those_of_rotor(seed: int, goal: dict[str, Any]) -> None:
    graph = random_chain(np.random.default_rng(seed), 8 + seed, (0.1, 0.3, 1.0)[seed])
    asked = {"offload": True, "cache": False, "progress": False, **goal}
    ours, rotors = (rekindle.plan(graph, solver=name, **asked) for name in ("pofo", "rotor"))
    judged = simulate(graph, ours.schedule)
    assert (judged.peak_bytes, judged.overhead) == (ours.peak_bytes, ours.overhead)
    if "budget" in goal:
        assert ours.peak_bytes <= goal["budget"] * ours.baseline_peak_bytes
        assert ours.overhead <= rotors.overhead + 1e-9
    else:
        assert ours.peak_bytes <= rotors.peak_bytes
    assert ours.overhead <= goal.get("max_overhead", math.inf) + 1e-9


def test_it_finds_copies_by_itself_and_only_where_they_are_allowed() -> None:
    graph = random_chain(np.random.default_rng(1), 10, 0.5)
    limit = simulate(graph, rekindle.Schedule.baseline(graph)).peak_bytes // 2
    problem = Problem(graph, graph.weights(), limit)
    plain = list(pofo(problem))
    assert [s.runs for s in plain] == [s.runs for s in rotor(problem)]
    assert not any((s.array[:, 0] == OFFLOAD).any() for s in plain)
    found = list(pofo(Problem(graph, graph.weights(), limit, link=graph.link)))
    copied = [simulate(graph, s) for s in found if (s.array[:, 0] == OFFLOAD).any()]
    assert copied
    assert all(j.peak_bytes <= limit for j in copied)
    alone = min(j.seconds for j in (simulate(graph, s) for s in plain) if j.peak_bytes <= limit)
    assert min(j.seconds for j in copied) < alone


@examples(40)
@given(graphs(), st.sampled_from(["limit", "overhead", "least"]), st.floats(0, 1), st.sampled_from([0.1, 1.0, 100.0]))
def test_schedules_of_any_graph_are_valid(graph: Graph, goal: str, part: float, rate: float) -> None:
    graph = replace(graph, link=Link(rate, 2 * rate, copy_s=0.1))
    baseline = simulate(graph, rekindle.Schedule.baseline(graph))
    limit = int(part * baseline.peak_bytes) if goal == "limit" else None
    weights = graph.weights()
    for s in pofo(Problem(graph, weights, limit, part if goal == "overhead" else None, link=graph.link)):
        judged = simulate(graph, s)
        assert not judged.moved_bytes or limit is None or judged.peak_bytes <= limit
