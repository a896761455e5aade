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

import torch
from torch import fx

from ...model.graph import Graph
from ...model.schedule import Schedule
from ..lowering.lowered import Lowered
from ..private import OpOverload, TorchDispatchMode
from ..situation.module_paths import printable
from .source import Boundary, Source, Sums
from .stages import LastReads

_number = itertools.count(1)  # of programs in this process


@dataclass
class Program:
    """The two halves of a step, compiled from `source`.

    forward(inputs, rng) -> (results, saved): `inputs` is one tensor per placeholder (emptied), `rng` a dict.
    backward(saved, tangents, rng, out, retain, apart): a generator; both lists are emptied. Each `next` runs one stage.
        `retain`: another backward may follow, so nothing is written over what forward saved. `apart`: a gradient that is
        added up from several uses comes as a tuple of its parts. At each boundary it takes gradients from `tangents`.
    stages : per stage the placeholders whose gradients it puts into `out`, in order; one that is handed over in parts stands
        there once for each part. So does the whole gradient of a result at which backward is cut.
    read : for each stage the placeholders that it reads.
    parts : placeholder -> number of parts of a gradient that is added up from several uses and comes whole, unless `apart`
        is asked for.
    boundaries : where gradients enter backward, in the order in which it comes to them.
    file : the name under which tracebacks find the source, as long as the program lives.
    ops : line of the source, from 1 -> id of the op that it runs.
    lowered : the graph and calls that it was made from.
    host_bytes : that the host holds in a step of copied values; forward and backward find them in `rng["away"]`.
    """

    source: str
    forward: Callable[[list[Any], dict[int | str, Any]], tuple[list[Any], list[Any]]]
    backward: Callable[[list[Any], list[Any], dict[int | str, Any], list[Any], bool, bool], Iterator[None]]
    stages: list[list[fx.Node]]
    boundaries: list[Boundary]
    read: list[set[fx.Node]] = field(default_factory=list)
    parts: dict[fx.Node, int] = field(default_factory=dict)
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
        source, names["forward"], names["backward"], written.stages, written.boundaries, written.read, sums.parts, file,
        written.ops, lowered, written.host_bytes,
    )  # fmt: skip
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


class NamesNaN(TorchDispatchMode):
    """Raises RuntimeError, as autograd's anomaly mode does, when a backward op returns a NaN that leaves its autograd function;
    the error names the op and its module. NaNs inside an autograd function may be masked away again."""

    def __init__(self, lowered: Lowered, program: Program):
        super().__init__()
        self._low, self._program = lowered, program
        self._given = set(lowered.captured.gradients.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if _is_view(func):
            return out
        frame = running_frame({self._program.file})
        line = 0 if frame is None else frame.f_lineno
        op = self._program.ops.get(line)
        node = self._low.calls[op].node if op is not None else None
        if op is None or node is None or not self._low.graph.ops[op].backward or not self._leaves(node):
            return out
        made = out if isinstance(out, tuple | list) else [out]
        for t in made:
            if isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex()) and bool(t.isnan().any()):
                path = printable(self._low.captured.module_path.get(node, ""))
                source = linecache.getline(self._program.file, line).strip()
                raise RuntimeError(
                    f"{node.target} returned nan values in the backward of {path or 'the model'}, in line {line} of the "
                    f"planned program: {source}"
                )
        return out

    def _leaves(self, node: fx.Node) -> bool:
        """Whether another autograd function or the caller reads the node's result."""
        seq = node.meta.get("seq_nr")
        stack = [node]
        while stack:
            n = stack.pop()
            if seq is None or n in self._given:
                return True
            for u in n.users:
                if u.op == "output" or u.meta.get("seq_nr") != seq:
                    return True
                if u in self._low.views:
                    stack.append(u)
        return False


def _is_view(func: Any) -> bool:
    returns = func._schema.returns if isinstance(func, OpOverload) else ()
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
