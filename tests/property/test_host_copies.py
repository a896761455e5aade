"""Copies to and from the host: the judge's memory and clock, where copies are put, and what is proven of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plain_judge import both_agree, simulate_plain
from rekindle import Fetch, FormatError, Free, Graph, Link, Offload, Op, Run, Schedule, Value, simulate
from rekindle.kernels import copies
from rekindle.kernels import judge as kernel
from rekindle.kernels.arrays import OFFLOAD, RUN
from rekindle.model.schedule import Step
from rekindle.structure.copying import Copying
from strategies import chains, copied_schedules, examples, graphs, linked, schedules

LINK = Link(2.0, 4.0)


def small(link: Link | None = LINK) -> Graph:
    """a (input) -> b (8 bytes) -> c (4) -> d (4), which is kept and reads b too; each op takes a second."""
    ops = (Op("f", (0,), (1,), 1.0), Op("g", (1,), (2,), 1.0, workspace=6), Op("h", (1, 2), (3,), 1.0, inplace=(2,)))
    return Graph((Value(1), Value(8), Value(4), Value(4)), ops, (3,), resident_bytes=100, name="small", link=link)


AWAY = (Run(0), Offload(1), Run(1), Free(1), Fetch(1), Run(2, into=2), Free(1))


# -- the judge -------------------------------------------------------------------------------------------------------------
@given(st.data())
def test_both_judges_agree_beside_copies(data: st.DataObject) -> None:
    graph = data.draw(linked(graphs()))
    schedule = data.draw(copied_schedules(graph))
    judged = simulate(graph, schedule)
    assert (judged.peak_bytes, judged.seconds) == simulate_plain(graph, schedule)


@given(st.data())
def test_the_clock_is_the_longest_path_of_what_waits_for_what(data: st.DataObject) -> None:
    graph = data.draw(linked(graphs()))
    schedule = data.draw(copied_schedules(graph))
    assume(schedule.moves)
    begins, end = longest_path(graph, schedule.steps)
    judged = simulate(graph, schedule)
    assert judged.begins is not None
    assert judged.begins.tolist() == begins
    assert judged.seconds == end
    once = float(graph.weights()[graph.needed].sum())
    assert judged.overhead == (end / once - 1 if once else 0.0)


def longest_path(graph: Graph, steps: tuple[Step, ...]) -> tuple[list[float], float]:
    """(when each step can begin, when all have ended), from the steps that each step waits for."""
    assert graph.link is not None
    link, both = graph.link, graph.link.both_at_once
    engine = {Run: "ops", Free: "ops", Offload: "out", Fetch: "back" if both else "out"}

    def takes(step: Step) -> float:
        if isinstance(step, Run):
            return graph.ops[step.op].seconds
        if isinstance(step, Free):
            return 0.0
        rate = link.out_bytes_per_s if isinstance(step, Offload) else link.in_bytes_per_s
        return graph.values[step.value].bytes / rate + link.copy_s

    def waits(step: Step, earlier: Step) -> bool:
        if engine[type(earlier)] == engine[type(step)]:
            return True
        if isinstance(step, Run):
            read = isinstance(earlier, Fetch) and earlier.value in graph.ops[step.op].inputs
            return read or isinstance(earlier, Offload) and earlier.value == step.into
        if isinstance(earlier, Run | Free):  # a copy waits for all that the device did before it was asked for
            return True
        return earlier.value == step.value

    @cache
    def begins(s: int) -> float:
        return max((begins(i) + takes(steps[i]) for i in range(s) if waits(steps[s], steps[i])), default=0.0)

    found = [begins(s) for s in range(len(steps))]
    return found, max((b + takes(s) for b, s in zip(found, steps, strict=True)), default=0.0)


@given(st.data())
def test_the_host_holds_what_was_copied_until_it_has_come_back(data: st.DataObject) -> None:
    graph = data.draw(linked(graphs()))
    schedule = data.draw(copied_schedules(graph))
    held, most, moved = 0, 0, 0
    coming: set[int] = set()
    for step in schedule.steps:
        if isinstance(step, Offload):
            held += graph.values[step.value].bytes
            moved += graph.values[step.value].bytes
        elif isinstance(step, Fetch):
            coming.add(step.value)
        else:
            needs = coming & ({step.value} if isinstance(step, Free) else set(graph.ops[step.op].inputs))
            held -= sum(graph.values[v].bytes for v in needs)
            coming -= needs
        most = max(most, held)
    judged = simulate(graph, schedule)
    assert (judged.host_bytes, judged.moved_bytes) == (most, moved)
    assert schedule.moves == any(isinstance(step, Offload) for step in schedule.steps)


def test_a_copy_by_hand() -> None:
    """The copy out takes 4 s and begins with the second op; the free waits for it, and the copy back takes 2 s more."""
    judged = simulate(small(), Schedule(AWAY, small().hash))
    assert judged.begins is not None
    assert judged.begins.tolist() == [0, 1, 1, 5, 5, 7, 8]
    assert (judged.seconds, judged.overhead) == (8.0, pytest.approx(5 / 3))
    assert judged.memory.tolist() == [108, 108, 118, 104, 112, 112, 104]
    assert (judged.peak_bytes, judged.peak_step, judged.host_bytes, judged.moved_bytes) == (118, 2, 8, 8)
    assert simulate(small(), Schedule(AWAY, small().hash), "flops").overhead == 0.0
    one_way = small(Link(2.0, 4.0, 0.5, both_at_once=False))
    assert simulate(one_way, Schedule(AWAY, small().hash)).seconds == 9.0


@pytest.mark.parametrize(
    ("steps", "step"),
    [
        ((Offload(0), *AWAY), 0),  # an input is the caller's
        ((Offload(1), *AWAY), 0),  # not made yet
        ((*AWAY, Offload(1)), 7),  # freed
        ((*AWAY[:2], Offload(1), *AWAY[2:]), 2),  # the host has a copy already
        ((*AWAY[:2], Fetch(1), *AWAY[2:]), 2),  # live
        ((*AWAY[:5], Fetch(1), *AWAY[5:]), 5),  # fetched already
        ((Fetch(1), *AWAY), 0),  # never copied
        ((*AWAY, Fetch(1)), 7),  # the host's copy ended with the first fetch
        ((*AWAY[:4], *AWAY[5:]), 4),  # reads what is away
        ((*AWAY[:2], Free(1), Run(1)), 3),
        ((*AWAY, Offload(3), Free(3)), 9),  # to be kept on the device
    ],
)
def test_both_judges_refuse_copies_that_cannot_be(steps: tuple[Step, ...], step: int) -> None:
    schedule = Schedule(steps, small().hash)
    with pytest.raises(FormatError, match=f"step {step} "):
        simulate(small(), schedule)
    with pytest.raises(FormatError):
        simulate_plain(small(), schedule)


@given(st.data())
def test_both_judges_refuse_the_same_copies(data: st.DataObject) -> None:
    """A valid schedule with a step left out, doubled or moved is judged the same, or refused by both."""
    graph = data.draw(linked(graphs()))
    steps = list(data.draw(copied_schedules(graph)).steps)
    assume(steps)
    at = data.draw(st.integers(0, len(steps) - 1))
    step = steps.pop(at)
    for _ in range(data.draw(st.integers(0, 2))):
        steps.insert(data.draw(st.integers(0, len(steps))), step)
    schedule = Schedule(steps, graph.hash)
    both_agree(graph, schedule)


def test_a_graph_without_a_link_has_no_copies() -> None:
    with pytest.raises(FormatError, match="give the graph a link"):
        simulate(small(None), Schedule(AWAY, small().hash))


@pytest.mark.parametrize("step", [Offload(4), Offload(-1), Fetch(4), Fetch(-1)])
def test_copies_of_values_out_of_range_are_refused(step: Step) -> None:
    with pytest.raises(FormatError, match="names a value"):
        simulate(small(), Schedule((*AWAY, step), small().hash))


def test_rows_and_words_of_copies() -> None:
    made = Schedule(AWAY, "hash", "hand")
    assert made.array[:, 0].tolist() == [0, 2, 0, 1, 3, 0, 1]
    assert Schedule.from_array(made.array, "hash", "hand").steps == AWAY
    assert repr(made) == "Schedule('hand', 3 runs, 2 frees, 2 copies)"
    assert made.runs == [0, 1, 2]


@pytest.mark.parametrize(
    "link", [Link(0.0, 1.0), Link(1.0, -1.0), Link(1.0, inf), Link(float("nan"), 1.0), Link(1.0, 1.0, -1.0), (1.0, 2.0)]
)
def test_what_is_no_link_is_refused(link: Link) -> None:
    with pytest.raises(FormatError):
        small(link)


# -- where copies are put --------------------------------------------------------------------------------------------------
@given(st.data())
def test_copies_that_are_put_in_keep_the_room_and_the_judge_says_their_seconds(data: st.DataObject) -> None:
    graph = data.draw(linked(graphs()))
    plain = data.draw(schedules(graph))
    memory = simulate(graph, plain).memory[plain.array[:, 0] == RUN]
    assume(len(memory))
    copying = Copying(graph, plain, memory)
    room = data.draw(st.integers(copying.least_room, max(int(memory.max()), copying.least_room)))
    host_bytes = data.draw(st.sampled_from([inf, 200.0, 64.0, 0.0]))
    found = copying.within(room, host_bytes)
    if found is None:
        return
    judged = simulate(graph, found)
    assert judged.peak_bytes <= room
    assert judged.host_bytes <= host_bytes
    assert judged.seconds >= simulate(graph, plain).seconds
    assert found.runs == plain.runs
    assert Schedule([s for s in found.steps if isinstance(s, Run)], "").steps == tuple(
        s for s in plain.steps if isinstance(s, Run)
    )
    again = copying.within(room, host_bytes, judged.seconds)
    assert again == found, "its seconds are the judge's"
    shorter = copying.within(room, host_bytes, judged.seconds - 1e-6)
    assert shorter is None


@given(st.data())
def test_any_choice_of_gaps_makes_a_valid_schedule(data: st.DataObject) -> None:
    graph = data.draw(linked(graphs()))
    plain = data.draw(schedules(graph))
    memory = simulate(graph, plain).memory[plain.array[:, 0] == RUN]
    copying = Copying(graph, plain, memory)
    gaps = copying.gaps
    count = len(gaps.value)
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    room = data.draw(st.integers(graph.resident_bytes, int(memory.max(initial=graph.resident_bytes))))
    assert graph.link is not None
    rows, seconds, left = copies.place(
        plain.array, gaps, chosen, memory, room, graph.weights(), graph.link.rates, graph.arrays
    )
    assert not (left & ~chosen).any()
    if seconds == inf:
        return
    found = Schedule.from_array(rows, graph.hash, "placed")
    judged = simulate(graph, found)
    assert judged.peak_bytes <= max(room, graph.resident_bytes)
    assert kernel.clock(rows, graph.weights(), graph.link.rates, graph.arrays)[1] == seconds
    assert found.runs == plain.runs
    assert (rows[:, 0] == OFFLOAD).sum() >= left.sum()
    assert judged.host_bytes >= max((graph.values[v].bytes for v in gaps.value[left].tolist()), default=0)


@given(st.data())
def test_gaps_are_the_runs_between_two_uses(data: st.DataObject) -> None:
    """Against a walk over the steps: within a gap the value is live, and no run reads, makes or overwrites it."""
    graph = data.draw(graphs())
    plain = data.draw(schedules(graph))
    rows = copies.gaps(plain.array, graph.arrays.producer >= 0, graph.arrays).tolist()
    expected: list[list[int]] = []
    used: dict[int, int] = {}
    for k, op in enumerate(graph.ops[i] for i in plain.runs):
        expected += [[v, used[v], k] for v in dict.fromkeys(op.inputs) if used.get(v, k) < k - 1]
        used |= {v: k for v in (*op.inputs, *op.outputs) if graph.arrays.producer[v] >= 0}
    assert sorted(rows) == sorted(expected)
    assert [row[2] for row in rows] == sorted(row[2] for row in rows)


@examples(100)
@given(graph=linked(chains()))
def test_a_link_without_end_hides_every_copy(graph: Graph) -> None:
    """Where copies take no time, the plain run sequence reaches its least room without a wait."""
    graph = replace(graph, link=Link(1e18, 1e18))
    plain = Schedule.baseline(graph)
    memory = simulate(graph, plain).memory[plain.array[:, 0] == RUN]
    copying = Copying(graph, plain, memory)
    found = copying.within(copying.least_room, inf)
    assert found is not None
    judged = simulate(graph, found)
    assert judged.peak_bytes <= copying.least_room
    assert judged.seconds == pytest.approx(simulate(graph, plain).seconds, rel=1e-12)
