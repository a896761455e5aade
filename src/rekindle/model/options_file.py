"""The object "options" of a plan file: how the plan was searched for and how its step was captured.

The goal, the solver and the cost stand among the plan's figures, not here; but a plan that `or_least` admits may have another
goal than the budget that its user gave.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..ask import EFFORTS, GRADIENTS, LOSSES, PARITIES, Goal, PlanOptions, TraceOptions
from ..compiling import CompileOptions
from ..errors import FormatError, UsageError
from ..printed import value
from .formats import Reader

NAME_MOST_LETTERS, PATTERN_MOST_LETTERS, PATTERNS_MOST = 64, 1_000, 10_000


def to_json(asked: PlanOptions, captured: TraceOptions) -> dict[str, Any]:
    """The object "options" for these options. An optimizer is written as its name; the bytes of its state go with it, so that
    a reader that does not know the optimizer counts them too."""
    optimizer = _name_of(captured.optimizer)
    doc: dict[str, Any] = {
        "effort": asked.effort,
        "time_limit": asked.time_limit,
        "seed": asked.seed,
        "optimizer": optimizer,
    }
    if not asked.cache:
        doc["cache"] = False
    if asked.parity != PlanOptions.parity:
        doc["parity"] = asked.parity
    if asked.or_least:
        doc["or_least"] = asked.goal.to_json()
    if captured.loss != TraceOptions.loss:
        doc["loss"] = captured.loss
    if captured.must_save:
        doc["must_save"] = list(captured.must_save)
    if captured.unused:
        doc["unused"] = list(captured.unused)
    if captured.gradients != TraceOptions.gradients:
        doc["gradients"] = captured.gradients
    if captured.compile is not None:
        doc["compile"] = captured.compile.to_json()
    if captured.target is not None:
        doc["target"] = captured.target
    if captured.attention is not None:
        doc["attention"] = captured.attention
    if optimizer is not None and captured.state_bytes is not None:
        doc["state_bytes"] = captured.state_bytes
    return doc


def from_json(reader: Reader, asked: PlanOptions) -> tuple[PlanOptions, TraceOptions]:
    """The options that `to_json` wrote. No field is required; unknown fields are passed over.

    asked : the goal, the solver and the cost, which stand elsewhere in the file.

    Raises
    ------
    FormatError : a field is of the wrong type or out of range.
    """
    read = _Options(reader)
    budget = read.or_least()
    asked = replace(
        asked,
        goal=budget or asked.goal,
        or_least=budget is not None,
        effort=read.one_of("effort", EFFORTS, PlanOptions.effort),
        time_limit=read.time_limit(),
        seed=read.seed(asked.seed),
        cache=read.cache(),
        parity=read.one_of("parity", PARITIES, PlanOptions.parity),
    )
    captured = TraceOptions(
        loss=read.one_of("loss", LOSSES, TraceOptions.loss),
        target=read.name("target", "device"),
        optimizer=read.name("optimizer", "optimizer"),
        must_save=read.names("must_save", "submodules"),
        unused=read.names("unused", "results"),
        state_bytes=read.state_bytes(),
        attention=read.name("attention", "device"),
        gradients=read.one_of("gradients", GRADIENTS, TraceOptions.gradients),
        compile=read.compile(),
    )
    return asked, captured


class _Options:
    """The fields of the object "options", each checked as it is read."""

    def __init__(self, reader: Reader):
        self._fields = reader

    def _is_given(self, key: str) -> bool:
        return self._fields.doc.get(key) is not None

    def _wrong(self, key: str, should: str, given: Any) -> FormatError:
        return FormatError(f"{self._fields.where}: {key!r} should {should}, not {value(given)}")

    def time_limit(self) -> float | None:
        if not self._is_given("time_limit"):
            return None
        seconds = self._fields.number("time_limit")
        if seconds <= 0:
            raise self._wrong("time_limit", "be above 0", seconds)
        return seconds

    def seed(self, default: int) -> int:
        return self._fields.whole("seed", default)

    def one_of(self, key: str, choices: tuple[str, ...], default: str) -> str:
        given = self._fields.text(key, default)
        if given not in choices:
            raise self._wrong(key, f"be one of {', '.join(choices)}", given)
        return given

    def cache(self) -> bool:
        return self._fields.flag("cache", PlanOptions.cache)

    def or_least(self) -> Goal | None:
        """The budget that the user gave; None: without `or_least`."""
        if not self._is_given("or_least"):
            return None
        try:
            goal = Goal.from_json(self._fields.table("or_least"))
        except UsageError as e:
            raise FormatError(f"{self._fields.where}: 'or_least': {e}") from e
        if not goal.is_budget:
            raise self._wrong("or_least", "be a budget", goal.to_json())
        return goal

    def compile(self) -> CompileOptions | None:
        if not self._is_given("compile"):
            return None
        try:
            return CompileOptions.parse(self._fields.table("compile"))
        except UsageError as e:
            raise FormatError(f"{self._fields.where}: {e}") from e

    def name(self, key: str, kind: str) -> str | None:
        if not self._is_given(key):
            return None
        text = self._fields.text(key)
        if not _is_printable(text, NAME_MOST_LETTERS):
            raise FormatError(f"{self._fields.where}: {value(text)} is no {kind}'s name")
        return text

    def names(self, key: str, kind: str) -> tuple[str, ...]:
        """A list of names. kind : in errors, the things that they name."""
        names = self._fields.items(key) if key in self._fields.doc else []
        for name in names:
            if not isinstance(name, str) or not _is_printable(name, PATTERN_MOST_LETTERS):
                raise self._wrong(key, f"be names of {kind}", name)
        if len(names) > PATTERNS_MOST:
            raise self._wrong(key, f"hold at most {PATTERNS_MOST} names", len(names))
        return tuple(names)

    def state_bytes(self) -> int | None:
        if not self._is_given("state_bytes"):
            return None
        size = self._fields.whole("state_bytes")
        if size < 0:
            raise self._wrong("state_bytes", "be at least 0", size)
        return size


def _name_of(optimizer: Any) -> str | None:
    """An optimizer, its class or its name, as a name that a reader accepts."""
    if optimizer is None:
        return None
    if not isinstance(optimizer, str):
        kind = optimizer if isinstance(optimizer, type) else type(optimizer)
        return kind.__name__.lower()[:NAME_MOST_LETTERS]
    return " ".join(optimizer.split())[:NAME_MOST_LETTERS]


def _is_printable(text: str, most_letters: int) -> bool:
    return 0 < len(text) <= most_letters and text.isprintable()
