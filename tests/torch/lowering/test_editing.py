"""Edits of a captured step: the original stays, views follow their base, and first runs write what they wrote before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rekindle
from rekindle.torch.lowering.editing import Editor
from rekindle.torch.operators.node_tensors import storage_bytes
from rekindle.torch.rewrite.rewritten import with_captured
from rekindle.torch.trace import Trace

aten = torch.ops.aten


def traced(*layers: nn.Module) -> Trace:
    torch.manual_seed(0)
    return rekindle.trace(nn.Sequential(*layers), torch.rand(4, 3, 8, 8), progress=False)


def test_the_first_run_of_a_batch_norm_reads_what_takes_the_place_of_its_input() -> None:
    trace = traced(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    edit = Editor(trace.lowered.captured)
    c = edit.captured
    convolution = next(n for n in c.nodes if n.target is aten.convolution.default)
    norm = next(n for n in c.writing if convolution in n.all_input_nodes)
    with edit.at_work():
        copy = edit.call(aten.clone.default, (convolution,), convolution, (*edit.place(convolution), 1.0))
        edit.replace(convolution, copy)
        copy.update_arg(0, convolution)
    assert norm.args[0] is copy
    assert c.writing[norm].args[0] is copy


def test_the_original_stays_as_it_was_and_an_empty_edit_gives_the_same_graph() -> None:
    trace = traced(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten())
    before = [(n.name, n.target, n.args) for n in trace.lowered.captured.nodes]
    edit = Editor(trace.lowered.captured)
    made = with_captured(trace, edit.finish())
    assert made.graph.hash == trace.graph.hash
    assert [(n.name, n.target, n.args) for n in trace.lowered.captured.nodes] == before


def test_views_of_what_was_replaced_are_views_of_what_took_its_place() -> None:
    trace = traced(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    edit = Editor(trace.lowered.captured)
    relu = next(n for n in edit.captured.nodes if n.target is aten.relu.default)
    with edit.at_work():
        other = edit.call(aten.clamp_min.default, (relu.args[0], 0), relu, edit.place(relu))
        edit.replace(relu, other)
    c = edit.finish()
    assert relu not in c.nodes
    memory = other.meta["val"].untyped_storage()._cdata
    views = [n for n in c.nodes if n.target is aten.view.default and storage_bytes(n.meta["val"]) == 4 * 4 * 36 * 4]
    assert views
    assert any(n.meta["val"].untyped_storage()._cdata == memory for n in views)


def test_a_cycle_is_refused() -> None:
    trace = traced(nn.Conv2d(3, 4, 3), nn.ReLU())
    edit = Editor(trace.lowered.captured)
    relu = next(n for n in edit.captured.nodes if n.target is aten.relu.default)
    relu.args[0].update_arg(0, relu)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="cycle"):
        edit.finish()
