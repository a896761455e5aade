"""The fields that describe an op: files carry them, old files of traced graphs get them from names, hashes ignore them."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.errors import FormatError
from rekindle.model import formats
from rekindle.model.graph import BOUNDARY, DESCRIBING, KINDS, OPERATOR, Graph, Op, Value
from rekindle.model.op_names import traced_name
from rekindle.planning import registry
from rekindle.problem import Problem
from strategies import dags, graphs, joint_graphs, u_nets

modules = st.sampled_from(["", "stem", "layer.0.conv", "layer.0", "layer.1.conv", "layer.1", "head"])
shapes = st.sampled_from(["", "f32[2,3]", "i64[]"])


@st.composite
def traced(draw: st.DrawFn, plain: st.SearchStrategy[Graph]) -> Graph:
    """A graph with the names and fields that tracing gives its ops."""

    def named(op: Op) -> Op:
        if op.name == BOUNDARY:
            return replace(op, kind=BOUNDARY)
        kind = draw(st.sampled_from([k for k in KINDS if k != BOUNDARY]))
        target = draw(st.sampled_from(["aten.mm.default", "mine.op.default"])) if kind == OPERATOR else ""
        module, shape = draw(modules), draw(shapes)
        name = traced_name(kind, module, target, shape)
        return replace(op, name=name, module=module, kind=kind, target=target, shape=shape)

    graph = draw(plain)
    return replace(graph, ops=tuple(named(op) for op in graph.ops))


def written(graph: Graph) -> dict[str, Any]:
    doc: dict[str, Any] = json.loads(json.dumps(formats.graph_to_json(graph)))
    return doc


def as_before(doc: dict[str, Any]) -> dict[str, Any]:
    """The document as versions without the fields wrote it."""
    return doc | {"ops": [{k: x for k, x in op.items() if k not in DESCRIBING} for op in doc["ops"]]}


@given(traced(graphs()))
def test_a_file_carries_what_ops_are(graph: Graph) -> None:
    again = formats.graph_from_json(written(graph))
    assert again == graph
    assert again.hash == graph.hash


@given(traced(graphs()))
def test_an_old_file_of_a_traced_graph_gets_the_fields_from_names(graph: Graph) -> None:
    again = formats.graph_from_json(as_before(written(graph)))
    assert again.hash == graph.hash
    if any(op.name != BOUNDARY for op in graph.ops):
        assert again == graph


@given(graphs())
def test_graphs_made_by_hand_stay_as_they_are(graph: Graph) -> None:
    doc = written(graph)
    assert doc == as_before(doc), 'fields that are "" are left out'
    assert formats.graph_from_json(doc) == graph


@given(traced(graphs()), st.data())
def test_hashes_are_made_of_names_alone(graph: Graph, data: st.DataObject) -> None:
    other = replace(graph, ops=tuple(replace(op, **dict.fromkeys(DESCRIBING, "")) for op in graph.ops))
    assert other.hash == graph.hash
    one = replace(graph.ops[0], name="another")
    assert replace(graph, ops=(one, *graph.ops[1:])).hash != graph.hash


@pytest.mark.parametrize(("solver", "effort"), [("every", 1.0), ("storages", 1e-4), ("hierarchical", 1.0)])
@given(data=st.data())
@settings(max_examples=20)
def test_old_files_get_the_same_plans(solver: str, effort: float, data: st.DataObject) -> None:
    graph = data.draw(traced(st.one_of(joint_graphs(), u_nets())))
    old = formats.graph_from_json(as_before(written(graph)))
    limit = data.draw(st.one_of(st.none(), st.integers(0, 400)))
    found, again = (
        [s.runs for s in registry.get(solver).solve(Problem(g, g.weights(), limit, effort=effort))]
        for g in (graph, old)
    )
    assert found == again


@pytest.mark.parametrize("solver", ["every", "hierarchical"])
@given(data=st.data())
@settings(max_examples=20)
def test_plans_of_graphs_made_by_hand_do_not_depend_on_the_words_of_their_names(
    solver: str, data: st.DataObject
) -> None:
    graph = data.draw(st.one_of(joint_graphs(), u_nets()))
    other = replace(
        graph, ops=tuple(op if op.name == BOUNDARY else replace(op, name=f"layer.{i}.{op.name}") for i, op in
                         enumerate(graph.ops))
    )  # fmt: skip
    runs = [[s.runs for s in registry.get(solver).solve(Problem(g, g.weights(), None))] for g in (graph, other)]
    assert runs[0] == runs[1]


@given(traced(dags()), st.data())
def test_other_fields_are_refused(graph: Graph, data: st.DataObject) -> None:
    doc = written(graph)
    op, key = data.draw(st.sampled_from(doc["ops"])), data.draw(st.sampled_from(DESCRIBING))
    op[key] = data.draw(st.sampled_from([None, 3, True, ["aten"], {}]))
    with pytest.raises(FormatError, match=f"'{key}' should be a string"):
        formats.graph_from_json(doc)
    op |= {"kind": "something"} | ({key: "x"} if key != "kind" else {})
    with pytest.raises(FormatError, match="op .* is of kind 'something'; the kinds are aten, boundary"):
        formats.graph_from_json(doc)


def test_fields_are_checked_when_a_graph_is_made_by_hand() -> None:
    for field in DESCRIBING:
        with pytest.raises(FormatError, match=f"'{field}' should be a string, not 3"):
            Graph((Value(1),), (Op("f", (), (0,), **{field: 3}),), (0,))  # type: ignore[arg-type]


def test_positions_of_the_other_fields_stay() -> None:
    assert [f.name for f in fields(Op)][:9] == [
        "name", "inputs", "outputs", "seconds", "flops", "workspace", "backward", "recompute", "inplace",
    ]  # fmt: skip
    assert [f.name for f in fields(Op) if f.kw_only] == [*DESCRIBING, "source"]


def test_the_source_line_is_written_and_read_and_says_nothing_about_the_op() -> None:
    op = Op("f", (), (0,), module="m", source="models/net.py:8")
    graph, other = (Graph((Value(1),), (o,), (0,)) for o in (op, replace(op, source="")))
    assert graph == other
    assert graph.hash == other.hash
    doc = formats.graph_to_json(graph)
    assert formats.graph_from_json(doc).ops[0].source == "models/net.py:8"
    assert "source" not in formats.graph_to_json(other)["ops"][0]
    doc["ops"][0]["source"] = 8
    with pytest.raises(FormatError, match="'source' should be a string"):
        formats.graph_from_json(doc)


OLD_FILE = """{"format": "rekindle.graph/1", "name": "old", "values": [{"bytes": 4}, {"bytes": 8}, {"bytes": 8}, {"bytes": 0}],
 "ops": [{"name": "l.0|aten.relu.default|f32[2]", "inputs": [0], "outputs": [1]},
         {"name": "boundary", "inputs": [1], "outputs": [2], "recompute": false},
         {"name": "l.0.weight|accumulate|", "inputs": [2], "outputs": [3], "backward": true, "recompute": false}],
 "keep": [3], "resident_bytes": 4}"""


def test_a_file_of_an_earlier_version() -> None:
    graph = formats.graph_from_json(json.loads(OLD_FILE))
    assert graph.hash == "d14d80a47a7ea8486a88ba04211cdf3745f13940726fbdbfb9dab0c6a0407964"
    assert [(o.module, o.kind, o.target, o.shape) for o in graph.ops] == [
        ("l.0", "aten", "aten.relu.default", "f32[2]"), ("", "boundary", "", ""), ("l.0.weight", "accumulate", "", ""),
    ]  # fmt: skip
    assert [o.signature for o in graph.ops][1:] == [("boundary", "", ""), ("accumulate", "", "")]
