"""One op's call as the rules of cuts see it: its arguments by name, the shapes of its tensors, its cuts, and one slice of it.

The rules that several families share stand here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

_VECTOR = 64  # elements of the largest step of a vectorised loop; what is left over is computed alone
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


@dataclass(frozen=True)
class Cut:
    """How one op is cut into slices: per tensor argument and per result the dimension that is cut.

    ins : for each tensor argument in the order of `tensor_arguments(node)`: the dimension, or None: every slice reads it whole.
    outs : for each tensor that the node returns (members in order; None for a member that is no tensor): the dimension, SUM, or
        None: every slice gives the same whole.
    units : the largest number of equal parts into which the op can be cut so; other numbers of parts must divide it.
    """

    ins: tuple[int | None, ...]
    outs: tuple[int | str | None, ...]
    units: int


def tensor_arguments(node: fx.Node) -> list[fx.Node]:
    """The nodes that a node reads tensors of: every occurrence, in order of args then kwargs, lists flattened.

    A node that takes a member of a tuple reads one: the node of the tuple.
    """
    found: list[fx.Node] = []
    map_arg((node.args, node.kwargs), lambda n: found.append(n) if holds_tensors(n) else None)
    return found


@dataclass(frozen=True)
class Slice:
    """One slice of an op's call: units `begin` to `end` of a whole of `size` units.

    ins : argument -> the dimension at which it is cut. outs : as in `Cut`.
    """

    call: Call
    ins: Mapping[str, Dim]
    outs: tuple[int | str | None, ...]
    begin: int
    end: int
    size: int

    def of(self, n: int) -> int:
        """The slice's share of `n` elements, a multiple of `size`."""
        return n // self.size * (self.end - self.begin)


Rule = Callable[[Call], Iterable[Draft]]
Change = Callable[[Slice], dict[str, Any]]  # the arguments of a slice that are not those of the whole


def holds_tensors(x: Any) -> bool:
    """Whether an argument is a node that returns a tensor, or a tuple of them, of which another node takes a member."""
    val = x.meta.get("val") if isinstance(x, fx.Node) else None
    return any(isinstance(t, torch.Tensor) for t in (val if isinstance(val, tuple | list) else [val]))


def span(n: int, begin: int, end: int, size: int) -> tuple[int, int]:
    """The first element of a slice, and the one after its last, in a dimension of `n` elements: a multiple of `size`."""
    return begin * n // size, end * n // size


class Slicing:
    """A cut with the places where its slices begin, as the rules about bits see it.

    edges : units at which slices begin, and the end.
    """

    def __init__(self, node: fx.Node, cut: Cut, edges: Sequence[int]):
        self.call, self.cut, self.edges = Call(node), cut, edges
        self.ins = {(name, i): d for (name, i, _), d in zip(self.call.tensors, cut.ins, strict=True)}
        self.tensors: list[torch.Tensor] = [a.meta["val"] for a in tensor_arguments(node)]

    def least(self) -> int:
        """The size of the smallest slice of the first argument that is cut, along the dimension that is cut."""
        t, d = next((t, d) for t, d in zip(self.tensors, self.cut.ins, strict=True) if d is not None)
        return min(e - b for b, e in self._spans(t, d))

    def begins_at_multiples(self, n: int) -> bool:
        """Whether the slices of the first argument that is cut begin at multiples of n, and each has at least n."""
        t, d = next((t, d) for t, d in zip(self.tensors, self.cut.ins, strict=True) if d is not None)
        return all(b % n == 0 for b, _ in self._spans(t, d)) and self.least() >= n

    def contiguous(self) -> bool:
        """Whether all arguments that are cut are contiguous."""
        return all(t.is_contiguous() for t, d in zip(self.tensors, self.cut.ins, strict=True) if d is not None)

    def in_whole_vectors(self, threads: int) -> bool:
        """Whether each slice is a piece of memory, of whole vectors of elements for each of so many threads."""
        return all(
            t.is_contiguous() and all(n == 1 for n in t.shape[:d])
            and all((e - b) * (t.numel() // t.shape[d]) % (_VECTOR * threads) == 0 for b, e in self._spans(t, d))
            for t, d in zip(self.tensors, self.cut.ins, strict=True) if d is not None
        )  # fmt: skip

    def _spans(self, t: torch.Tensor, d: int) -> list[tuple[int, int]]:
        return [span(t.shape[d], b, e, self.edges[-1]) for b, e in pairwise(self.edges)]


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


def shape_of_result(argument: str) -> Change:
    """The argument holds the shape of the op's only result."""

    def change(part: Slice) -> dict[str, Any]:
        shape, d = list(part.call.out()), part.outs[0]
        if isinstance(d, int):
            shape[d] = part.of(shape[d])
        return {argument: shape} if argument in part.call.values else {}  # `view.dtype` names none

    return change
