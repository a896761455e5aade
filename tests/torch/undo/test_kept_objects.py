"""Objects of Python that forward can change beside the module's attributes are as before, whatever the verb finds."""

from __future__ import annotations

import array
import contextlib
import ctypes
import io
import itertools
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rekindle
from marks import every

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.rand(8, 8)
GENERATOR = torch.Generator()


class Elsewhere:
    count = 0
    rows: list[int] = []
    mean = torch.zeros(8)


def helper() -> None:
    helper.calls += 1  # type: ignore[attr-defined]


helper.calls = 0  # type: ignore[attr-defined]


def closed_over() -> tuple[Callable[[], None], Callable[..., None]]:
    def inner() -> None:
        inner.calls += 1  # type: ignore[attr-defined]

    inner.calls = 0  # type: ignore[attr-defined]
    return lambda: inner(), inner


CALLS, INNER = closed_over()


class Model(nn.Module):
    def __init__(self, change: Callable[[Any, Tensor], Any], **held: Any):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        self.change, self.held = change, held

    def forward(self, x: Tensor, row: list[int] = [], *, table: dict[str, Any] = {}) -> Tensor:  # noqa: B006
        y = self.net(x)
        self.change(self, y.detach().mean(0))
        row.append(1)
        table["y"] = y.detach()
        return y


def planned(model: nn.Module) -> nn.Module:
    return rekindle.checkpoint(
        model, X, minimize="memory", solver="storages", time_limit=1, cost="flops", progress=False
    )


def set_mean(m: Any, h: Tensor) -> None:
    Elsewhere.mean = h


def count(m: Any, h: Tensor) -> None:
    Elsewhere.count += 1
    Elsewhere.rows.append(1)
    helper()
    CALLS()


# fmt: off
CHANGES: dict[str, tuple[Callable[[Any, Tensor], Any], Callable[[], dict[str, Any]]]] = {
    "a variable of another class": (set_mean, dict),
    "numbers of other classes and functions": (count, dict),
    "an array": (lambda m, h: m.held["x"].append(1), lambda: {"x": array.array("d", [0])}),
    "bytes": (lambda m, h: m.held["x"].extend(b"ab"), lambda: {"x": bytearray(2)}),
    "memory of C": (lambda m, h: m.held["x"].__setitem__(0, 1), lambda: {"x": (ctypes.c_int * 1)()}),
    "a view of bytes": (lambda m, h: m.held["x"].__setitem__(0, 1), lambda: {"x": memoryview(bytearray(1))}),
    "text": (lambda m, h: m.held["x"].write("x"), lambda: {"x": io.StringIO()}),
    "a generator in a list": (lambda m, h: torch.rand(1, generator=m.held["x"][0]), lambda: {"x": [torch.Generator()]}),
    "a global generator": (lambda m, h: torch.rand(1, generator=GENERATOR), dict),
}
# fmt: on


def look(m: Any) -> Any:
    x = m.held.get("x")
    state = x[0].get_state().tolist() if isinstance(x, list) else getattr(x, "getvalue", lambda: bytes(x or b""))()
    numbers = Elsewhere.count, len(Elsewhere.rows), helper.calls, INNER.calls  # type: ignore[attr-defined]
    defaults = Model.forward.__defaults__, Model.forward.__kwdefaults__
    return state, numbers, id(Elsewhere.mean), str(defaults), GENERATOR.get_state().tolist()


@pytest.mark.parametrize("kind", every(4, CHANGES))
def test_objects_that_forward_changes_are_put_back(kind: str) -> None:
    change, made = CHANGES[kind]
    model = Model(change, **made())
    before = look(model)
    with contextlib.suppress(rekindle.RekindleError):
        planned(model)
    rekindle.restore(model)
    assert look(model) == before
    model(X).sum().backward()
    Model.forward.__defaults__[0].clear()  # type: ignore[index]
    Model.forward.__kwdefaults__["table"].clear()
    Elsewhere.mean = torch.zeros(8)


def test_they_are_named() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        planned(Model(lambda m, h: m.held["x"].write("x"), x=io.StringIO()))
    (text,) = [str(w.message) for w in found if issubclass(w.category, rekindle.RekindleWarning)]
    assert text == (
        "forward of Model changes the attribute held and the default argument row and the default argument table; planned "
        "steps do not"
    )


ITERATORS = {
    "count": itertools.count, "cycle": lambda: itertools.cycle([1, 2, 3]), "list": lambda: iter([1, 2, 3]),
    "generator": lambda: (i for i in range(9)), "enumerate": lambda: enumerate("abc"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ITERATORS)
def test_items_of_an_iterator_are_refused_by_their_line(kind: str) -> None:
    x, twin = ITERATORS[kind](), ITERATORS[kind]()
    model = Model(lambda m, h: next(m.held["x"]), x=x)
    for verb in (planned, lambda m: rekindle.trace(m, X)):
        with pytest.raises(
            rekindle.TraceError, match=r"items of an iterator \(\w+ under 'x'\) at .*test_kept_objects.py:\d"
        ):
            verb(model)
        assert model.held["x"] is x
    assert next(x) == next(twin)


class Rows(list[Any]):
    """A list of another class."""


CONTAINERS = {
    "deque": deque, "list": Rows, "ordered": lambda row: OrderedDict(enumerate(row)),
    "default": lambda row: defaultdict(int, enumerate(row)),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONTAINERS)
def test_iterators_in_containers_of_every_kind_are_refused(kind: str) -> None:
    model = Model(lambda m, h: next(m.rows[0]))
    x = model.rows = CONTAINERS[kind]([iter([1, 2, 3])])
    with pytest.raises(rekindle.TraceError, match=r"items of an iterator"):
        rekindle.trace(model, X)
    assert model.rows is x
    assert next(x[0]) == 1


def test_an_iterator_that_forward_leaves_alone_is_no_obstacle() -> None:
    model = Model(lambda m, h: None, x=itertools.count())
    planned(model)(X).sum().backward()
    assert next(model.held["x"]) == 0


def test_a_tensor_that_forward_leaves_for_its_next_call_is_named() -> None:
    def change(m: Any, h: Tensor) -> None:
        Elsewhere.mean = Elsewhere.mean + h

    with pytest.raises(rekindle.TraceError, match="depends on .*change, which forward changes itself"):
        rekindle.trace(Model(change), X)
    assert type(Elsewhere.mean) is Tensor
