"""Files of graphs and schedules as JSON: `rekindle.graph/1`, `rekindle.schedule/1` and `/2`; never pickle.

Reading refuses another format and a missing or mistyped field. It returns a whole object or raises.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import Any

from ..errors import FormatError
from ..printed import name, value
from .files import read_text, write_text
from .graph import DESCRIBING, Graph, Link, Op, Value
from .op_names import filled_in
from .schedule import Fetch, Free, Offload, Run, Schedule, Step

GRAPH, SCHEDULE, PLAN = "rekindle.graph/1", "rekindle.schedule/1", "rekindle.plan/1"
SCHEDULE_WITH_COPIES = "rekindle.schedule/2"  # its steps may be copies to and from the host too
_STEPS: dict[str, type[Free] | type[Offload] | type[Fetch]] = {"free": Free, "offload": Offload, "fetch": Fetch}
_KEYS = {step: key for key, step in _STEPS.items()}
MODULE_LEVELS_MOST = 1_000  # of the path of an op's module; PyTorch itself fails on modules within more modules
OBJECTS_MOST_BYTES = 2**30  # that a document takes in memory; the plan of 100,000 ops takes about a quarter of it
_TAKES_BYTES = {
    "[": 64,
    "{": 200,
    ",": 48,
}  # what Python takes for a list, an object and an element, by their first letters
MOST_DIGITS = 40  # of a whole number that is read; no field holds more than 19


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """The document `rekindle.graph/1`."""
    return {
        "format": GRAPH,
        "name": graph.name,
        "values": [{"bytes": v.bytes} for v in graph.values],
        "ops": [
            {
                "name": o.name, "inputs": list(o.inputs), "outputs": list(o.outputs), "seconds": o.seconds,
                "flops": o.flops, "workspace": o.workspace, "backward": o.backward, "recompute": o.recompute,
                "inplace": list(o.inplace),
                **{key: text for key in (*DESCRIBING, "source") if (text := getattr(o, key))},
            }
            for o in graph.ops
        ],
        "keep": list(graph.keep),
        "resident_bytes": graph.resident_bytes,
        **({} if graph.link is None else {"link": dataclasses.asdict(graph.link)}),
    }  # fmt: skip


def graph_from_json(doc: Any, where: str = "graph") -> Graph:
    """The Graph of a `rekindle.graph/1` document, validated. Ops of files from before `DESCRIBING` get these fields from
    their names, if they were traced.

    doc : as `read_json` gives it.
    where : names the document in error messages.

    Raises
    ------
    FormatError : not `rekindle.graph/1`, a field missing or of the wrong type, or an inconsistent graph.
    """
    r = Reader(doc, where, GRAPH)
    values = tuple(Value(Reader(v, f"{where}: value {i}").whole("bytes")) for i, v in enumerate(r.items("values")))
    ops = []
    for i, o in enumerate(r.items("ops")):
        p = Reader(o, f"{where}: op {i}")
        ops.append(
            Op(
                p.text("name"), p.ints("inputs"), p.ints("outputs"), p.number("seconds", 0.0), p.whole("flops", 0),
                p.whole("workspace", 0), p.flag("backward", False), p.flag("recompute", True), p.ints("inplace", ()),
                **{key: p.text(key, "") for key in (*DESCRIBING, "source")},
            )
        )  # fmt: skip
    traced = filled_in(ops)
    if deep := [i for i, op in enumerate(traced) if op.module.count(".") >= MODULE_LEVELS_MOST]:
        raise FormatError(
            f"{where}: op {deep[0]} is of a module within {MODULE_LEVELS_MOST:,} others, and no model has so many"
        )
    link = None if r.doc.get("link") is None else link_from_json(r.doc["link"], f"{where}: link")
    return Graph(values, traced, r.ints("keep"), r.whole("resident_bytes", 0), r.text("name", "graph"), link)


def link_from_json(doc: Any, where: str) -> Link:
    """The link of a graph's document.

    Raises
    ------
    FormatError : a field is missing or of the wrong type.
    """
    r = Reader(doc, where)
    rates = r.number("out_bytes_per_s"), r.number("in_bytes_per_s")
    return Link(*rates, r.number("copy_s", 0.0), r.flag("both_at_once", True))


def steps_to_json(schedule: Schedule) -> list[dict[str, int]]:
    """The `steps` of a schedule document."""
    return [
        ({"run": s.op} if s.into is None else {"run": s.op, "into": s.into}) if isinstance(s, Run)
        else {_KEYS[type(s)]: s.value}
        for s in schedule.steps
    ]  # fmt: skip


def schedule_format(schedule: Schedule) -> str:
    """The format in which a schedule is written: the first one that can hold it, so that older versions read it too."""
    return SCHEDULE_WITH_COPIES if schedule.moves else SCHEDULE


def schedule_from_json(doc: Any, where: str = "schedule") -> Schedule:
    """The Schedule of a `rekindle.schedule/1` or `/2` document. `simulate` tells whether it is valid for a graph.

    Raises
    ------
    FormatError : neither format, or a field missing or of the wrong type.
    """
    copies = isinstance(doc, dict) and doc.get("format") == SCHEDULE_WITH_COPIES
    r = Reader(doc, where, SCHEDULE_WITH_COPIES if copies else SCHEDULE)
    keys = set(_STEPS) if copies else {"free"}
    steps: list[Step] = []
    for i, s in enumerate(r.items("steps")):
        p = Reader(s, f"{where}: step {i}")
        if len(s) == 1 and (key := next(iter(s))) in keys:
            steps.append(_STEPS[key](p.whole(key)))
        elif set(s) in ({"run"}, {"run", "into"}):
            steps.append(Run(p.whole("run"), p.whole("into") if "into" in s else None))
        else:
            of_values = " or ".join(f'{{"{key}": value}}' for key in sorted(keys, reverse=True))
            raise FormatError(f'{where}: step {i} is {value(s)}; a step is {{"run": op}} or {of_values}')
    return Schedule(tuple(steps), r.text("graph_hash"), r.text("solver", ""))


def read_json(path: str | os.PathLike[str]) -> Any:
    """The JSON document in a file.

    Raises
    ------
    FormatError : the file cannot be read, is too large, or is not whole JSON.
    """
    where = name(os.fspath(path))
    try:
        return parse_json(read_text(path), where)
    except OSError as e:
        raise FormatError(f"cannot read {where}: {e.strerror or e}") from None


def parse_json(text: str, where: str, constants: bool = False) -> Any:
    """The JSON document in a text. A number of more digits than any field holds becomes infinite, and no field accepts that.

    where : names the document in error messages.
    constants : read NaN and Infinity too, which are no JSON.

    Raises
    ------
    FormatError : the text is not whole JSON.
    """
    taken = sum(text.count(mark) * size for mark, size in _TAKES_BYTES.items())
    if taken > OBJECTS_MOST_BYTES:
        raise FormatError(
            f"{where} would take more than {OBJECTS_MOST_BYTES >> 30} GiB of memory; no file of Rekindle does"
        )
    try:
        return json.loads(text, parse_constant=float if constants else _refuse_constant, parse_int=_whole_number)
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{where} is damaged or is no JSON ({e}); nothing of it was used") from None


def write_json(path: str | os.PathLike[str], doc: Any) -> None:
    """Write a document whole or not at all: after a failure the old file is as it was. Raises as `files.write_text`."""
    write_text(path, as_text(doc) + "\n")


def as_text(doc: Any) -> str:
    """A document as the text of its file."""
    return json.dumps(doc, indent=None, separators=(", ", ": "), allow_nan=False)


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON number")


def _whole_number(digits: str) -> int | float:
    # The time to read a number grows with the square of its digits, and Python refuses numbers of thousands of digits.
    return int(digits) if len(digits) <= MOST_DIGITS else float(digits[0] + "inf" if digits[0] == "-" else "inf")


_MISSING: Any = object()


class Reader:
    """Typed access to the fields of one JSON object. A wrong field raises FormatError, which names the object.

    where : names the object.
    fmt : the format that its field "format" must have, or None.
    """

    def __init__(self, doc: Any, where: str, fmt: str | None = None):
        self.where = where
        if not isinstance(doc, dict):
            raise FormatError(f"{where} is not a JSON object")
        self.doc = doc
        if fmt is not None and doc.get("format") != fmt:
            raise FormatError(f"{where} has format {value(doc.get('format'))}; this version reads {fmt!r}")

    def _get(self, key: str, default: Any, kind: str, ok: Any) -> Any:
        x = self.doc.get(key, default)
        if x is _MISSING:
            raise FormatError(f"{self.where} lacks {key!r}")
        if not ok(x):
            raise FormatError(f"{self.where}: {key!r} should be {kind}, not {value(x)}")
        return x

    def whole(self, key: str, default: Any = _MISSING) -> int:
        return int(self._get(key, default, "a whole number", _is_int))

    def number(self, key: str, default: Any = _MISSING) -> float:
        return float(self._get(key, default, "a number", _is_number))

    def text(self, key: str, default: Any = _MISSING) -> str:
        return str(self._get(key, default, "a string", lambda x: isinstance(x, str)))

    def flag(self, key: str, default: Any = _MISSING) -> bool:
        return bool(self._get(key, default, "true or false", lambda x: isinstance(x, bool)))

    def items(self, key: str) -> list[Any]:
        return list(self._get(key, _MISSING, "a list", lambda x: isinstance(x, list)))

    def ints(self, key: str, default: Any = _MISSING) -> tuple[int, ...]:
        ok = lambda x: isinstance(x, list | tuple) and all(_is_int(i) for i in x)  # noqa: E731
        return tuple(self._get(key, default, "a list of whole numbers", ok))

    def table(self, key: str, default: Any = _MISSING) -> dict[str, Any]:
        return dict(self._get(key, default, "an object", lambda x: isinstance(x, dict)))


def _is_number(x: Any) -> bool:
    return _is_int(x) or isinstance(x, float) and math.isfinite(x)


def _is_int(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and abs(x) < 2**62
