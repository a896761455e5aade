"""The commands `plan`, `frontier`, `solve` and `trace`. `solve` takes a graph file and imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from .. import api
from ..arguments import choice
from ..ask import EFFORTS, GRADIENTS, PARITIES, Goal, PlanOptions, TraceOptions
from ..errors import UsageError
from ..model.files import write_text
from ..model.formats import graph_to_json, write_json
from ..model.graph import COSTS, Graph
from ..model.judge import simulate
from ..model.plan import Plan, schedule_document
from ..model.schedule import Schedule
from ..parts.plan import PartsPlan
from ..planning import registry
from ..printed import name
from ..saying.progress import announce, telling
from ..saying.sizes import format_bytes
from ..show import text
from ..show.frontier_svg import frontier_svg
from ..show.timeline import memory_timeline
from .answer import Answer, Unbroken
from .models import file_of, is_graph_file, load_graph, load_model, trace_model
from .options import (
    OFFLOADS,
    Batch,
    Budget,
    Cache,
    Compile,
    Cost,
    Effort,
    Gradients,
    HostBudget,
    Html,
    Json,
    MaxOverhead,
    Minimize,
    Model,
    Offload,
    OptimizerName,
    OrLeast,
    Out,
    Parity,
    Seed,
    SolverName,
    Svg,
    Target,
    TimeLimit,
    Unused,
    among,
    check_writable,
    models,
    read_goal,
)

GraphFile = Annotated[Path, typer.Argument(metavar="GRAPH", help="A graph file, as `trace` writes it, or a plan file.")]
AnyModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="zoo:NAME, path/to/file.py:function, a graph file or a plan file.",
        autocompletion=among(models),
    ),
]


def plan(
    model: Model,
    budget: Budget = None,
    max_overhead: MaxOverhead = None,
    minimize: Minimize = None,
    or_least: OrLeast = False,
    offload: Offload = "no",
    host_budget: HostBudget = None,
    batch: Batch = None,
    solver: SolverName = "auto",
    cost: Cost = "seconds",
    effort: Effort = "normal",
    target: Target = None,
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    cache: Cache = True,
    parity: Parity = "bitwise",
    unused: Unused = None,
    gradients: Gradients = "kept",
    optimizer: OptimizerName = "none",
    compile: Compile = False,
    out: Out = None,
    svg: Svg = None,
    html: Html = None,
    json: Json = False,
) -> Answer:
    """Plan a model's training step for one goal: --budget, --max-overhead or --minimize memory.

    --out writes the plan as JSON, --html a report of it, --svg its memory over time. A budget below 1 is a share of the
    baseline's activation peak: the baseline runs each op once and keeps no value past its last use.
    """
    goal = read_goal(budget, max_overhead, minimize)
    _check(solver, cost, effort, (out, svg, html), file_of(model), parity, gradients)
    if compile and (svg or target):
        raise UsageError("--compile measures its parts here and has no one graph to draw; leave out --svg and --target")
    counted = None if optimizer.strip().lower() == "none" else optimizer
    asked: dict[str, Any] = {
        "max_overhead": max_overhead, "minimize": minimize, "solver": solver, "cost": cost, "effort": effort,
        "time_limit": time_limit, "seed": seed, "cache": cache, "parity": parity, "or_least": or_least,
        "offload": OFFLOADS[offload], "host_budget": host_budget, "gradients": gradients, "unused": unused or (),
    }  # fmt: skip
    with telling(None):
        made: Plan | PartsPlan
        if compile:
            announce(None, f"loading {model}")
            ready, sample = load_model(model, batch)
            made = cast(
                Any, api.checkpoint(ready, sample, budget, compile=True, optimizer=counted, **asked).forward
            ).plan
        else:
            traced = trace_model(model, batch, target, counted, unused=unused or (), gradients=gradients)
            made = api.plan(traced, budget, **asked)
        if out is not None:
            made.save(out)
        if html is not None:
            made.to_html(html)
    written = _write_timeline(made, goal, svg) if made.kind == "step" else None
    return Answer(made.figures(), lambda: [text.plan_table(made), "", made.sentence, *_wrote(out, html, written)])


def frontier(
    model: AnyModel,
    batch: Batch = None,
    solver: SolverName = "auto",
    cost: Cost = "seconds",
    effort: Effort = "normal",
    target: Target = None,
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    cache: Cache = True,
    parity: Parity = "bitwise",
    unused: Unused = None,
    gradients: Gradients = "kept",
    out: Out = None,
    svg: Svg = None,
    json: Json = False,
) -> Answer:
    """List the best plans of a model, graph file or plan file, from least time to least memory; --svg draws the curve."""
    _check(solver, cost, effort, (out, svg), file_of(model), parity, gradients)
    if (unused or gradients != "kept") and is_graph_file(model):
        raise UsageError(
            "--unused and --gradients need a model; a graph file knows neither results nor gradients by name"
        )
    with telling(None):
        traced = (
            load_graph(model)
            if is_graph_file(model)
            else trace_model(model, batch, target, unused=unused or (), gradients=gradients)
        )
        plans = api.frontier(
            traced, solver=solver, cost=cost, effort=effort, time_limit=time_limit, seed=seed, cache=cache, parity=parity
        )  # fmt: skip
    document = {"format": "rekindle.frontier/1", "plans": [p.figures() for p in plans]}
    if out is not None:
        write_json(out, document)
    if svg is not None:
        write_text(svg, frontier_svg(plans))
    return Answer(document, lambda: [text.frontier_table(plans), "", *_wrote(out, svg)])


def solve(
    graph: GraphFile,
    budget: Budget = None,
    max_overhead: MaxOverhead = None,
    minimize: Minimize = None,
    or_least: OrLeast = False,
    offload: Offload = "no",
    host_budget: HostBudget = None,
    solver: SolverName = "auto",
    cost: Cost = "seconds",
    effort: Effort = "normal",
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    cache: Cache = True,
    out: Out = None,
    svg: Svg = None,
    json: Json = False,
) -> Answer:
    """Schedule the graph of a graph or plan file for one goal, without PyTorch; --out writes the schedule as JSON."""
    goal = read_goal(budget, max_overhead, minimize)
    _check(solver, cost, effort, (out, svg), graph)
    with telling(None):
        read = load_graph(graph)
        if offload == "yes" and read.link is None:
            raise UsageError(
                f"--offload yes needs the speed of copies to the host, and {name(str(graph))} has no link; take the file of a "
                'plan that was made with --offload yes, or add "link" to the graph, as docs/formats.md says'
            )
        made = api.plan(
            read, budget, max_overhead=max_overhead, minimize=minimize, solver=solver, cost=cost,
            effort=effort, time_limit=time_limit, seed=seed, cache=cache, or_least=or_least,
            offload=OFFLOADS[offload], host_budget=host_budget,
        )  # fmt: skip
    if out is not None:
        write_json(out, schedule_document(made))
    written = _write_timeline(made, goal, svg)
    return Answer(
        schedule_document(made, steps=False),
        lambda: [text.plan_table(made), "", made.sentence, *_wrote(out, written)],
    )


def _check(
    solver: str,
    cost: str,
    effort: str,
    writes: tuple[Path | None, ...],
    reads: str | Path | None,
    parity: str = PlanOptions.parity,
    gradients: str = TraceOptions.gradients,
) -> None:
    """Refuse unknown names and unwritable files before any long work. writes, reads : files of the command."""
    check_writable(*writes, reads=[reads])
    registry.get(solver)
    choice("cost", cost, COSTS)
    choice("effort", effort, EFFORTS)
    choice("parity", parity, PARITIES)
    choice("gradients", gradients, GRADIENTS)


def _write_timeline(made: Plan, goal: Goal, svg: Path | None) -> Path | None:
    if svg is not None:
        limit = goal.limit(made.graph, made.baseline_activation_bytes)
        title = f"Memory of one training step: {made.graph.name}"
        if limit is not None:
            title += f", within {format_bytes(limit)}"
        target = made.trace_options.target
        write_text(
            svg, memory_timeline(made.graph, made.schedule, budget=limit, title=title, cost=made.cost, target=target)
        )
    return svg


def _wrote(*paths: Path | None) -> list[str]:
    return [Unbroken(f"wrote {name(str(p))}") for p in paths if p is not None]


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
    wrote = [] if out is None else [Unbroken(f"wrote {name(str(out))}")]
    figures = graph_figures(graph)
    return Answer(figures, lambda: [text.graph_table(figures), "", *wrote])


def graph_figures(graph: Graph) -> dict[str, Any]:
    """The figures of a step that recomputes nothing, by name."""
    plain = simulate(graph, Schedule.baseline(graph))
    return {
        "name": graph.name, "graph_hash": graph.hash, "ops": len(graph.ops), "values": len(graph.values),
        "resident_bytes": graph.resident_bytes, "baseline_peak_bytes": plain.peak_bytes,
        "baseline_activation_bytes": graph.beside_resident(plain.peak_bytes), "seconds": plain.seconds, "flops": plain.flops,
    }  # fmt: skip
