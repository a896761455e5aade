"""Every accounting of memory in the package against the judge's plain Python, on the same sequences of runs.

Searches cannot afford to ask the judge, so several of them count memory on their own. Each is driven here through its own
interface. These count exactly: the compiled judge, the scan of `kernels.modes`, the lives of `kernels.arena` (without
writes in place), the annealer's tree, the beam's walk, the exact search's walk over needed sets, the look-ahead's walk, and
the working set of one op. These are documented bounds: lives with writes in place, the exact search that leaves out the
least values, the reduced problem, and the certified bounds.

Not here, because no sequence of runs can be handed to them: the linear programs (see test_checkmate and test_bounds), the
simulation of `dtr` (test_dtr), the stages of chains (test_chain_solvers), and the peak of a loop that holds its results
(test_budget_kept).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packed import packed
from plain_judge import simulate_plain
from rekindle import bounds
from rekindle.bounds.ahead import _Looks
from rekindle.exact.needed import Needed
from rekindle.kernels import arena, beam, needed, sequence, slots
from rekindle.model.arena import live_peak
from rekindle.model.floor import working_set
from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.model.judge import simulate
from rekindle.model.schedule import Free, Run, Schedule, Step
from rekindle.solvers.beam import network
from rekindle.structure.archive import peak_of
from rekindle.structure.reduced import Reduced
from strategies import examples, graphs, run_sequences


@st.composite
def overwriting(draw: st.DrawFn) -> Graph:
    """A graph in which many ops may write over their inputs, also over what the boundary reads or makes.

    One op has so much workspace that the peak is where it runs: any run may decide the peak, not the largest alone.
    """
    graph = draw(graphs())
    heavy = draw(st.integers(0, len(graph.ops) - 1))
    values = tuple(Value(8) for _ in graph.values) if draw(st.booleans()) else graph.values
    ops = []
    for i, op in enumerate(graph.ops):
        over = tuple(dict.fromkeys(op.inputs)) if op.outputs else ()
        over = over if i == heavy else tuple(v for v in over if draw(st.booleans()))
        ops.append(replace(op, inplace=over, workspace=op.workspace + 1000 * (i == heavy)))
    return replace(graph, values=values, ops=tuple(ops))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, list[int]]:
    """A graph and runs of it that make all that is to be kept; ops that nothing needs run too, now and then."""
    graph = draw(overwriting())
    return graph, draw(run_sequences(graph))


def plain(graph: Graph, runs: list[int], inplace: bool = True) -> int:
    """Peak bytes by the judge's plain Python, without the resident bytes."""
    return simulate_plain(graph, Schedule.from_runs(graph, runs, inplace=inplace))[0] - graph.resident_bytes


def kept_bytes(graph: Graph) -> int:
    """Bytes of what must be live at the end, without the caller's inputs."""
    return int(graph.arrays.bytes[graph.arrays.keep].sum())


@examples(400)
@given(cases())
def test_the_compiled_judge(case: tuple[Graph, list[int]]) -> None:
    graph, runs = case
    schedule = Schedule.from_runs(graph, runs)
    assert simulate(graph, schedule).peak_bytes == simulate_plain(graph, schedule)[0]


def of_the_scan(graph: Graph, runs: list[int]) -> int:
    """As `kernels.modes.peak` counts."""
    return peak_of(graph.arrays, graph.shared, np.array(runs, np.int64))


@examples(400)
@given(cases())
def test_the_backward_scan(case: tuple[Graph, list[int]]) -> None:
    assert of_the_scan(*case) == plain(*case)


@examples(400)
@given(cases())
def test_lives_in_one_block(case: tuple[Graph, list[int]]) -> None:
    """Exact without writes in place. With them a smaller output keeps the whole room of the input that it is written over."""
    graph, runs = case

    def most(inplace: bool) -> int:
        first, last, size, _ = arena.lives(Schedule.from_runs(graph, runs, inplace=inplace).array, graph.arrays).T
        return live_peak(first, last, size) if len(size) else 0

    assert most(inplace=False) == plain(graph, runs, inplace=False)
    over = [s for s in Schedule.from_runs(graph, runs).steps if isinstance(s, Run) and s.into is not None]
    same = all(graph.values[graph.ops[s.op].outputs[0]] == graph.values[s.into] for s in over if s.into is not None)
    assert most(inplace=True) == plain(graph, runs) if same else most(inplace=True) >= plain(graph, runs)


def of_the_tree(graph: Graph, runs: list[int]) -> int:
    """As the annealer's tree counts."""
    return int(sequence.build(np.array(runs, np.int64), packed(graph)).tree[1, slots.MOST])


@examples(400)
@given(cases())
def test_the_tree_of_the_annealer(case: tuple[Graph, list[int]]) -> None:
    """Between runs it counts what is kept to the end as well, which only a step without runs holds more than its runs."""
    assert of_the_tree(*case) == max(plain(*case), kept_bytes(case[0]))


def of_the_beam(graph: Graph, runs: list[int]) -> int:
    """As the beam counts, walking back from the end."""
    net = network(graph, graph.weights(), 0.0)
    live = graph.arrays.keep & (graph.arrays.producer >= 0)
    held, key, most = kept_bytes(graph), np.uint64(0), 0
    flipped = np.empty(1 + len(graph.values) * 2, np.int64)
    for q in reversed(runs):
        most = max(most, int(beam.during(live, held, q, net)))
        held, key, _ = beam.undo(live, held, key, q, net, flipped, 0)
    assert held == 0
    assert not live.any()
    return most


@examples(400)
@given(cases())
def test_the_walk_of_the_beam(case: tuple[Graph, list[int]]) -> None:
    assert of_the_beam(*case) == plain(*case)


