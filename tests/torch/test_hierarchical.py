"""Blocks, their options, and the join over all levels of what forward keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import rekindle
from graphs_by_hand import chain as uniform
from rekindle.kernels import rotor as kernel
from rekindle.kernels.rotor import BACKWARD, KEEP_ALL, KEEP_INPUT, Stages
from rekindle.model.graph import Graph
from rekindle.model.judge import simulate
from rekindle.model.schedule import Schedule
from rekindle.portfolio.block_options import KnownBlocks, options
from rekindle.portfolio.hierarchical import Levels, costly, hierarchical, nested
from rekindle.problem import Problem
from rekindle.structure.block_programs import Programs
from rekindle.structure.blocks import Block, Kinds
from rekindle.structure.chain import chain_at, with_kept
from rekindle.structure.cuts import closed, cuts
from rekindle.structure.division import splitting_vertices
from rekindle.structure.forward import forward_dag
from strategies import chains, examples, graphs


def peak(graph: Graph, schedules: list[Schedule], overhead: float = math.inf) -> float:
    judged = (simulate(graph, s) for s in schedules)
    return min((j.peak_bytes for j in judged if j.overhead <= overhead + 1e-9), default=math.inf)


@given(graphs(), st.sampled_from(["limit", "overhead", "least", "whole"]), st.floats(0, 1))
def test_on_any_graph(graph: Graph, goal: str, part: float) -> None:
    baseline = simulate(graph, Schedule.baseline(graph)).peak_bytes
    limit = int(part * baseline) if goal == "limit" else None
    problem = Problem(graph, graph.weights(), limit, part if goal == "overhead" else None, whole=goal == "whole")
    found = list(hierarchical(problem))
    assert found
    assert all(s.solver == "hierarchical" for s in found)
    assert peak(graph, found) <= baseline
    if goal in ("overhead", "whole"):
        assert peak(graph, found, part if goal == "overhead" else 0) <= baseline


# -- blocks ------------------------------------------------------------------------------------------------------------
@given(graphs(), st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_plain_backward_of_a_block_takes_what_the_chain_says(graph: Graph, size: int, random) -> None:  # type: ignore[no-untyped-def]
    forward = forward_dag(graph)
    assume(forward is not None)
    plain = chain_at(graph, forward, cuts(graph, forward, size))
    kept = np.array([random.random() < 0.3 for _ in graph.values])
    for chain in (plain, *with_kept(plain, [kept])):
        times = chain.times(graph.weights())
        kinds = Kinds(graph, graph.weights())
        for stage in range(len(chain)):
            block = Block(chain, stage, kinds)
            saved, save_peak, save_time, alone_peak, alone_time, backward_peak, backward_time = block.sizes(block.plain)
            assert saved == chain.saved[stage]
            assert save_peak + block.before == chain.save_peak[stage]
            assert alone_peak + block.around == chain.alone_peak[stage]
            assert backward_peak + block.around == chain.backward_peak[stage]
            assert (save_time, alone_time) == (times.save[stage], times.alone[stage])
            assert backward_time == times.backward[stage]


@given(graphs(), st.integers(1, 3))
def test_programs_run_all_of_backward_and_make_what_they_need(graph: Graph, size: int) -> None:
    forward = forward_dag(graph)
    assume(forward is not None)
    chain = chain_at(graph, forward, cuts(graph, forward, size))
    kinds = Kinds(graph, graph.weights())
    for stage in range(len(chain)):
        block = Block(chain, stage, kinds)
        for mine, theirs in zip(block.arrays, block.graph.arrays, strict=True):
            if block.stage < chain.turn:
                assert np.array_equal(mine, theirs)
        found = Programs(block)
        assert len(found.prices)
        for k, price in enumerate(found.prices.tolist()):
            if price[0] < math.inf:
                program = found[k]
                assert sorted(set(program.tolist()) - set(range(block.turn))) == block.plain.tolist()
                assert price == pytest.approx(block.quick(program))


def test_what_is_the_same_is_planned_once() -> None:
    def planned(n: int) -> tuple[int, int]:
        plain = uniform(n)
        named = [replace(o, module=f"layer.{o.name}", target="back" if o.backward else "forth") for o in plain.ops]
        graph = replace(plain, ops=(*named[:n], plain.ops[n], *named[n + 1 :]))
        forward = forward_dag(graph)
        assert forward is not None
        chain = chain_at(graph, forward, cuts(graph, forward, 5))
        known = KnownBlocks(graph, graph.weights())
        options(chain, known)
        return len(chain), len(known.planned)

    (short, different), (long, as_many) = planned(120), planned(480)
    assert long > 3 * short
    assert different == as_many <= 6


@pytest.mark.parametrize("size", [4, 7])
def test_blocks_have_their_size(size: int) -> None:
    graph = uniform(100)
    forward = forward_dag(graph)
    assert forward is not None
    lengths = np.diff(cuts(graph, forward, size))
    assert lengths.sum() == 100
    assert (lengths >= size).all()
    assert (lengths <= 3 * size).all()


@given(graphs(), st.integers(1, 5))
def test_the_sets_of_what_is_dear_to_make_are_nested(graph: Graph, levels: int) -> None:
    forward = forward_dag(graph)
    assume(forward is not None)
    chain = chain_at(graph, forward, cuts(graph, forward, 2))
    found = costly(chain, graph.weights(), levels)
    assert len(found) <= levels
    assert all((small <= large).all() for large, small in zip(found, found[1:], strict=False))


# -- the join ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Small:
    """A chain with two options a stage and levels. a : bytes of the input of each stage. kept : per level and stage the
    bytes that stay; saved, extra : per stage and option; times per level and stage."""

    a: list[int]
    kept: list[list[int]]
    saved: list[list[int]]
    extra: list[list[int]]
    skip: list[list[int]]
    back: list[list[int]]
    enter: list[list[list[int]]]

    def arrays(self) -> tuple[Stages, np.ndarray]:
        n = len(self.a)
        rows = []
        for kept, skip in zip(self.kept, self.skip, strict=True):
            before = np.append(0, np.cumsum(kept))
            i, j = np.arange(n)[:, None], np.arange(n)[None, :]
            hold = np.tile(np.array(self.a), (n, 1)) + np.maximum(0, before[j] - before[i])
            passing = np.tile(np.array(self.a), (n, 1)) + np.maximum(0, before[j + 1] - before[i])
            saved = np.array(self.saved) + np.array(kept)[:, None]
            top = saved + np.array(self.extra)
            time = np.tile(np.array(skip, float)[:, None], 2)
            back = np.array(self.back, float)
            rows.append((hold, passing, np.zeros(n, np.int64), time[:, 0], saved, top, time, top, time, top, back))
        stacked = Stages(*(np.ascontiguousarray(np.stack(x)) for x in zip(*rows, strict=True)))
        enter = np.zeros((len(self.kept), len(self.kept), n + 1))
        enter[:, :, 1:] = np.cumsum(self.enter, 2)
        return stacked, enter

    def least_enter(self) -> list[list[list[int]]]:
        """Per level, later level and stage: the least that coming from the one to the other can take, in any steps."""
        count, n = len(self.kept), len(self.a)
        out = [[[0] * n for _ in range(count)] for _ in range(count)]
        for gap in range(1, count):
            for here in range(count - gap):
                for i in range(n):
                    there = here + gap
                    ways = [out[here][k][i] + self.enter[k][there][i] for k in range(here + 1, there)]
                    out[here][there][i] = min([self.enter[here][there][i], *ways])
        return out


@st.composite
def small(draw: st.DrawFn, most: int = 5) -> Small:
    n, levels = draw(st.integers(1, most)), draw(st.integers(1, 3))
    one = st.integers(0, 3)

    def row(k: int) -> list[int]:
        return draw(st.lists(one, min_size=k, max_size=k))

    kept = np.cumsum([[0] * n, *(row(n) for _ in range(levels - 1))], 0).tolist()
    a = [0, *row(n - 1)]
    saved = [[x + (a[i + 1] if i + 1 < n else 0) for x in row(2)] for i in range(n)]
    skip = [row(n) for _ in range(levels)]
    return Small(
        a,
        kept,
        saved,
        [row(2) for _ in range(n)],
        skip,
        [row(2) for _ in range(n)],
        [[row(n) for _ in skip] for _ in skip],
    )


@examples(300)
@given(small(), st.integers(0, 30))
def test_the_sequence_takes_the_time_and_the_memory_of_the_table(c: Small, memory: int) -> None:
    levels, enter = c.arrays()
    table = kernel.solve(levels, enter, 1, memory)
    n = len(c.a)
    time = table[0, kernel.row(0, n - 1), memory]
    assume(np.isfinite(time))
    at_hand, inputs, whole = [0] * n, {0}, dict[int, int]()
    took, behind = 0.0, n
    least_ = c.least_enter()

    def held() -> int:
        """What was kept of inputs, in whole stages and from the first forward on."""
        own = {i + 1 for i in whole}
        return (
            sum(c.a[i] for i in inputs if i not in own)
            + sum(c.saved[i][k] for i, k in whole.items())
            + sum(c.kept[at_hand[i]][i] for i in range(behind))
        )

    for what, stage, option, level in kernel.sequence(levels, enter, 1, table, memory, 0, n - 1).tolist():
        if what == BACKWARD:
            took += c.back[stage][option]
            assert held() + c.extra[stage][option] <= memory
            del whole[stage]
            inputs.discard(stage)
            behind = stage
            continue
        took += c.skip[level][stage]
        if at_hand[stage] < level:
            took += least_[at_hand[stage]][level][stage]
        at_hand[stage] = max(at_hand[stage], level)
        if what in (KEEP_INPUT, KEEP_ALL):
            inputs.add(stage)
        if what == KEEP_ALL:
            whole[stage] = option
            inputs.discard(stage + 1)
        assert held() <= memory
    assert behind == 0
    assert took <= time


@given(small(), st.integers(0, 30))
def test_levels_only_help(c: Small, memory: int) -> None:
    levels, enter = c.arrays()
    table = kernel.solve(levels, enter, 1, memory)
    one = kernel.solve(Stages(*(x[:1] for x in levels)), enter[:1, :1], 1, memory)[0]
    assert (table[0] <= one).all()


@given(small(most=4), st.integers(0, 20))
def test_the_table_is_the_least_of_all_ways_to_take_a_chain_apart(c: Small, memory: int) -> None:
    levels, enter = c.arrays()

    def least(level: int, s: int, t: int, m: int) -> float:
        """The definition, without a table."""
        x = kernel.stages_of(levels, level)
        ways = [math.inf]
        for k in range(level + 1, len(c.kept)):
            ways.append(enter[level, k, t + 1] - enter[level, k, s] + least(k, s, t, m))
        for k in range(2):
            if s == t and m >= x.alone_peak[s, k]:
                ways.append(x.alone_time[s, k] + x.backward_time[s, k])
            elif s < t and m >= max(x.save_peak[s, k], x.backward_peak[s, k]):
                ways.append(x.save_time[s, k] + least(level, s + 1, t, m - x.saved[s, k]) + x.backward_time[s, k])
        for k in range(s + 1, t + 1):
            if m >= max(x.hold[s, k], *x.passing[s, s:k]):
                later, earlier = least(level, k, t, m - x.hold[s, k]), least(level, s, k - 1, m)
                ways.append(float(x.skip_time[s:k].sum()) + later + earlier)
        return float(min(ways))

    table = kernel.solve(levels, enter, 1, memory)
    n = len(c.a)
    assert table[0, kernel.row(0, n - 1), memory] == least(0, 0, n - 1, memory)


def enough(times: np.ndarray, part: float) -> int:
    """A memory with which the table has a time: the least (0), the most (1), or one between."""
    memories = np.flatnonzero(np.isfinite(times))
    return int(memories[int(part * (len(memories) - 1))])


@given(graphs(), st.integers(1, 3), st.floats(0, 1))
def test_no_plan_takes_more_time_than_the_table_says(graph: Graph, size: int, part: float) -> None:
    """Ops with several outputs among them, of which some are kept."""
    forward = forward_dag(graph)
    assume(forward is not None)
    weights = graph.weights()
    curve = Levels(graph, weights, forward, cuts(graph, forward, size))
    curve.unit, curve.slots = 1, max(400, curve.whole)  # at least one memory in which nothing runs twice
    curve.solve()
    table = curve.tables[0, kernel.row(0, len(curve.chain) - 1)]
    memory = enough(table, part)
    found = curve.runs(memory)
    assert found
    for runs in found:
        assert weights[runs].sum() <= (curve.once + table[memory]) * (1 + 1e-9) + 1e-9


def test_batch_norm_runs_again_where_its_output_is_wanted_again() -> None:
    """Its statistics take nothing and were kept; so its output was never made again, and stayed."""
    model, sample = rekindle.zoo.load("resnet18", fake=True, batch=2)
    graph = rekindle.trace(model, sample).costed("rtx2080ti", None).graph
    forward = forward_dag(graph)
    assert forward is not None
    curve = Levels(graph, graph.weights(), forward, cuts(graph, forward, 5))
    curve.aim(curve.whole)
    for slots in curve.choices[:: max(1, len(curve.choices) // 8)]:
        for runs in curve.runs(slots):
            judged = simulate(graph, Schedule.from_runs(graph, runs))
            assert judged.seconds <= 1.01 * curve.times[slots]
            assert judged.peak_bytes - graph.resident_bytes <= 1.05 * curve.bytes(slots)


@given(chains(), st.integers(1, 3), st.floats(0, 1))
def test_on_chains_the_judge_finds_no_larger_peak_than_the_table(graph: Graph, size: int, part: float) -> None:
    forward = forward_dag(graph)
    assert forward is not None
    curve = Levels(graph, graph.weights(), forward, cuts(graph, forward, size))
    curve.unit, curve.slots = 1, 600
    curve.solve()
    memory = enough(curve.tables[0, kernel.row(0, len(curve.chain) - 1)], part)
    judged = simulate(graph, Schedule.from_runs(graph, curve.runs(memory)[0]))
    # The pass that makes the saved sets of a level runs ops that no later pass on that level runs: the table counts their
    # cost and not their peak.
    entering = int(curve.levels.passing[0].max())
    assert judged.peak_bytes - graph.resident_bytes <= max(memory, entering) + curve.chain.held


def test_a_uniform_chain_by_its_overhead() -> None:
    graph = uniform(200)

    def least(allowed: float) -> float:
        return peak(graph, list(hierarchical(Problem(graph, graph.weights(), None, allowed))), allowed)

    assert least(0) <= 201
    assert least(0.1) <= 161
    assert least(0.5) <= 25


# -- blocks within blocks ----------------------------------------------------------------------------------------------
def test_the_inside_of_a_skip_is_one_block() -> None:
    graph = rekindle.trace(*rekindle.zoo.load("unet", fake=True, batch=2, image=64, width=16)).graph
    forward = forward_dag(graph)
    assert forward is not None
    splits = closed(graph, forward, 5, 200)
    assert splits is not None
    assert set(splits) <= set(splitting_vertices(forward.dag))
    chain = chain_at(graph, forward, splits)
    inside = max(range(len(chain)), key=lambda stage: len(chain.forward[stage]))
    names = {graph.ops[o].module for o in chain.forward[inside]}
    assert {n for n in names if n.startswith("down")} >= {"down.0.0", "down.3.0"}
    block = Block(chain, inside, Kinds(graph, graph.weights("flops")))
    flat = Programs(block).prices
    nested_ = np.array([block.quick(p) for p in nested(block)])
    better = [all((row < other).any() for other in flat) for row in nested_]
    assert any(better), "some option that no dropping of values reaches"


@given(graphs())
@example(uniform(40))  # small blocks have none inside of them
@examples(50)
def test_what_runs_inside_a_block_is_a_valid_step(graph: Graph) -> None:
    forward = forward_dag(graph)
    assume(forward is not None)
    chain = chain_at(graph, forward, cuts(graph, forward, 50))
    blocks = [Block(chain, stage, Kinds(graph, graph.weights())) for stage in range(len(chain))]
    for block, program in [(b, p) for b in blocks for p in nested(b, 1)]:
        plain = set(block.plain.tolist())
        runs = [*range(block.turn + 1), *program.tolist()]
        simulate(block.graph, Schedule.from_runs(block.graph, runs))
        assert plain <= set(program.tolist())
