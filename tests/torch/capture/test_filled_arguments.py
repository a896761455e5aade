"""Forwards that put results into containers that they are given: the loop finds them there, as after a plain step."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rekindle
from marks import few
from rekindle import RekindleError, TraceError
from rekindle.torch.tensors import tree

LEAST: dict[str, Any] = {"minimize": "memory", "effort": "quick", "cost": "unit", "progress": False, "cache": False}


class Net(nn.Module):
    def __init__(self, fill: Callable[..., Any]) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 32), nn.Linear(32, 8), nn.Linear(8, 8)
        self.fill = fill

    def first(self, x: Tensor) -> Tensor:
        return torch.tanh(self.a(x))

    def last(self, h: Tensor) -> Tensor:
        return self.c(torch.tanh(self.b(torch.sin(h))))

    def forward(self, *given: Any) -> Any:
        return self.fill(self, *given)


@dataclass
class Item:
    x: Any
    h: Any = None


class Batch:
    def __init__(self, x: Tensor) -> None:
        self.x, self.nodes, self.tag = x, [3, 1], None


def returned(m: Net, data: Any) -> Any:
    h = m.first(data["x"])
    data["h"], data["old"], data["weight"] = h, data["x"], m.a.weight
    data["x"] = m.last(h)
    return data


def into_empty(m: Net, x: Tensor, data: Any) -> Tensor:
    data.h = m.first(x)
    return m.last(data.h)


def not_returned(m: Net, data: Any) -> None:
    data["h"] = m.first(data["x"])
    data["y"] = m.last(data["h"])


def losses(m: Net, x: Tensor, found: list[Tensor]) -> Tensor:
    h = m.first(x)
    found.append(h.square().mean())
    y = m.last(h)
    found.insert(0, y.abs().mean())
    return y.square().mean()


def nested(m: Net, data: Any) -> Any:
    h = m.first(data["in"].pop("x"))
    data["out"], data["in"]["seen"] = {"h": h}, h
    data["rows"].append(m.last(h))
    del data["tmp"]
    data["moved"] = data.pop("in")
    return {"all": data, "rows": data["rows"]}


def counted(m: Net, data: Any) -> Tensor:
    data["n"], data["name"] = data["n"] + 1, "done"
    return m.last(m.first(data["x"]))


def fields(m: Net, item: Any) -> Any:
    item.h = m.first(item.x)
    item.x = m.last(item.h)
    item.more = 2 * item.h
    return item


def grouped(m: Net, data: Any) -> Tensor:
    data["h"].append(m.first(data["x"][0]))
    data["y"].append(m.last(data["h"][-1]))
    return data["y"][-1]


CASES: dict[str, tuple[Callable[..., Any], Callable[[Tensor], tuple[Any, ...]]]] = {
    "dict": (returned, lambda x: ({"x": x, "ids": [1], "scale": 0.5},)),
    "ordered dict": (returned, lambda x: (OrderedDict(x=x),)),
    "mapping": (returned, lambda x: (UserDict(x=x),)),
    "dict that is not returned": (not_returned, lambda x: ({"x": x},)),
    "list": (losses, lambda x: (x, [])),
    "nested": (nested, lambda x: ({"in": {"x": x}, "rows": [], "tmp": 1},)),
    "plain values": (counted, lambda x: ({"x": x, "n": 1, "name": ""},)),
    "dataclass": (fields, lambda x: (Item(x),)),
    "namespace": (fields, lambda x: (SimpleNamespace(x=x, tag="t"),)),
    "empty namespace": (into_empty, lambda x: (x, SimpleNamespace())),
    "object": (fields, lambda x: (Batch(x),)),
    "default dict": (grouped, lambda x: (defaultdict(list, x=[x]),)),
}


def places(result: Any, given: Any) -> tuple[list[Tensor], str]:
    """(the tensors that the loop can reach, where they stand)."""
    tensors, _ = tree.flatten((result, given), opaque_ok=True)
    number = {id(t): i for i, t in enumerate(tensors)}

    def shown(x: Any) -> str:
        if isinstance(x, Tensor | str | int | float | None):
            return f"tensor {number.setdefault(id(x), len(number))}" if isinstance(x, Tensor) else repr(x)
        return f"{type(x).__name__} {[(k, shown(v)) for k, v in tree.held_in(x).items()]}"

    return tensors, shown((result, given))


def step(m: nn.Module, given: tuple[Any, ...]) -> tuple[list[Any], Any]:
    m.zero_grad()
    result = m(*given)
    tensors, where = places(result, given)
    loss = sum((i + 1) * t.square().sum() for i, t in enumerate(tensors) if t.grad_fn is not None)
    loss.backward()  # type: ignore[union-attr]
    return [*tensors, *(p.grad for p in m.parameters())], (where, [result is x for x in given])


@pytest.mark.parametrize("case", few(CASES, ("dict", "nested", "object")))
def test_the_loop_finds_what_forward_put_there(case: str, recwarn: pytest.WarningsRecorder) -> None:
    fill, make = CASES[case]
    torch.manual_seed(0)
    plain = Net(fill)
    planned, sample = copy.deepcopy(plain), make(torch.randn(16, 8))
    before = places(None, sample)[1]
    rekindle.checkpoint(planned, sample, **LEAST)
    assert places(None, sample)[1] == before
    for _ in range(2):
        x = torch.randn(16, 8)
        (ours, here), (theirs, there) = step(planned, make(x)), step(plain, make(x))
        assert here == there
        assert all(a is b or torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert planned.forward.last is not None  # type: ignore[union-attr]
    assert len(list(planned.forward.bounds)) == 1  # type: ignore[union-attr]
    assert not [w for w in recwarn if "planned steps do not" in str(w.message)]


def test_a_wrong_gradient_of_a_filled_list_would_be_seen() -> None:
    x = torch.randn(16, 8)
    m = Net(losses)
    check = rekindle.verify(rekindle.checkpoint(m, (x, []), **LEAST), (x, []))
    assert check.ok
    assert check.loss_equal
    found: list[Tensor] = []
    (m(x, found) + found[0] + found[1]).backward()
    both = [p.grad.clone() for p in m.parameters() if p.grad is not None]
    m.zero_grad()
    m(x, []).backward()
    assert not any(map(torch.equal, both, [p.grad for p in m.parameters() if p.grad is not None]))


def test_an_object_without_tensors_that_forward_fills_is_refused() -> None:
    class Marks:
        pass

    x = torch.randn(16, 8)
    with pytest.raises(
        TraceError, match="puts tensors into the argument given, where Marks holds none.*SimpleNamespace"
    ):
        rekindle.trace(Net(into_empty), (x, Marks()), progress=False)


def test_one_container_in_two_places_is_refused() -> None:
    def fill(m: Net, a: Any, b: Any) -> Tensor:
        a["h"] = m.first(a["x"])
        return m.last(b["h"] if "h" in b else m.first(2 * b["x"]))

    x = torch.randn(16, 8)
    m = rekindle.checkpoint(Net(fill), ({"x": x}, {"x": x}), **LEAST)
    data = {"x": x}
    with pytest.raises(RekindleError, match="in two places, and forward changes some; pass a copy"):
        m(data, data)


def test_what_was_left_out_is_none_in_the_container_too() -> None:
    x = torch.randn(16, 8)
    m = rekindle.checkpoint(Net(returned), ({"x": x},), unused=["h"], **LEAST)
    data = m({"x": x})
    assert data["h"] is None
    assert data["x"].requires_grad