def walk_of_the_exact_search(model: Needed, runs: list[int]) -> int:
    """Most that the runs of needed ops hold, in the model's units."""
    low, high = model.start
    held, most = model.held(model.start), 0
    for k in reversed(runs):
        during, held = needed._undo(k, low, high, held, model.arrays)
        most = max(most, int(during))
        low = (low & ~model.makes[k, 0]) | model.reads[k, 0]
        high = (high & ~model.makes[k, 1]) | model.reads[k, 1]
    assert held == low == high == 0
    return most


@examples(400)
@given(cases(), st.booleans(), st.sampled_from([0.05, 0.3]))
def test_the_walk_of_the_exact_search(case: tuple[Graph, list[int]], safe: bool, drop: float) -> None:
    """Exact in multiples of its unit, for the schedule that it makes of the runs; a bound where it drops the least values."""
    graph, ran = case
    model = Needed(graph, graph.weights(), safe)
    runs = [model.ops.index(o) for o in ran if graph.needed[o]]
    judged = simulate_plain(graph, model.schedule(runs, "exact"))[0] - graph.resident_bytes
    assert walk_of_the_exact_search(model, runs) * model.unit == judged
    coarse = Needed(graph, graph.weights(), safe, drop)
    assert walk_of_the_exact_search(coarse, runs) * coarse.unit <= judged


@examples(400)
@given(cases())
def test_the_walk_of_the_look_ahead(case: tuple[Graph, list[int]]) -> None:
    graph, ran = case
    looks, runs = _Looks(graph), [o for o in ran if graph.needed[o]]
    live = frozenset(v for v in graph.keep if graph.arrays.producer[v] >= 0)
    held, most = kept_bytes(graph), 0
    for q in reversed(runs):
        during, held, live = looks._undo(q, live, live.difference(graph.ops[q].outputs), held)
        most = max(most, during)
    model = Needed(graph, graph.weights())
    schedule = model.schedule([model.ops.index(o) for o in runs], "exact")
    assert most == simulate_plain(graph, schedule)[0] - graph.resident_bytes
    assert held == 0
    assert not live


@examples(400)
@given(overwriting(), st.data())
def test_the_working_set_of_one_op(graph: Graph, data: st.DataObject) -> None:
    """What the op holds in a step of its own, in which other ops make its inputs for nothing."""
    i = data.draw(st.integers(0, len(graph.ops) - 1))
    op, a = graph.ops[i], graph.arrays
    made = [v for v in dict.fromkeys(op.inputs) if a.producer[v] >= 0]
    alone = Graph(graph.values, (*(Op("make", (), (v,)) for v in made), op), op.outputs[:1])
    into = next((v for v in op.inplace if v in made and a.bytes[v] >= a.bytes[op.outputs[0]]), None)
    steps: list[Step] = [*(Run(k) for k in range(len(made))), Run(len(made), into)]
    steps += [Free(v) for v in (*made, *op.outputs[1:]) if v != into]
    assert working_set(graph, i) == simulate_plain(alone, Schedule(steps, alone.hash))[0]


@examples(400)
@given(cases())
def test_the_reduced_problem(case: tuple[Graph, list[int]]) -> None:
    """What it leaves out only adds to the peak; where it leaves out no op, no byte is missing."""
    graph, runs = case
    reduced = Reduced(graph, negligible_share=0.0)
    found = peak_of(reduced.arrays, reduced.shared, reduced.reduced_runs(runs))
    assert found <= plain(graph, runs)
    if len(reduced.ops) == len(graph.ops):
        assert found == plain(graph, runs)


@examples(400)
@given(cases())
def test_certified_bounds_are_not_above_any_run(case: tuple[Graph, list[int]]) -> None:
    graph, runs = case
    peak = plain(graph, runs) + graph.resident_bytes
    once = float(graph.weights()[graph.needed].sum())
    overhead = float(graph.weights()[runs].sum()) / once - 1 if once else 0.0
    peak = max(peak, kept_bytes(graph) + graph.resident_bytes)
    assert bounds.single_op(graph).bytes <= bounds.look_ahead(graph).bytes <= peak
    if once:
        assert bounds.at_overhead(graph, graph.weights(), overhead).bytes <= peak


def test_an_output_smaller_than_the_input_that_it_overwrites() -> None:
    """The judge frees the difference; in one block it stays taken, as no storage can be made smaller in place."""
    ops = (Op("f", (), (0,)), Op("g", (0,), (1,), inplace=(0,)), Op("h", (1,), (2,)))
    graph = Graph((Value(10), Value(4), Value(8)), ops, (1, 2))
    first, last, size, _ = arena.lives(Schedule.baseline(graph).array, graph.arrays).T
    assert (plain(graph, [0, 1, 2]), live_peak(first, last, size)) == (12, 18)


def test_nothing_is_written_over_what_the_boundary_makes() -> None:
    """The caller may hold it; the judge alone, and the exact search where it is asked to, would allow it."""
    ops = (
        Op("f", (), (0,)),
        Op(BOUNDARY, (0,), (1,), recompute=False),
        Op("b", (1,), (2,), workspace=90, inplace=(1,)),
    )
    graph = Graph((Value(8), Value(8), Value(8)), ops, (2,))
    runs = [0, 1, 2]
    for count in (plain, of_the_scan, of_the_tree, of_the_beam):
        assert count(graph, runs) == 106
    for safe, expected in ((True, 106), (False, 98)):
        model = Needed(graph, graph.weights(), safe)
        assert walk_of_the_exact_search(model, runs) * model.unit == expected
