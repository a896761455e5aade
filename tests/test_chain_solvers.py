"""Stages of any graph, and the single-level solvers on them, against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rekindle.graph import Graph
from rekindle.schedule import Schedule
from rekindle.simulate import simulate
from rekindle.structure.chain import Chain, chain_of, segmented
from rekindle.structure.runs import prune
from strategies import graphs, run_sequences


# -- runs ------------------------------------------------------------------------------------------------------------
@given(st.data(), graphs())
def test_pruned_runs_are_valid_and_each_is_needed(data: st.DataObject, graph: Graph) -> None:
    runs = data.draw(run_sequences(graph, max_extra=12))
    extra = data.draw(st.lists(st.sampled_from(runs), max_size=4)) if runs else []  # repeats, forbidden ones too
    kept = prune(graph, runs + extra)
    before = simulate(graph, Schedule.from_runs(graph, runs))
    after = simulate(graph, Schedule.from_runs(graph, kept))
    assert after.peak_bytes <= before.peak_bytes or extra
    assert (after.runs <= before.runs + np.bincount(extra, minlength=len(graph.ops))).all()
    assert prune(graph, kept) == kept
    for i, op in enumerate(kept):
        outputs = set(graph.ops[op].outputs)
        read_later = any(not outputs.isdisjoint(graph.ops[o].inputs) for o in kept[i + 1 :])
        assert read_later or not outputs.isdisjoint(graph.keep)


# -- stages ----------------------------------------------------------------------------------------------------------
@st.composite
def cut_chains(draw: st.DrawFn, shapes: st.SearchStrategy[Graph]) -> tuple[Chain, list[int]]:
    chain = chain_of(draw(shapes.filter(lambda g: chain_of(g) is not None)), draw(st.sampled_from([None, 2, 3])))
    assert chain is not None
    cuts = draw(st.lists(st.integers(1, chain.turn), unique=True)) if chain.turn else []
    return chain, sorted(cuts)


@given(cut_chains(graphs()), st.booleans())
def test_any_segments_of_any_graph_are_a_valid_schedule(drawn: tuple[Chain, list[int]], last_again: bool) -> None:
    chain, cuts = drawn
    judged = simulate(chain.graph, chain.lower(segmented(chain.turn, cuts, last_again), "test"))
    assert judged.runs.max(initial=0) <= 2
    assert (judged.runs[~chain.graph.needed] == 0).all()
    if not cuts and not last_again:
        assert judged.overhead == 0


@given(graphs())
def test_every_needed_op_is_in_one_stage(graph: Graph) -> None:
    chain = chain_of(graph)
    if chain is not None:
        ops = sorted(o for side in (chain.forward, chain.backward) for stage in side for o in stage)
        assert ops == np.flatnonzero(graph.needed).tolist()
