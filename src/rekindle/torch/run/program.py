"""A schedule as a program: readable Python source for the forward and the backward of one step, compiled.

Forward is a function; backward is a generator that yields at the end of each stage, when the gradients that have been
finished since the stage before lie in `out`.
"""

from __future__ import annotations

import itertools
import linecache
import sys
import weakref
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import fx

from ...model.graph import Graph
from ...model.schedule import Schedule
from ..lowering.lowered import Lowered
from .source import Cut, Source, Sums
from .stages import LastReads

_number = itertools.count(1)  # of programs in this process


@dataclass
class Program:
    """The two halves of a step, compiled from `source`.

    forward(inputs, rng) -> (results, saved): `inputs` is one tensor per placeholder (emptied), `rng` a dict.
    backward(saved, tangents, rng, out, retain, apart): a generator; both lists are emptied. Each `next` runs one stage.
        `retain`: another backward may follow, so nothing is written over what forward saved. `apart`: a gradient that is
        added up from several uses comes as a tuple of its parts. After each of `cuts` it takes a gradient from `tangents`.
    stages : per stage the placeholders whose gradients it puts into `out`, in order; one that is handed over in parts stands
        there once for each part. So does the whole gradient of a result that is in `cuts`.
    read : for each stage the placeholders that it reads.
    parts : placeholder -> number of parts of a gradient that is added up from several uses and comes whole, unless `apart`
        is asked for.
    cuts : the results whose gradients autograd adds up, in the order in which backward comes to them.
    file : the name under which tracebacks find the source, as long as the program lives.
    ops : line of the source, from 1 -> id of the op that it runs.
    lowered : the graph and calls that it was made from.
    host_bytes : that the host holds in a step of copied values; forward and backward find them in `rng["away"]`.
    """

    source: str
    forward: Callable[[list[Any], dict[int | str, Any]], tuple[list[Any], list[Any]]]
    backward: Callable[[list[Any], list[Any], dict[int | str, Any], list[Any], bool, bool], Iterator[None]]
    stages: list[list[fx.Node]]
    read: list[set[fx.Node]] = field(default_factory=list)
    parts: dict[fx.Node, int] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    file: str = ""
    ops: dict[int, int] = field(default_factory=dict)
    lowered: Lowered | None = field(default=None, repr=False)
    host_bytes: int = 0


# id of a Lowered and a schedule -> the program, as long as some module runs it: equal parts of a model share one.
_built: weakref.WeakValueDictionary[tuple[int, Schedule], Program] = weakref.WeakValueDictionary()


def build(lowered: Lowered, schedule: Schedule) -> Program:
    """The program that runs `schedule`; the same one for each call with the same two objects.

    Raises
    ------
    RekindleError : the schedule runs random ops of forward in another order than the model does.
    """
    known = _built.get((id(lowered), schedule))
    if known is not None and known.lowered is lowered:
        return known
    ran = LastReads(lowered).heeded(lowered.graph, schedule)  # schedules of older files hand gradients over too early
    sums = Sums.of(lowered, ran)
    written = Source(lowered, ran, sums)
    source = "\n".join(written.lines) + "\n"
    file = f"<rekindle plan {schedule.graph_hash[:8]}, program {next(_number)}>"
    names = written.text.env
    exec(compile(source, file, "exec"), names)
    program = Program(
        source,
        names["forward"],
        names["backward"],
        written.stages,
        written.read,
        sums.parts,
        written.cuts,
        file,
        written.ops,
        lowered,
        written.host_bytes,
    )
    # Tracebacks show the line, and so the op and the module in its comment.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    _built[id(lowered), schedule] = program
    weakref.finalize(program, linecache.cache.pop, file, None)
    return program


def running_frame(files: Container[str]) -> FrameType | None:
    """The innermost frame of this thread whose code is from one of the files; None if no frame is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in files:
        frame = frame.f_back
    return frame


def op_that_runs() -> tuple[Graph, int] | None:
    """(the graph, id of the op) of the program that is running an operator in this thread; None: none is."""
    files = {p.file: p for p in _built.values()}
    frame = running_frame(files)
    if frame is None:
        return None
    program = files[frame.f_code.co_filename]
    op = program.ops.get(frame.f_lineno)
    return None if op is None or program.lowered is None else (program.lowered.graph, op)
