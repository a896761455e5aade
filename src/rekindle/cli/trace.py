"""The command `trace`: a model's training step as a graph file, which `solve` and `frontier` read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..model.formats import graph_to_json, write_json
from ..model.judge import simulate
from ..model.schedule import Schedule
from ..printed import name
from ..saying.progress import telling
from ..show.text import graph_table
from .answer import Answer, Whole
from .models import file_of, trace_model
from .options import Batch, Gradients, Json, Model, Out, Target, Unused, check_writable

if TYPE_CHECKING:
    from ..model.graph import Graph

Optimizer = Annotated[
    str | None, typer.Option(metavar="NAME", help="Count the state of this optimizer too: adamw, adam, sgd, …")
]


def trace(
    model: Model,
    batch: Batch = None,
    target: Target = None,
    optimizer: Optimizer = None,
    unused: Unused = None,
    gradients: Gradients = "kept",
    out: Out = None,
    json: Json = False,
) -> Answer:
    """Capture a model's training step. --out writes the graph, which `solve` and `frontier` read without PyTorch."""
    check_writable(out, reads=[file_of(model)])
    with telling(None):
        graph = trace_model(model, batch, target, optimizer, unused or (), gradients).graph
    if out is not None:
        write_json(out, graph_to_json(graph))
    wrote = [] if out is None else [Whole(f"wrote {name(str(out))}")]
    figures = graph_figures(graph)
    return Answer(figures, lambda: [graph_table(figures), "", *wrote])


def graph_figures(graph: Graph) -> dict[str, Any]:
    """The figures of a step that recomputes nothing, by name."""
    plain = simulate(graph, Schedule.baseline(graph))
    return {
        "name": graph.name, "graph_hash": graph.hash, "ops": len(graph.ops), "values": len(graph.values),
        "resident_bytes": graph.resident_bytes, "baseline_peak_bytes": plain.peak_bytes,
        "baseline_activation_bytes": graph.beside_resident(plain.peak_bytes), "seconds": plain.seconds, "flops": plain.flops,
    }  # fmt: skip
