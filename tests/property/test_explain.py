"""Explanations: every byte between the two peaks has a row, on any graph and any schedule, and the screen fits."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rekindle.explain import Explanation, explain_schedule
from rekindle.explain.holding import Lives, peak
from rekindle.explain.screen import MIB, decimals
from rekindle.model.graph import Graph, Op
from rekindle.model.judge import simulate
from rekindle.model.schedule import Free, Offload, Run, Schedule
from rekindle.show.report.held import MemoryByPart
from strategies import copied_schedules, examples, graphs, linked, schedules

COLUMNS, LINES = 80, 45
NAMES = (
    "h.0.attn",
    "h.1.attn",
    "h.2.attn",
    "h.0.mlp.fc1",
    "h.1.mlp.fc1",
    "h.2.mlp.fc1",
    "head",
    "层.0",
    "x" * 120,
    "a.\x1b[2J",
    "",
)
TARGETS = (
    "aten.addmm.default",
    "aten._softmax.default",
    "aten.nll_loss_forward.default",
    "aten._log_softmax.default",
    "",
)
SHAPES = ("f32[8,64]", "f32[2,4,16,16]", "f32[]", "")


@st.composite
def described(draw: st.DrawFn) -> Graph:
    """A graph whose ops name modules, operators and shapes, as traced ones do."""
    graph = draw(graphs())

    def op(o: Op) -> Op:
        module, target, shape = (draw(st.sampled_from(x)) for x in (NAMES, TARGETS, SHAPES))
        return replace(o, module=module, target=target, shape=shape)

    return replace(graph, ops=tuple(op(o) for o in graph.ops))


def check(graph: Graph, schedule: Schedule, e: Explanation) -> None:
    """The sums of the rows are the judge's figures, to the byte."""
    plain, planned = simulate(graph, Schedule.baseline(graph)), simulate(graph, schedule)
    assert (e.baseline_peak_bytes, e.peak_bytes) == (plain.peak_bytes, planned.peak_bytes)
    assert sum(r.saved_bytes for r in e.rows) == e.saved_bytes == plain.peak_bytes - planned.peak_bytes
    assert sum(r.plain_bytes for r in e.rows) == plain.peak_bytes - graph.resident_bytes
    assert sum(r.planned_bytes for r in e.rows) == planned.peak_bytes - graph.resident_bytes
    assert sum(h.bytes for h in e.holders) == planned.peak_bytes
    assert sum(r.added_seconds for r in e.rows) == e.added_seconds == planned.seconds - plain.seconds
    assert sum(r.added_flops for r in e.rows) == planned.flops - plain.flops
    assert sum(r.added_runs for r in e.rows) == len(schedule.runs) - len(Schedule.baseline(graph).runs)


@examples(400)
@given(st.data())
def test_every_byte_between_the_peaks_has_one_row(data: st.DataObject) -> None:
    graph = data.draw(described())
    schedule = data.draw(schedules(graph))
    check(graph, schedule, explain_schedule(graph, schedule))


@examples(400)
@given(st.data())
def test_values_that_are_away_are_held_by_nobody(data: st.DataObject) -> None:
    graph = data.draw(linked(described()))
    schedule = data.draw(copied_schedules(graph))
    e = explain_schedule(graph, schedule)
    plain, planned = simulate(graph, Schedule.baseline(graph)), simulate(graph, schedule)
    assert (e.baseline_peak_bytes, e.peak_bytes) == (plain.peak_bytes, planned.peak_bytes)
    assert sum(r.saved_bytes for r in e.rows) == e.saved_bytes
    assert sum(h.bytes for h in e.holders) == planned.peak_bytes
    assert sum(r.moved_bytes for r in e.rows) == planned.moved_bytes
    assert sum(r.added_seconds for r in e.rows) == pytest.approx(planned.seconds - plain.seconds)
    assert any("waits" in line for line in e.remarks) or not planned.moved_bytes
    assert max(cell_len(line) for line in e.lines()) <= COLUMNS


@examples(400)
@given(st.data())
def test_bytes_that_are_away_are_those_that_only_the_host_has(data: st.DataObject) -> None:
    graph = data.draw(linked(described()))
    schedule = data.draw(copied_schedules(graph))
    lives, held = Lives.of(graph, schedule), MemoryByPart.of(graph, schedule)
    live, host, coming, away = set[int](), set[int](), set[int](), []
    for s in schedule.steps:
        needed = set(graph.ops[s.op].inputs) if isinstance(s, Run) else {s.value} if isinstance(s, Free) else set()
        host -= coming & needed
        coming -= needed
        if isinstance(s, Run):
            away.append(sum(graph.values[v].bytes for v in host - live))
            live = (live | set(graph.ops[s.op].outputs)) - {s.into}
        elif isinstance(s, Free):
            live.remove(s.value)
        elif isinstance(s, Offload):
            host.add(s.value)
        else:
            live.add(s.value)
            coming.add(s.value)
    assert lives.away.tolist() == away
    assert (held.parts.sum(axis=0) + graph.resident_bytes).tolist() == lives.memory.tolist()
    assert held.parts.min(initial=0) >= 0
    assert lives.memory.max(initial=graph.resident_bytes) == lives.judged.peak_bytes


