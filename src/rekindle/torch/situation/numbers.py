"""Python numbers that change from call to call, as inputs of a captured step.

While forward is captured, a stand-in takes the place of each number (see `stand_in`). In calls of tensors it becomes a marker,
an unusual value that shows in the graph where the number went. Arithmetic on stand-ins gives stand-ins; a comparison is
answered and recorded as a question. Any other use (a loop over it, a size, `math.exp`) raises a TypeError: then the number
stays a constant, and each value of it needs another graph.

Kernels and formulas may compute further constants from a marker. `serve.changed_numbers` finds them: constants that differ
between two captures of the same graph must all be markers.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from ..tensors import tree

GLOBAL = "the global "  # how names of globals begin in `Expected.keys`
SPECIAL = (0, 1, -1, 2, -2, 3, 0.5, -0.5)  # for which PyTorch's formulas may take a shortcut


class Argument(NamedTuple):
    """The place of a number among the arguments of a call: its path in their structure."""

    path: tuple[int, ...]


class Attribute(NamedTuple):
    """The place of a number that is an attribute of a submodule."""

    module: str
    name: str


Place = Argument | Attribute


class Expression(NamedTuple):
    """A formula over numbers of a call: an operator, and as operands places, expressions or plain numbers.

    operator : None: the value of the only operand.
    """

    operator: Callable[..., Any] | None
    operands: tuple[Any, ...]

    def value(self, numbers: Mapping[Place, Any]) -> Any:
        """The value of the expression for these numbers."""
        given = [
            x.value(numbers) if isinstance(x, Expression) else numbers[x] if isinstance(x, Place) else x
            for x in self.operands
        ]
        return given[0] if self.operator is None else self.operator(*given)


@dataclass
class Numbers:
    """The numbers that are inputs of a captured step.

    places : their places. markers : number in the graph -> the expression that it stands for.
    questions : (comparison, answer) of each comparison made while the step was captured.
    """

    places: tuple[Place, ...] = ()
    markers: dict[float | int, Expression] = field(default_factory=dict)
    questions: list[tuple[Expression, bool]] = field(default_factory=list)

    def marker(self, value: Any, expression: Expression) -> float | int:
        """The marker of an expression in the graph, with the type of `value`."""
        for m, e in self.markers.items():
            if e == expression and type(m) is type(value):
                return m
        m = _SOURCE.randrange(2**40, 2**41) if isinstance(value, int) else _SOURCE.uniform(0.1, 0.9)
        self.markers[m] = expression
        return m

    def serve(self, numbers: Mapping[Place, Any]) -> bool:
        """Whether the step is valid for these numbers: every question has its answer, and no number is special."""
        try:
            return all(e.value(numbers) == answer for e, answer in self.questions) and not any(
                _is_special(e.value(numbers)) for e in self.markers.values()
            )
        except (ArithmeticError, KeyError):
            return False

    def values(self, numbers: Mapping[Place, Any]) -> list[Any]:
        """The values of all markers for these numbers, in order of `markers`."""
        return [e.value(numbers) for e in self.markers.values()]


_SOURCE = random.Random(0x5EED)  # its own generator: the user's generators stay as they are


def _is_special(x: Any) -> bool:
    return x in SPECIAL or x != x or abs(x) == float("inf")


def numbers_in(spec: Any, path: tuple[int, ...] = ()) -> dict[Argument, Any]:
    """The ints and floats in a structure that `tree.flatten` returned, by place."""
    if isinstance(spec, tree.Branch):
        return {k: x for i, c in enumerate(spec.children) for k, x in numbers_in(c, (*path, i)).items()}
    return {Argument(path): spec} if type(spec) in (int, float) else {}


def replaced(spec: Any, by: Mapping[Place, Any], path: tuple[int, ...] = ()) -> Any:
    """The structure with these values at their places."""
    if isinstance(spec, tree.Branch):
        children = tuple([replaced(c, by, (*path, i)) for i, c in enumerate(spec.children)])
        return tree.Branch(spec.like, spec.keys, children)
    return by.get(Argument(path), spec)


def read(places: Sequence[Place], spec: Any, model: nn.Module) -> dict[Place, Any] | None:
    """The present numbers at these places; None if one of them is no number any more."""
    given = numbers_in(spec)
    found: dict[Place, Any] = {}
    for p in places:
        try:
            x = given.get(p) if isinstance(p, Argument) else model.get_submodule(p.module).__dict__.get(p.name)
        except AttributeError:  # the submodule is gone
            return None
        if type(x) not in (int, float):
            return None
        found[p] = x
    return found


@contextlib.contextmanager
def attributes_set(model: nn.Module, values: Mapping[Place, Any]) -> Iterator[None]:
    """Inside, these attributes of submodules have these values."""
    tables = [
        (model.get_submodule(p.module).__dict__, p.name, x) for p, x in values.items() if isinstance(p, Attribute)
    ]
    before = [table[name] for table, name, _ in tables]
    for table, name, x in tables:
        table[name] = x
    try:
        yield
    finally:
        for (table, name, _), x in zip(tables, before, strict=True):
            table[name] = x


def holder_of(model: nn.Module, name: str) -> tuple[Any, str]:
    """(module, class or object, attribute in it) of a value with this name in `Expected.keys`; None: they are not known."""
    path, _, leaf = name.removeprefix(GLOBAL).rpartition(".")
    if not name.startswith(GLOBAL):
        return dict(model.named_modules()).get(path), leaf
    steps = path.split(".")
    at = next((i for i in range(len(steps), 0, -1) if ".".join(steps[:i]) in sys.modules), 0)
    return functools.reduce(lambda x, k: getattr(x, k, None), steps[at:], sys.modules.get(".".join(steps[:at]))), leaf


@contextlib.contextmanager
def values_set(values: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Inside, these attributes (owner, name, value) of modules, classes and objects have these values."""
    now = [(owner, name, getattr(owner, name)) for owner, name, _ in values]
    try:
        for place in values:
            setattr(*place)
        yield
    finally:
        for place in now:
            setattr(*place)


def name_of(place: Place, spec: Any) -> str:
    """The name of a place for messages: "weight", "options['rate']", "blocks.0.scale"."""
    if isinstance(place, Attribute):
        return f"{place.module}.{place.name}".lstrip(".")
    text, at = "", spec
    for i in place.path:
        key = at.keys[i] if at.keys is not None else i
        text, at = (f"{text}[{key!r}]" if text else str(key)), at.children[i]
    return text
