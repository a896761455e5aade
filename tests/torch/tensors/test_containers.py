"""Containers with methods of their own are looked at, and put back, without calling those."""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import rekindle
from rekindle.torch.tensors.objects import content, entries, refill


class Registry(OrderedDict[str, Any]):
    """Builds an object of the class that it is asked for, as Transformers does for activations."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()


class Doubling(list[Any]):
    def __iter__(self) -> Any:
        return (2 * x for x in super().__iter__())

    def clear(self) -> None:
        raise RuntimeError("not to be cleared")


ACTIVATIONS = Registry(relu=nn.ReLU, tanh=nn.Tanh)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 1)
        self.known = Registry(relu=nn.ReLU)
        self.scales = Doubling([1, 2])

    def forward(self, x: Tensor) -> Tensor:
        return self.b(ACTIVATIONS["tanh"](self.known["relu"](self.a(x)) * next(iter(self.scales))))


def test_a_registry_of_classes_holds_classes_after_planning_and_serves_the_next_call() -> None:
    model, eager, x = Net(), Net(), torch.rand(4, 8)  # no copy: that of a list asks the list for what it holds
    eager.load_state_dict(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rekindle.checkpoint(model, x, budget=1.0, solver="storages", time_limit=2)
        for m in (model, eager, model):
            m.zero_grad()
            m(x).sum().backward()
    assert OrderedDict(entries(ACTIVATIONS)) == {"relu": nn.ReLU, "tanh": nn.Tanh}
    assert dict(entries(model.known)) == {"relu": nn.ReLU}
    assert content(model.scales) == [1, 2]
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), eager.parameters(), strict=True))
    assert len(list(model.forward.bounds)) == 1  # type: ignore[union-attr]


KINDS = [list, Doubling, deque, dict, Registry, OrderedDict, Counter, set, lambda x: defaultdict(int, x)]


@pytest.mark.parametrize("kind", KINDS)
@given(
    before=st.dictionaries(st.text(max_size=3), st.integers()),
    after=st.dictionaries(st.text(max_size=3), st.integers()),
)
def test_what_was_read_is_put_back(kind: Any, before: dict[str, int], after: dict[str, int]) -> None:
    x, y = kind(before), kind(after)
    held = content(x)
    refill(x, content(y))
    assert content(x) == content(y)
    refill(x, held)
    assert content(x) == held
    assert type(held) in (list, dict, set)


def test_an_ordered_dict_keeps_its_order() -> None:
    x = OrderedDict(a=1, b=2, c=3)
    x.move_to_end("a")
    assert list(entries(x)) == [("b", 2), ("c", 3), ("a", 1)]
    held = content(x)
    x["d"] = 4
    refill(x, held)
    assert list(x.items()) == list(reversed(list(reversed(x.items())))) == [("b", 2), ("c", 3), ("a", 1)]
