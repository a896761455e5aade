"""Python numbers that change from call to call, as inputs of a captured step.

While forward is captured each of them is a stand-in: tensors take an unusual value as a marker, so that the graph shows where
the number went. Arithmetic on stand-ins gives stand-ins; a comparison is answered and remembered as a question, as those about
values of tensors are. Whatever else is done with one (a loop over it, a size, `math.exp`) raises a TypeError: then the number
stays a constant, and each value of it is another graph.

Kernels and formulas may compute constants of their own from a marker. `matches` finds them: constants that differ between two
captures of the same graph must all be markers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SPECIAL = (0, 1, -1, 2, -2, 3, 0.5, -0.5)  # where formulas may take a shorter way


class Argument(NamedTuple):
    """A number among the arguments of a call: its path in the structure."""

    path: tuple[int, ...]


class Attribute(NamedTuple):
    """A number that is an attribute of a submodule."""

    module: str
    name: str


Place = Argument | Attribute


class Expression(NamedTuple):
    """operator of operands: places, expressions or plain numbers. No operator: the one operand itself."""

    operator: Callable[..., Any] | None
    operands: tuple[Any, ...]

    def value(self, numbers: Mapping[Place, Any]) -> Any:
        """For these numbers."""
        given = [
            x.value(numbers) if isinstance(x, Expression) else numbers[x] if isinstance(x, Place) else x
            for x in self.operands
        ]
        return given[0] if self.operator is None else self.operator(*given)


@dataclass
class Numbers:
    """The numbers of a captured step.

    places : where they come from. markers : what stands for them in the graph -> how it is computed.
    questions : (comparison, answer), asked while the step was captured.
    """

    places: tuple[Place, ...] = ()
    markers: dict[float | int, Expression] = field(default_factory=dict)
    questions: list[tuple[Expression, bool]] = field(default_factory=list)

    def marker(self, value: Any, expression: Expression) -> float | int:
        """What stands in the graph for a number of this type."""
        for m, e in self.markers.items():
            if e == expression and type(m) is type(value):
                return m
        m = _SOURCE.randrange(2**40, 2**41) if isinstance(value, int) else _SOURCE.uniform(0.1, 0.9)
        self.markers[m] = expression
        return m

    def serve(self, numbers: Mapping[Place, Any]) -> bool:
        """Whether the step holds for these: same answers, and none that a formula may treat by itself."""
        try:
            return all(e.value(numbers) == answer for e, answer in self.questions) and not any(
                _is_special(e.value(numbers)) for e in self.markers.values()
            )
        except (ArithmeticError, KeyError):
            return False

    def values(self, numbers: Mapping[Place, Any]) -> list[Any]:
        """What the program reads, in order of `markers`."""
        return [e.value(numbers) for e in self.markers.values()]


_SOURCE = random.Random(0x5EED)  # of its own: the user's generators stay as they are


def _is_special(x: Any) -> bool:
    return x in SPECIAL or x != x or abs(x) == float("inf")
