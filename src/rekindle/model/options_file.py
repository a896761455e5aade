"""The object "options" of a plan file: how the plan was searched for and how its step was captured.

The goal, the solver and the cost stand among the plan's figures, not here; but a plan that `or_least` admits may have another
goal than the budget that its user gave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from ..ask import EFFORTS, GRADIENTS, LOSSES, OFFLOADS, PARITIES, Goal, LastCount, PlanOptions, TraceOptions
from ..compiling import CompileOptions
from ..errors import FormatError, UsageError
from ..printed import value
from .formats import Reader

NAME_MOST_LETTERS, PATTERN_MOST_LETTERS, PATTERNS_MOST = 64, 1_000, 10_000


class Option(NamedTuple):
    """One option as plan files hold it.

    of, name : the class whose field it is, and the field's name, which is its key in the file.
    read : (fields of the file, name, default) -> its value, checked.
    write : its value as JSON.
    always : it stands in the file also where it has its default.
    """

    of: type[PlanOptions] | type[TraceOptions]
    name: str
    read: Callable[[Reader, str, Any], Any]
    write: Callable[[Any], Any] = lambda x: x
    always: bool = False

    @property
    def default(self) -> Any:
        return getattr(self.of, self.name)


def to_json(asked: PlanOptions, captured: TraceOptions) -> dict[str, Any]:
    """The object "options" for these options. An optimizer is written as its name; the bytes of its state go with it, so that
    a reader that does not know the optimizer counts them too."""
    if captured.optimizer is None:
        captured = replace(captured, state_bytes=None)
    doc: dict[str, Any] = {}
    for option in OPTIONS:
        x = getattr(asked if option.of is PlanOptions else captured, option.name)
        if option.always or x != option.default:
            doc[option.name] = option.write(x)
    return doc | {"or_least": asked.goal.to_json()} if asked.or_least else doc


def from_json(reader: Reader, asked: PlanOptions) -> tuple[PlanOptions, TraceOptions]:
    """The options that `to_json` wrote. No field is required; unknown fields are passed over.

    asked : the goal, the solver and the cost, which stand elsewhere in the file.

    Raises
    ------
    FormatError : a field is of the wrong type or out of range.
    """
    read = {option: option.read(reader, option.name, option.default) for option in OPTIONS}
    plan, trace = ({o.name: x for o, x in read.items() if o.of is kind} for kind in (PlanOptions, TraceOptions))
    budget = plan.pop("or_least")
    asked = replace(asked, goal=budget or asked.goal, or_least=budget is not None, **plan)
    return asked, TraceOptions(**trace)


def _wrong(fields: Reader, key: str, should: str, given: Any) -> FormatError:
    return FormatError(f"{fields.where}: {key!r} should {should}, not {value(given)}")


def _if_given(read: Callable[[Reader, str], Any]) -> Callable[[Reader, str, Any], Any]:
    """Reads a field that may be absent or null."""
    return lambda fields, key, default: default if fields.doc.get(key) is None else read(fields, key)


def _time_limit(fields: Reader, key: str) -> float:
    seconds = fields.number(key)
    if seconds <= 0:
        raise _wrong(fields, key, "be above 0", seconds)
    return seconds


def _one_of(choices: tuple[str, ...]) -> Callable[[Reader, str, str], str]:
    def read(fields: Reader, key: str, default: str) -> str:
        given = fields.text(key, default)
        if given not in choices:
            raise _wrong(fields, key, f"be one of {', '.join(choices)}", given)
        return given

    return read


def _or_least(fields: Reader, key: str, default: bool) -> Goal | None:
    """The budget that the user gave; None: without `or_least`."""
    if fields.doc.get(key) is None:
        return None
    try:
        goal = Goal.from_json(fields.table(key))
    except UsageError as e:
        raise FormatError(f"{fields.where}: {key!r}: {e}") from None
    if not goal.is_budget:
        raise _wrong(fields, key, "be a budget", goal.to_json())
    return goal


def _compile(fields: Reader, key: str) -> CompileOptions | None:
    try:
        return CompileOptions.parse(fields.table(key))
    except UsageError as e:
        raise FormatError(f"{fields.where}: {e}") from None


def _name(kind: str) -> Callable[[Reader, str, Any], str | None]:
    def read(fields: Reader, key: str) -> str:
        text = fields.text(key)
        if not _is_printable(text, NAME_MOST_LETTERS):
            raise FormatError(f"{fields.where}: {value(text)} is no {kind}'s name")
        return text

    return _if_given(read)


def _names(kind: str) -> Callable[[Reader, str, Any], tuple[str, ...]]:
    """Reads a list of names. kind : in errors, the things that they name."""

    def read(fields: Reader, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        names = fields.items(key) if key in fields.doc else []
        for name in names:
            if not isinstance(name, str) or not _is_printable(name, PATTERN_MOST_LETTERS):
                raise _wrong(fields, key, f"be names of {kind}", name)
        if len(names) > PATTERNS_MOST:
            raise _wrong(fields, key, f"hold at most {PATTERNS_MOST} names", len(names))
        return tuple(names)

    return read


def _offload(fields: Reader, key: str, default: bool | str) -> bool | str:
    given = fields.doc.get(key, default)
    if not isinstance(given, bool | str) or given not in OFFLOADS:
        raise _wrong(fields, key, 'be true, false or "auto"', given)
    return given


def _bytes(fields: Reader, key: str) -> int:
    size = fields.whole(key)
    if size < 0:
        raise _wrong(fields, key, "be at least 0", size)
    return size


def _name_of(optimizer: Any) -> str | None:
    """An optimizer, its class or its name, as a name that a reader accepts."""
    if optimizer is None:
        return None
    if isinstance(optimizer, str):
        return " ".join(optimizer.split())[:NAME_MOST_LETTERS]
    own = optimizer.kind if isinstance(optimizer, LastCount) else optimizer
    kind = own if isinstance(own, type) else type(own)
    return kind.__name__.lower()[:NAME_MOST_LETTERS]


def _is_printable(text: str, most_letters: int) -> bool:
    return 0 < len(text) <= most_letters and text.isprintable()


# The options in the order in which a file has them. A new one is one line here.
OPTIONS = (
    Option(PlanOptions, "effort", _one_of(EFFORTS), always=True),
    Option(PlanOptions, "time_limit", _if_given(_time_limit), always=True),
    Option(PlanOptions, "seed", Reader.whole, always=True),
    Option(TraceOptions, "optimizer", _name("optimizer"), _name_of, always=True),
    Option(PlanOptions, "cache", Reader.flag, bool),
    Option(PlanOptions, "parity", _one_of(PARITIES)),
    Option(PlanOptions, "or_least", _or_least),
    Option(PlanOptions, "offload", _offload),
    Option(PlanOptions, "host_budget", _if_given(_bytes)),
    Option(TraceOptions, "loss", _one_of(LOSSES)),
    Option(TraceOptions, "must_save", _names("submodules"), list),
    Option(TraceOptions, "unused", _names("results"), list),
    Option(TraceOptions, "gradients", _one_of(GRADIENTS)),
    Option(TraceOptions, "compile", _if_given(_compile), CompileOptions.to_json),
    Option(TraceOptions, "target", _name("device")),
    Option(TraceOptions, "attention", _name("device")),
    Option(TraceOptions, "state_bytes", _if_given(_bytes)),
)
