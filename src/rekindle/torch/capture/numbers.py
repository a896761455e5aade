"""Python numbers that change from call to call, as inputs of a captured step.

While forward is captured each of them is a stand-in: tensors take an unusual value as a marker, so that the graph shows where
the number went. Arithmetic on stand-ins gives stand-ins; a comparison is answered and remembered as a question, as those about
values of tensors are. Whatever else is done with one (a loop over it, a size, `math.exp`) raises a TypeError: then the number
stays a constant, and each value of it is another graph.

Kernels and formulas may compute constants of their own from a marker. `matches` finds them: constants that differ between two
captures of the same graph must all be markers.
"""

from __future__ import annotations

import contextlib
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from . import tree
from .values import key_of

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

    def stand_ins(self, numbers: Mapping[Place, Any]) -> dict[Place, Any]:
        """A stand-in for each number."""
        return {p: _StandIn(self, x, Expression(None, (p,))) for p, x in numbers.items()}

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


class _StandIn:
    """Looks like the number that it stands for, to `isinstance` too."""

    __slots__ = ("_expression", "_numbers", "_value")

    def __init__(self, numbers: Numbers, value: Any, expression: Expression):
        self._numbers, self._value, self._expression = numbers, value, expression

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # type: ignore[misc]
        return type(self._value)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(x: Any) -> Any:
            return x._numbers.marker(x._value, x._expression) if type(x) is _StandIn else x

        given = pytree.tree_map(plain, (args, kwargs or {}), is_leaf=lambda x: type(x) is _StandIn)
        return func(*given[0], **given[1])

    def __bool__(self) -> bool:
        return self._ask(operator.truth)

    def _ask(self, op: Callable[..., Any], *others: Any) -> bool:
        if not all(_is_number(x) for x in others):
            return NotImplemented
        answer = op(self._value, *map(_value, others))
        self._numbers.questions.append((Expression(op, (self._expression, *map(_expression, others))), answer))
        return bool(answer)

    def _made(self, op: Callable[..., Any], *operands: Any) -> Any:
        if not all(_is_number(x) for x in operands):
            return NotImplemented
        value = op(*map(_value, operands))
        return _StandIn(self._numbers, value, Expression(op, tuple(map(_expression, operands))))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise TypeError("a number that is an input of the graph has no text")

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        raise TypeError("a number that is an input of the graph has no text")

    def __neg__(self) -> Any:
        return self._made(operator.neg, self)

    def __pos__(self) -> Any:
        return self._made(operator.pos, self)

    def __abs__(self) -> Any:
        return self._made(operator.abs, self)


def _arithmetic(op: Callable[..., Any]) -> tuple[Any, Any]:
    def left(self: _StandIn, other: Any) -> Any:
        return self._made(op, self, other)

    def right(self: _StandIn, other: Any) -> Any:
        return self._made(op, other, self)

    return left, right


def _comparison(op: Callable[..., Any]) -> Any:
    def compare(self: _StandIn, other: Any) -> Any:
        return self._ask(op, other)

    return compare


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _left, _right = _arithmetic(getattr(operator, _name))
    setattr(_StandIn, f"__{_name}__", _left)
    setattr(_StandIn, f"__r{_name}__", _right)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(_StandIn, f"__{_name}__", _comparison(getattr(operator, _name)))
_StandIn.__hash__ = None  # type: ignore[assignment, method-assign]


def _is_number(x: Any) -> bool:
    return type(x) in (_StandIn, int, float, bool)


def _value(x: Any) -> Any:
    return x._value if type(x) is _StandIn else x


def _expression(x: Any) -> Any:
    return x._expression if type(x) is _StandIn else x


# -- where numbers stand ---------------------------------------------------------------------------------------------------
def numbers_in(spec: Any, path: tuple[int, ...] = ()) -> dict[Argument, Any]:
    """The numbers in a structure that `tree.flatten` gave."""
    if isinstance(spec, tree.Branch):
        return {k: x for i, c in enumerate(spec.children) for k, x in numbers_in(c, (*path, i)).items()}
    return {Argument(path): spec} if type(spec) in (int, float) else {}


def replaced(spec: Any, by: Mapping[Place, Any], path: tuple[int, ...] = ()) -> Any:
    """The structure with other values at these places."""
    if isinstance(spec, tree.Branch):
        children = tuple([replaced(c, by, (*path, i)) for i, c in enumerate(spec.children)])
        return tree.Branch(spec.like, spec.keys, children)
    return by.get(Argument(path), spec)


def has_stand_in(spec: Any) -> bool:
    """Whether a structure holds a stand-in: a result that no planned call could give."""
    if isinstance(spec, tree.Branch):
        return any(map(has_stand_in, spec.children))
    return type(spec) is _StandIn


def read(places: Sequence[Place], spec: Any, model: nn.Module) -> dict[Place, Any] | None:
    """The numbers that stand there now; None where one of them is no number any more."""
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
    """Meanwhile attributes of submodules have these values."""
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


def name_of(place: Place, spec: Any) -> str:
    """The place, to be read by people: "weight", "options['rate']", "blocks.0.scale"."""
    if isinstance(place, Attribute):
        return f"{place.module}.{place.name}".lstrip(".")
    text, at = "", spec
    for i in place.path:
        key = at.keys[i] if at.keys is not None else i
        text, at = (f"{text}[{key!r}]" if text else str(key)), at.children[i]
    return text


# -- whether two captures are of one graph ---------------------------------------------------------------------------------
def matches(found: Any, earlier: Any, numbers: Numbers, before: Mapping[Place, Any]) -> bool:
    """Whether a step captured with markers is the step that was captured earlier with the numbers `before`: the same ops with
    the same constants, and where a marker stands now, there stood what its expression gives for them."""
    one, two = found.nodes, earlier.nodes
    if len(one) != len(two):
        return False
    place = {n: i for i, n in enumerate([*found.placeholders, *found.tangents, *one])}
    place_before = {n: i for i, n in enumerate([*earlier.placeholders, *earlier.tangents, *two])}

    def leaves(n: Any, at: Mapping[Any, int]) -> list[Any]:
        return [
            ("node", at.get(x)) if hasattr(x, "all_input_nodes") else x for x in pytree.tree_leaves((n.args, n.kwargs))
        ]

    def same(x: Any, y: Any) -> bool:
        expression = numbers.markers.get(x) if type(x) in (int, float) else None
        return key_of(x if expression is None else expression.value(before)) == key_of(y)

    def same_call(a: Any, b: Any) -> bool:
        xs, ys = leaves(a, place), leaves(b, place_before)
        return a.target == b.target and len(xs) == len(ys) and all(map(same, xs, ys))

    if not all(map(same_call, one, two)):
        return False
    written: Sequence[tuple[Any, Any]] = [
        (found.writing.get(a), earlier.writing.get(b)) for a, b in zip(one, two, strict=True)
    ]
    for a, b in written:
        if (a is None) != (b is None) or a is not None and a.target != b.target:
            return False
    constants = [c.constants.values() for c in (found, earlier)]
    return len(constants[0]) == len(constants[1]) and all(map(_same_tensor, *constants))


def _same_tensor(s: torch.Tensor, t: torch.Tensor) -> bool:
    return s is t or (s.shape, s.dtype, s.device) == (t.shape, t.dtype, t.device) and torch.equal(s, t)
