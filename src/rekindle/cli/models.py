"""Loads the model and sample, or the graph file, that a command line names."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import RekindleError, UsageError
from ..model.formats import GRAPH, PLAN, graph_from_json, read_json
from ..model.graph import Graph
from ..parts.plan import FORMAT as PARTS
from ..printed import value

# Files that are Rekindle's but hold no graph alone: what they are, and the Python call that takes them.
OTHER_FILES = {
    PLAN: "the plan of a model",
    PARTS: "plans for the parts of a model that cannot be captured whole",
}


def load_graph(path: str | Path) -> Graph:
    """The graph in a `rekindle.graph/1` file.

    Raises
    ------
    UsageError : the file holds plans of a model.
    FormatError : the file is damaged or foreign.
    """
    doc = read_json(path)
    held = doc.get("format") if isinstance(doc, dict) else None
    if isinstance(held, str) and held in OTHER_FILES:
        raise UsageError(
            f"{path} holds {OTHER_FILES[held]} ({held}), and this command takes a {GRAPH} file. In Python "
            f"print(rekindle.load({str(path)!r})) shows the plans, and rekindle.apply(model, rekindle.load({str(path)!r})) "
            "puts them on the model"
        )
    return graph_from_json(doc, str(path))


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


def takes_batch(spec: str) -> bool:
    """Whether the function of a Python file that "path/to/file.py:function" names takes an argument `batch`.

    Raises
    ------
    UsageError : it names no function of a Python file.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise UsageError(f"{spec!r} names no model; write zoo:NAME or path/to/file.py:function")
    with _no_exit(spec):
        return "batch" in inspect.signature(_function(Path(where), name)).parameters


@contextmanager
def _no_exit(spec: str) -> Iterator[None]:
    """Turn SystemExit raised by a user's file into a RekindleError."""
    try:
        yield
    except SystemExit as e:
        raise RekindleError(
            f"{spec} ended the program (sys.exit({value(e.code)})) instead of returning (model, sample); put code that is to "
            'run only as a program under `if __name__ == "__main__":`'
        ) from e


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
