"""Loads the model and sample, or the graph file, that a command line names."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import RekindleError, TraceError, UsageError
from ..kernels import companion
from ..model.files import OWN_STREAMS
from ..model.formats import GRAPH, PLAN, SCHEDULE, Reader, graph_from_json, read_json
from ..model.graph import Graph
from ..model.plan import Plan
from ..parts.files import from_document
from ..parts.plan import FORMAT as PARTS
from ..parts.plan import PartsPlan
from ..printed import name, value
from ..saying.progress import announce


def load_graph(path: str | Path) -> Graph:
    """The graph in a graph file, or in the file of a plan of a whole model.

    Raises
    ------
    UsageError : the file holds plans for the parts of a model, so several graphs, or a schedule, so none.
    FormatError : the file is damaged or foreign.
    """
    doc, held = _read(path)
    if held == PLAN:
        return graph_from_json(Reader(doc, str(path), PLAN).table("graph"), f"{path}: graph")
    if held == PARTS:
        raise UsageError(
            f"{path} holds plans for the parts of a model ({PARTS}), so a graph for each part, and this command takes one "
            f"graph ({GRAPH}, or the plan of a whole model). `rekindle explain {path}` shows the plans"
        )
    if held == SCHEDULE:
        raise UsageError(f"{path} holds a schedule and no graph; give the graph file that `solve` made it from")
    return graph_from_json(doc, str(path))


def load_plan(path: str | Path) -> Plan | PartsPlan:
    """The plan in a file of either kind, checked as `parts.files.load` says. The file is read once: it may be a pipe.

    Raises
    ------
    UsageError : it is a graph, a schedule or a frontier.
    FormatError : the file cannot be read, is damaged, or claims other figures than its schedules have.
    """
    doc, held = _read(path)
    if held in (GRAPH, SCHEDULE, "rekindle.frontier/1"):
        raise UsageError(
            f"{path} holds no plan ({held}); `rekindle plan zoo:NAME --budget 0.5 --out plan.json` writes one, and in Python "
            "plan.save(path)"
        )
    return from_document(doc, name(str(path)))


def is_graph_file(spec: str) -> bool:
    """Whether the argument of a command names a graph or plan file and no model: a .json file, or a pipe."""
    return spec.endswith(".json") or is_stream(spec)


def is_stream(path: str | Path) -> bool:
    """Whether a path leads to a pipe or to an open file of this program, which has no name of its own."""
    return str(path).startswith(OWN_STREAMS) or Path(path).is_fifo()


def _read(path: str | Path) -> tuple[Any, Any]:
    """(the JSON document in a file, the format that it says it has)."""
    announce(None, f"reading {name(str(path))}")
    doc = read_json(path)
    return doc, doc.get("format") if isinstance(doc, dict) else None


def file_of(spec: str) -> str | None:
    """The file that the argument of a command names: a .json file, or the Python file of a function; None for a zoo model.

    >>> file_of("zoo:gpt"), file_of("graph.json"), file_of("net.py:make")
    (None, 'graph.json', 'net.py')
    """
    where, _, _ = spec.rpartition(":")
    return None if where == "zoo" else where if where.endswith(".py") else spec


def trace_model(
    spec: str,
    batch: int | None,
    target: str | None,
    optimizer: str | None = None,
    unused: Sequence[str] = (),
    gradients: str = "kept",
) -> Any:
    """The Trace of the model that a command line names. optimizer : the name of one whose state counts. unused : names of
    results that training does not read. gradients : as in `rekindle.trace`.

    Raises
    ------
    UsageError : as `load_model`; `unused` names no result.
    TraceError : the model cannot be captured whole.
    """
    companion.start()  # the search is compiled while torch is imported and the model is built
    announce(None, f"loading {spec}")
    model, sample = load_model(spec, batch)
    from ..torch.trace import trace

    try:
        return trace(model, sample, target=target, optimizer=optimizer, unused=unused, gradients=gradients)
    except TraceError as e:
        why = str(e).rstrip(".")
        raise TraceError(
            f"{why}. This command plans whole models. If the model works on its sample, plan its largest parts in Python: "
            "rekindle.checkpoint(model, sample, budget=…), which takes the same goals"
        ) from None


def load_model(spec: str, batch: int | None) -> tuple[Any, Any]:
    """The model and sample that "zoo:NAME" or "path/to/file.py:function" names.

    Raises
    ------
    UsageError : `spec` names no zoo model, no function of a Python file, or the function returns something else.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise UsageError(f"{spec!r} names no model; write zoo:NAME or path/to/file.py:function")
    if where == "zoo":
        from .. import zoo

        return zoo.load(name, batch=batch)
    with _no_exit(spec):
        made = _call(_function(Path(where), name), batch, spec)
    if not isinstance(made, tuple) or len(made) != 2:
        raise UsageError(f"{spec} returned {type(made).__name__}; it must return the pair (model, sample)")
    return made


def usual_batch(spec: str) -> int | None:
    """The batch of the sample that "zoo:NAME" or "path/to/file.py:function" makes where none is asked for; 0: it does not say;
    None: the function takes no argument `batch`.

    Raises
    ------
    UsageError : `spec` names no zoo model and no function of a Python file.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise UsageError(f"{spec!r} names no model; write zoo:NAME or path/to/file.py:function")
    if where == "zoo":
        from .. import zoo

        made = zoo.maker(name)
    else:
        with _no_exit(spec):
            made = _function(Path(where), name)
    taken = inspect.signature(made).parameters.get("batch")
    return None if taken is None else taken.default if isinstance(taken.default, int) else 0


@contextmanager
def _no_exit(spec: str) -> Iterator[None]:
    """Turn SystemExit raised by a user's file into a RekindleError."""
    try:
        yield
    except SystemExit as e:
        raise RekindleError(
            f"{spec} ended the program (sys.exit({value(e.code)})) instead of returning (model, sample); put code that is to "
            'run only as a program under `if __name__ == "__main__":`'
        ) from None


def _function(path: Path, name: str) -> Any:
    if path.suffix != ".py" or not path.is_file():
        raise UsageError(f"there is no Python file {path}; write zoo:NAME or path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(f"_rekindle_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pickle and inspect look classes up by their module
    sys.path.insert(0, str(path.absolute().parent))
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{path} has no function {name!r}")
    return function


def _call(function: Any, batch: int | None, spec: str) -> Any:
    if batch is None:
        return function()
    if "batch" not in inspect.signature(function).parameters:
        raise UsageError(f"--batch was given, but {spec} takes no argument named batch")
    return function(batch=batch)
