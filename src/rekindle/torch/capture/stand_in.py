"""Stand-ins while a call is captured: for Python numbers, which record how forward uses a number, and for tensors of the
user's classes."""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..private import FakeTensor, FunctionalTensor, pytree
from ..situation.numbers import Expression, Numbers, Place
from ..tensors import tree


class StandIn:
    """An object that looks like the number that it stands for, also to `isinstance`."""

    __slots__ = ("_expression", "_numbers", "_value")

    def __init__(self, numbers: Numbers, value: Any, expression: Expression):
        self._numbers, self._value, self._expression = numbers, value, expression

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # type: ignore[misc]
        return type(self._value)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(x: Any) -> Any:
            return x._numbers.marker(x._value, x._expression) if type(x) is StandIn else x

        given = pytree.tree_map(plain, (args, kwargs or {}), is_leaf=lambda x: type(x) is StandIn)
        return func(*given[0], **given[1])

    def __repr__(self, *_: Any) -> str:
        raise TypeError("a number that is an input of the graph has no text")

    __str__ = __format__ = __repr__


def _operation(op: Callable[..., Any], asks: bool = False, turned: bool = False) -> Any:
    """A method of stand-ins that makes another number, or asks about numbers. turned : the other operand comes first."""

    def method(self: StandIn, *others: Any) -> Any:
        operands = (*others, self) if turned else (self, *others)
        if not all(type(x) in (StandIn, int, float, bool) for x in operands):
            return NotImplemented
        value = op(*[x._value if type(x) is StandIn else x for x in operands])
        expression = Expression(op, tuple([x._expression if type(x) is StandIn else x for x in operands]))
        if not asks:
            return StandIn(self._numbers, value, expression)
        self._numbers.questions.append((expression, value))
        return bool(value)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(StandIn, f"__{_name}__", _operation(getattr(operator, _name)))
    setattr(StandIn, f"__r{_name}__", _operation(getattr(operator, _name), turned=True))
for _name in ("neg", "pos", "abs"):
    setattr(StandIn, f"__{_name}__", _operation(getattr(operator, _name)))
for _name, _op in ({x: x for x in ("eq", "ne", "lt", "le", "gt", "ge")} | {"bool": "truth"}).items():
    setattr(StandIn, f"__{_name}__", _operation(getattr(operator, _op), asks=True))
StandIn.__hash__ = None  # type: ignore[assignment, method-assign]


def has_stand_in(spec: Any) -> bool:
    """Whether a structure holds a stand-in. As part of a result, no planned call could return it."""
    return any(type(x) is StandIn for x in tree.leaves(spec))


def stand_ins(numbers: Numbers, values: Mapping[Place, Any]) -> dict[Place, Any]:
    """A stand-in for each of the numbers, which records its uses in `numbers`."""
    return {p: StandIn(numbers, x, Expression(None, (p,))) for p, x in values.items()}


_KIND = "_rekindle_kind"  # the attribute of a traced tensor that holds the class for which it stands
_TRACED: tuple[Any, ...] = (FunctionalTensor, FakeTensor)


@contextlib.contextmanager
def own_classes(own: Mapping[str, torch.Tensor], now: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Inside, traced tensors have the attributes of the parameters and buffers for which they stand, the methods of their
    classes, and are instances of them if those are parameters. own : the real tensors. now : traced ones, by the same names."""
    if not own:
        yield
        return
    for name, t in own.items():
        now[name].__dict__.update({k: x for k, x in vars(t).items() if k not in vars(now[name])} | {_KIND: type(t)})
    meta: Any = type(nn.Parameter)
    check = meta.__instancecheck__

    def is_instance(kind: type, x: Any) -> bool:
        stands_for = vars(x).get(_KIND) if isinstance(x, _TRACED) and kind is not nn.Parameter else None
        return check(kind, x) or stands_for is not None and issubclass(stands_for, kind)

    def missing(t: Any, name: str) -> Any:
        found = inspect.getattr_static(vars(t).get(_KIND, object), name, None)
        if found is None:
            raise AttributeError(f"{type(t).__name__!r} object has no attribute {name!r}")
        return found.__get__(t, vars(t)[_KIND]) if hasattr(found, "__get__") else found

    meta.__instancecheck__ = is_instance
    for traced in _TRACED:
        traced.__getattr__ = missing
    try:
        yield
    finally:
        meta.__instancecheck__ = check
        for traced in _TRACED:
            del traced.__getattr__
