"""Python numbers that change from call to call, as inputs of a captured step.

While forward is captured, a stand-in takes the place of each number (see `stand_in`). In calls of tensors it becomes a marker,
an unusual value that shows in the graph where the number went. Arithmetic on stand-ins gives stand-ins; a comparison is
answered and recorded as a question. Any other use (a loop over it, a size, `math.exp`) raises a TypeError: then the number
stays a constant, and each value of it needs another graph.

Kernels and formulas may compute further constants from a marker. `same_graph` finds them: constants that differ between two
captures of the same graph must all be markers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