@examples(200)
@given(st.data())
def test_the_screen_fits_and_obeys_nothing(data: st.DataObject) -> None:
    graph = data.draw(described())
    lines = explain_schedule(graph, data.draw(schedules(graph))).lines()
    assert max(map(cell_len, lines)) <= COLUMNS
    assert len(lines) <= LINES
    assert all(line.isprintable() for line in lines)


@examples(200)
@given(st.data())
def test_saved_values_are_live_when_backward_begins(data: st.DataObject) -> None:
    """By the definition: after the end of forward and its frees, each one is used again or kept, without being made anew."""
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    rows = schedule.array.tolist()
    boundary = graph.boundary
    ends = [
        s
        for s, (kind, i, _) in enumerate(rows)
        if kind == 0 and (i == boundary if boundary is not None else graph.ops[i].backward)
    ]
    expected: set[int] = set()
    if ends:
        live: set[int] = set()
        for kind, i, into in rows[: ends[0]]:
            if kind == 0:
                live |= set(graph.ops[i].outputs)
                live.discard(into)
            else:
                live.discard(i)
        live.discard(rows[ends[0]][2])
        for kind, i, _ in rows[ends[0] + 1 :]:
            if kind == 0:
                break
            live.discard(i)
        expected = live
    assert peak(graph, schedule).saved == expected


@given(st.lists(st.integers(-(10**9), 10**12), min_size=1, max_size=18))
def test_rounded_figures_add_up_within_one_percent(sizes: list[int]) -> None:
    total = sum(sizes)
    digits = decimals(abs(total) / MIB)
    shown = [float(f"{x / MIB:.{digits}f}") for x in sizes]
    assert abs(sum(shown) - total / MIB) <= max(0.01 * abs(total) / MIB, 18 * 1e-6)


def blocks(count: int, odd: int | None = None) -> Graph:
    """A step of equal blocks, each of two modules; one of them may have another shape."""
    from rekindle.model.graph import BOUNDARY, Value

    ops, values = [], [Value(0)]

    def op(module: str, reads: tuple[int, ...], backward: bool = False, shape: str = "f32[8,8]") -> int:
        values.append(Value(MIB))
        ops.append(
            Op(f"{module}{len(ops)}", reads, (len(values) - 1,), 1e-3, backward=backward, module=module, kind="aten",
               target="aten.mm.default", shape=shape)
        )  # fmt: skip
        return len(values) - 1

    made = [0]
    for i in range(count):
        for part in ("attn", "mlp"):
            made.append(op(f"model.h.{i}.{part}", (made[-1],), shape="f32[9,9]" if i == odd else "f32[8,8]"))
    values.append(Value(MIB))
    ops.append(Op(BOUNDARY, (made[-1],), (len(values) - 1,), recompute=False, kind=BOUNDARY))
    gradient = len(values) - 1
    for i in range(count - 1, -1, -1):
        for k in (1, 0):
            gradient = op(f"model.h.{i}.{('attn', 'mlp')[k]}", (gradient, made[2 * i + k]), True)
    return Graph(tuple(values), tuple(ops), (gradient,), 5 * MIB, "blocks")


def test_equal_numbered_layers_are_one_row_and_others_are_not() -> None:
    graph = blocks(24)
    runs = Schedule.baseline(graph).runs
    rows = {r.pattern: r for r in explain_schedule(graph, Schedule.from_runs(graph, runs)).rows}
    assert {"model.h.*.attn", "model.h.*.mlp"} <= rows.keys()
    assert (rows["model.h.*.attn"].count, rows["model.h.*.attn"].kept_bytes) == (24, 24 * MIB)
    rows = {r.pattern: r for r in explain_schedule(blocks(4, odd=2), Schedule.baseline(blocks(4, odd=2))).rows}
    assert {"model.h.0-1,3.attn", "model.h.2.attn"} <= rows.keys()


def test_the_column_of_mib_on_the_screen_adds_up() -> None:
    graph = blocks(24)
    forward, n = list(range(48)), 48
    runs = [*forward, n]
    for i in range(23, -1, -1):  # each block again, from its input
        runs += [2 * i, 2 * i + 1] if i < 23 else []
        runs += [n + 1 + 2 * (23 - i), n + 2 + 2 * (23 - i)]
    e = explain_schedule(graph, Schedule.from_runs(graph, runs))
    lines = str(e).split("\n")
    head = next(line for line in lines if line.startswith("module "))
    end = head.index("MiB saved") + len("MiB saved")
    at = lines.index(head)
    cells = [line[end - 9 : end].strip() for line in lines[at + 2 : at + 2 + len(e.rows)]]
    shown = sum(float(c.replace(",", "")) if re.search(r"\d", c) else 0.0 for c in cells)
    assert e.saved_bytes > 0
    assert abs(shown - e.saved_bytes / MIB) <= 0.01 * e.saved_bytes / MIB
