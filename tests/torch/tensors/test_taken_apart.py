"""Containers are put together as they were: keys in order, attributes beside the entries, new tensors everywhere."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BatchEncoding
from transformers.utils import ModelOutput

import rekindle
from rekindle.torch.tensors import tree
from rekindle.torch.tensors.objects import fields_of


@dataclass
class Out(ModelOutput):
    last: Any = None
    pooled: Any = None
    hidden: Any = None


@dataclass
class More(Out):
    more: Any = None


class Dict(dict):  # type: ignore[type-arg]
    pass


class Ordered(OrderedDict):  # type: ignore[type-arg]
    pass


class Dotted(dict):  # type: ignore[type-arg]
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__  # type: ignore[assignment]


class User(UserDict):  # type: ignore[type-arg]
    pass


class Table(MutableMapping):  # type: ignore[type-arg]
    """Keeps its entries in an attribute, which a shallow copy shares."""

    def __init__(self, **held: Any) -> None:
        self._held = held

    def __getitem__(self, key: str) -> Any:
        return self._held[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._held[key] = value

    def __delitem__(self, key: str) -> None:
        del self._held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


@dataclass
class Record:
    a: Any
    b: Any = dataclasses.field(init=False)


@dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any = None


@dataclass(slots=True)
class Slotted:
    a: Any
    b: Any = None


def t() -> torch.Tensor:
    return torch.zeros(1)


def owner(x: Any) -> None:
    x.owner = types.SimpleNamespace(owned=x, mask=t())


def put(name: str, make: Callable[[], Any] = t) -> Callable[[Any], None]:
    return lambda x: setattr(x, name, make())


def item(name: str, make: Callable[[], Any] = t) -> Callable[[Any], None]:
    return lambda x: x.__setitem__(name, make())


def late() -> Any:
    x = Out(last=t(), hidden=t())
    x.pooled = t()
    return x


CASES: dict[str, tuple[Callable[[], Any], tuple[Callable[[Any], None], ...]]] = {
    "a field that is set later": (late, ()),
    "a field that is set later as an entry": (lambda: Out(last=t(), hidden=t()), (item("pooled"),)),
    "nested": (lambda: Out(last=late(), hidden=(late(),)), (put("pooled", late),)),
    "of a subclass": (lambda: More(more=t()), (put("last"), put("pooled"))),
    "moved": (lambda: Out(last=t(), hidden=t()), (lambda x: x.move_to_end("last"),)),
    "no field": (lambda: Out(last=t()), (put("aux"), item("more"), put("rate", lambda: 2.0), put("seen", lambda: [1]))),
    "an attribute that is None": (lambda: Out(last=t(), pooled=t(), hidden=t()), (put("pooled", lambda: None),)),
    "an entry that is None": (lambda: Out(last=t(), pooled=t(), hidden=t()), (item("pooled", lambda: None),)),
    "only the last": (lambda: Out(hidden=t()), ()),
    "a dict": (lambda: Dict(b=t(), a=t()), (put("aux"), put("a"), put("seen", lambda: {"k": [t(), 2]}))),
    "an ordered dict": (lambda: Ordered(a=t(), b=t()), (put("aux"), lambda x: x.move_to_end("a"))),
    "a plain ordered dict": (lambda: OrderedDict(a=t(), b=t()), (lambda x: x.move_to_end("a"),)),
    "a dict with dots": (lambda: Dotted(b=t()), (put("a"), item("c"))),
    "a user's dict": (lambda: User(b=t(), a=t()), (put("aux"),)),
    "a default dict": (lambda: defaultdict(list, b=t(), a=t()), ()),
    "a batch": (lambda: BatchEncoding({"b": t(), "a": t()}), ()),
    "a table": (lambda: Table(b=t(), a=t()), (put("aux"),)),
    "a dataclass": (lambda: Record(t()), (put("aux"), put("rate", lambda: 2.0))),
    "a whole dataclass": (lambda: Record(t()), (put("b"),)),
    "a frozen dataclass": (lambda: Frozen(t()), ()),
    "a slotted dataclass": (lambda: Slotted(t()), (put("b"),)),
    "an object": (types.SimpleNamespace, (put("b"), put("a"))),
}


def unequal(x: Any, y: Any, twins: dict[int, torch.Tensor], at: str = "x") -> list[str]:
    """The places at which y is not x with these tensors in place of its own."""
    if isinstance(x, torch.Tensor):
        return [] if y is twins[id(x)] else [at]
    if type(x) is not type(y):
        return [at]
    inside: list[tuple[Any, Any]] = []
    if isinstance(x, tree.Mapping):
        inside += [([*x], [*y]), *((x[k], y[k]) for k in x if k in y)]
    elif isinstance(x, tuple | list):
        inside += [(len(x), len(y)), *zip(x, y, strict=False)]
    elif not fields_of(x):
        return [] if x == y else [at]
    a, b = fields_of(x), fields_of(y)
    inside += [({*a}, {*b}), *((a[k], b[k]) for k in a.keys() & b.keys())]
    return [p for i, (v, w) in enumerate(inside) for p in unequal(v, w, twins, f"{at}.{i}")]


@pytest.mark.parametrize(("make", "changes"), CASES.values(), ids=CASES)
def test_put_together_as_it_was(make: Any, changes: Any) -> None:
    x = make()
    for change in changes:
        change(x)
    tensors, spec = tree.flatten((x,))
    assert not unequal(x, x, {id(t): t for t in tensors})
    for _ in range(2):  # each has containers of its own
        twins = {id(t): t.clone() for t in tensors}
        made = tree.unflatten([*twins.values()], spec)
        assert not unequal((x,), made, twins)


@pytest.mark.parametrize("make", [lambda: Dict(a=t()), lambda: Record(t()), lambda: Out(last=t())])
def test_an_attribute_that_leads_back(make: Any) -> None:
    x = make()
    owner(x)
    tensors, spec = tree.flatten(x)
    assert len(tensors) == 2
    tree.unflatten(tensors, spec)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, batch: Any) -> Any:
        y = self.b(self.a(batch["x"]).tanh()) * batch.mask * sum(batch.sizes)
        out = Out(last=y, hidden=y * 2)
        out.pooled, out.sizes = y.sum(), batch.sizes
        return out


def batch(factor: float, sizes: list[int]) -> Any:
    made = Dict(x=torch.ones(4, 8))
    made.mask, made.sizes = torch.full((4, 8), factor), sizes  # type: ignore[attr-defined]
    return made


def test_attributes_of_inputs_and_results_are_those_of_the_call() -> None:
    plain = Net()
    planned = rekindle.checkpoint(copy.deepcopy(plain), (batch(1.0, [1]),), 1.0, solver="storages")
    for given in (1.0, [1]), (2.0, [1]), (2.0, [1, 2]):
        a, b = plain(batch(*given)), planned(batch(*given))
        assert [*a] == [*b] == ["last", "hidden", "pooled"]
        assert torch.equal(a[2], b[2])
        assert torch.equal(a.last, b.last)
        assert a.sizes == b.sizes
