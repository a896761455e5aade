"""The judge: the compiled one and the readable one say the same of everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plain_judge import both_agree, simulate_plain
from rekindle.errors import FormatError, UsageError
from rekindle.model.graph import Graph, Op, Value
from rekindle.model.judge import simulate
from rekindle.model.schedule import Free, Run, Schedule
from strategies import doubtful_schedules, graphs, run_sequences, schedules


def small() -> Graph:
    """a (input, 1) -> b (10) -> c (4), which is kept; op 1 may write over b."""
    ops = (Op("f", (0,), (1,), seconds=1.0), Op("g", (1,), (2,), seconds=2.0, workspace=3, inplace=(1,)))
    return Graph((Value(1), Value(10), Value(4)), ops, (2,), resident_bytes=100, name="small")


@given(st.data())
def test_both_judges_agree_on_valid_schedules(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    judged = simulate(graph, schedule)
    assert (judged.peak_bytes, judged.seconds) == simulate_plain(graph, schedule)


@given(st.data())
def test_both_judges_refuse_the_same_schedules(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(doubtful_schedules(graph))
    both_agree(graph, schedule)


@given(st.data())
def test_any_sensible_run_sequence_becomes_a_valid_schedule(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    runs = data.draw(run_sequences(graph))
    peaks = []
    for inplace in (True, False):
        schedule = Schedule.from_runs(graph, runs, inplace=inplace)
        assert schedule.runs == runs
        judged = simulate(graph, schedule)
        assert judged.runs.tolist() == [runs.count(i) for i in range(len(graph.ops))]
        peaks.append(judged.peak_bytes)
    assert peaks[0] <= peaks[1], "writing in place never holds more"


@given(st.data())
def test_dropping_a_free_never_lowers_the_peak(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = Schedule.from_runs(graph, data.draw(run_sequences(graph)))
    peak = simulate(graph, schedule).peak_bytes
    frees = [i for i, step in enumerate(schedule.steps) if isinstance(step, Free)]
    assume(frees)
    for i in frees:
        held_longer = Schedule(schedule.steps[:i] + schedule.steps[i + 1 :], graph.hash)
        assert simulate(graph, held_longer).peak_bytes >= peak


@given(st.data())
def test_the_figures_of_a_simulation_fit_together(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    judged = simulate(graph, schedule)
    assert len(judged.memory) == len(schedule.steps)
    assert judged.memory.min(initial=graph.resident_bytes) >= graph.resident_bytes
    if schedule.steps:
        assert judged.memory[judged.peak_step] == judged.peak_bytes
        assert isinstance(schedule.steps[judged.peak_step], Run)
    assert judged.overhead >= 0 or not graph.needed.any()
    assert simulate(graph, Schedule.baseline(graph)).overhead == 0


def test_peak_by_hand() -> None:
    graph = small()
    over = simulate(graph, Schedule((Run(0), Run(1, into=1)), graph.hash))
    assert (over.peak_bytes, over.seconds) == (113, 3.0)
    beside = simulate(graph, Schedule((Run(0), Run(1), Free(1)), graph.hash))
    assert (beside.peak_bytes, beside.memory.tolist()) == (117, [110, 117, 104])
    again = simulate(graph, Schedule((Run(0), Run(0), Run(1), Free(1)), graph.hash))
    assert (again.peak_bytes, again.seconds, again.overhead) == (120, 4.0, pytest.approx(1 / 3))


@pytest.mark.parametrize(
    "steps",
    [
        (Run(1),),  # reads what is not there
        (Run(0), Free(1), Run(1)),
        (Run(0), Free(1), Free(1)),
        (Free(0), Run(0), Run(1)),  # an input is the caller's
        (Run(0), Run(1, into=0)),
        (Run(0, into=1), Run(1)),
        (Run(0), Run(1, into=-1)),
        (Run(0), Run(1), Free(2)),  # to be kept
        (),
    ],
)
def test_both_judges_refuse(steps: tuple[Run | Free, ...]) -> None:
    graph = small()
    schedule = Schedule(steps, graph.hash)
    for judge in (simulate, simulate_plain):
        with pytest.raises(FormatError):
            judge(graph, schedule)


@pytest.mark.parametrize("step", [Run(2), Run(-1), Free(3), Free(-1), Run(1, into=3), Run(1, into=-7)])
def test_ids_out_of_range_are_refused(step: Run | Free) -> None:
    graph = small()
    with pytest.raises(FormatError):
        simulate(graph, Schedule((Run(0), step, Run(1)), graph.hash))


@given(graph=graphs())
def test_rows_and_steps_are_the_same_schedule(graph: Graph) -> None:
    lowered = Schedule.baseline(graph)
    written = Schedule(lowered.steps, lowered.graph_hash, lowered.solver)
    assert written == lowered
    assert hash(written) == hash(lowered)
    assert np.array_equal(written.array, lowered.array)
    assert written.runs == lowered.runs
    assert written != Schedule(lowered.steps, lowered.graph_hash, "another")


def test_rows_name_every_value_that_is_written_into() -> None:
    steps = (Run(0), Run(1, into=0), Run(2, into=3), Free(0), Run(3, into=-7))
    rows = [[0, 0, -1], [0, 1, 0], [0, 2, 3], [1, 0, -1], [0, 3, -2]]
    made = Schedule(steps, "hash", "hand")
    assert made.array.tolist() == rows
    assert Schedule.from_array(np.array(rows[:4], np.int64), "hash", "hand").steps == steps[:4]
    assert repr(made) == "Schedule('hand', 4 runs, 1 frees)"
    assert Schedule((), "hash").array.shape == (0, 3)


@pytest.mark.parametrize("steps", [3, None, [Run(0), "run"], [0]])
def test_what_is_no_step_is_refused(steps: object) -> None:
    with pytest.raises(UsageError, match="is no step"):
        Schedule(steps, "hash")  # type: ignore[arg-type]


def test_an_op_that_may_not_run_twice() -> None:
    graph = Graph((Value(1),), (Op("once", (), (0,), recompute=False),), (0,))
    twice = Schedule((Run(0), Run(0)), graph.hash)
    for judge in (simulate, simulate_plain):
        with pytest.raises(FormatError):
            judge(graph, twice)


def test_a_schedule_for_another_graph_is_refused() -> None:
    with pytest.raises(FormatError, match="another|is for graph"):
        simulate(small(), Schedule((Run(0), Run(1)), "0" * 64))
