"""One op's call as the rules of cuts see it: its arguments by name, the shapes of its tensors, and the drafts of its cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

SUM = "sum"  # each slice gives a whole-shaped part of the result; the parts are added
Dim = int | None
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Draft:
    """One cut as a rule names it.

    ins : argument -> the dimension that is cut; for an argument that is a list of tensors, one for all, or one per member.
        Every slice reads the arguments that are not named whole.
    outs : per result as in `Cut`.
    most : the op can be cut into no more equal parts than this; 0: the sizes of the dimensions say it all.
    """

    ins: Mapping[str, Dim | Sequence[Dim]]
    outs: tuple[int | str | None, ...]
    most: int = 0


class Call:
    """The call of a node whose target is an operator.

    values : argument -> its value, defaults too.
    tensors : (argument, position in it, shape) of every tensor argument, in the order of the call; the position counts members
        of a list, and is 0 for a plain tensor.
    results : the tensors that the node returns, members in order; None for a member that is no tensor.
    """

    def __init__(self, node: fx.Node):
        target: Any = node.target
        arguments = target._schema.arguments
        self.node, self.name = node, str(target._schema.name)
        self.values: dict[str, Any] = {a.name: a.default_value for a in arguments if a.has_default_value()}
        given = [*zip((a.name for a in arguments), node.args, strict=False), *node.kwargs.items()]
        self.values |= dict(given)
        self.tensors = [
            (name, i, tuple(x.meta["val"].shape))
            for name, value in given
            for i, x in enumerate(value if isinstance(value, list | tuple) else [value])
            if holds_tensors(x)
        ]
        val = node.meta["val"]
        self.results: list[torch.Tensor | None] = [
            t if isinstance(t, torch.Tensor) else None for t in (val if isinstance(val, tuple | list) else [val])
        ]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def shape(self, name: str) -> Shape:
        """The shape of a tensor argument; () where the argument is None."""
        return next((shape for n, _, shape in self.tensors if n == name), ())

    def out(self, index: int = 0) -> Shape:
        """The shape of a result; () for a member that is no tensor."""
        t = self.results[index]
        return () if t is None else tuple(t.shape)

    def dims(self, name: str = "dim") -> set[int]:
        """The dimensions of the first tensor that an argument names, counted from the front; all, where it names none."""
        rank, value = len(self.tensors[0][2]), self.values.get(name)
        named = [value] if isinstance(value, int) else list(value or [])
        return {d % rank for d in named} if named and rank else set(range(rank))


Rule = Callable[[Call], Iterable[Draft]]


def holds_tensors(x: Any) -> bool:
    """Whether an argument is a node that returns a tensor, or a tuple of them, of which another node takes a member."""
    val = x.meta.get("val") if isinstance(x, fx.Node) else None
    return any(isinstance(t, torch.Tensor) for t in (val if isinstance(val, tuple | list) else [val]))


def aligned(shape: Shape, whole: Shape, dim: int) -> Dim:
    """The dimension of a tensor that broadcasting lays over `dim` of the whole; None where one row is repeated there.

    >>> aligned((5, 1, 3), (2, 5, 4, 3), 1), aligned((5, 1, 3), (2, 5, 4, 3), 2), aligned((5, 1, 3), (2, 5, 4, 3), 0)
    (0, None, None)
    """
    own = dim - len(whole) + len(shape)
    return own if own >= 0 and shape[own] == whole[dim] else None


def alike(call: Call, dims: Iterable[int]) -> list[Draft]:
    """Cuts of all tensors, arguments and results, at the same dimension."""
    return [Draft({name: d for name, _, _ in call.tensors}, (d,) * len(call.results)) for d in dims]


def broadcast(call: Call) -> list[Draft]:
    """Cuts of an op that computes each element of its results from elements at the same place, after broadcasting."""
    whole = call.out()
    return [
        Draft({name: aligned(shape, whole, d) for name, _, shape in call.tensors}, (d,) * len(call.results))
        for d in range(len(whole))
    ]


def others(call: Call) -> list[Draft]:
    """Cuts at every dimension but those that the argument `dim` or `dims` names."""
    named = call.dims("dims" if "dims" in call.values else "dim")
    return alike(call, [d for d in range(len(call.out())) if d not in named])
