"""A part that runs again in backward finds what its forward read as it was, whatever the loop has changed since."""

from __future__ import annotations

import contextvars
import copy
import os
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rekindle import RekindleError
from rekindle.torch.ways.again import AgainForward

SCALE = 1.0
TABLE = {"scale": 1.0, "log": torch.zeros(())}
NESTED = {"a": [1.0]}
NAMESPACE = types.SimpleNamespace(scale=1.0)
TENSOR = torch.ones(())
SMALL, ARRAY = np.ones(1), np.ones(1024)
VARIABLE = contextvars.ContextVar("scale", default=1.0)


@dataclass(slots=True)
class Slotted:
    scale: float = 1.0


class Static:
    scale = 1.0


SLOTTED = Slotted()


def scaled(h: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return h * by


def counter() -> tuple[Callable[[], float], Callable[[float], None]]:
    held = 1.0

    def put(x: float) -> None:
        nonlocal held
        held = x

    return lambda: held, put


GET, PUT = counter()


class Block(nn.Module):
    """Reads its scale in one of many ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.scale, self.active = how, 1.0, ["p"]
        self.adapters = nn.ModuleDict({"p": nn.Linear(8, 8), "q": nn.Linear(8, 8)})
        self.up, self.act, self.drop = nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5)
        self.tensor = torch.ones(())
        self.calls = 0

    def by(self) -> float:
        return 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        h = self.drop(self.act(self.up(x)))
        if self.how == "adapter":
            return sum(self.adapters[k](h) for k in self.active)
        if self.how == "default":
            return scaled(h).sin()
        read: dict[str, Callable[[], Any]] = {
            "global": lambda: SCALE,
            "table": lambda: TABLE["scale"],
            "nested": lambda: NESTED["a"][0],
            "namespace": lambda: NAMESPACE.scale,
            "slot": lambda: SLOTTED.scale,
            "class": lambda: Static.scale,
            "closure": GET,
            "variable": VARIABLE.get,
            "environment": lambda: float(os.environ.get("REKINDLE_TEST_SCALE", "1")),
            "dtype": lambda: 1.0 if torch.get_default_dtype() == torch.float32 else 2.0,
            "method": self.by,
            "tensor": lambda: TENSOR,
            "own tensor": lambda: self.tensor,
            "small array": lambda: float(SMALL[0]),
            "array": lambda: float(ARRAY[0]),
        }
        return (h * read.get(self.how, lambda: self.scale)()).sin()


def change(m: Block) -> None:
    """What a loop may do between forward and backward."""
    global SCALE, TENSOR
    SCALE = NAMESPACE.scale = SLOTTED.scale = Static.scale = TABLE["scale"] = NESTED["a"][0] = m.scale = 3.0
    TENSOR = m.tensor = torch.tensor(3.0)
    TABLE["new"] = 0
    PUT(3.0)
    VARIABLE.set(3.0)
    SMALL[0] = 3.0
    os.environ["REKINDLE_TEST_SCALE"] = "3"
    scaled.__defaults__ = (3.0,)
    Block.by = lambda self: 3.0  # type: ignore[method-assign]
    torch.set_default_dtype(torch.float64)
    m.active[:] = ["q"]
    m.adapters["p"] = m.adapters["q"]
    m.up.bias.requires_grad_(False)
    m.act = nn.Tanh()  # type: ignore[assignment]
    m.act.register_forward_hook(lambda m, a, out: 3 * out)
    m.eval()


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("SCALE", "TENSOR"):
        monkeypatch.setattr(f"{__name__}.{name}", globals()[name])
    for x, name in (
        (NAMESPACE, "scale"),
        (SLOTTED, "scale"),
        (Static, "scale"),
        (scaled, "__defaults__"),
        (Block, "by"),
    ):
        monkeypatch.setattr(x, name, getattr(x, name))
    monkeypatch.setitem(TABLE, "scale", 1.0)
    monkeypatch.setitem(NESTED, "a", [1.0])
    monkeypatch.setenv("REKINDLE_TEST_SCALE", "1")
    VARIABLE.set(1.0)
    PUT(1.0)
    yield
    torch.set_default_dtype(torch.float32)
    TABLE.pop("new", None)
    TABLE["log"].zero_()
    ARRAY[0] = SMALL[0] = 1.0


def pair(how: str) -> tuple[Block, Block]:
    """A module that runs again, and its eager twin."""
    torch.manual_seed(0)
    model = Block(how).train()
    twin = copy.deepcopy(model)
    AgainForward(model).take_over(model)
    return model, twin


def gradients(m: Block, between: Callable[[Block], Any], calls: int = 1) -> list[torch.Tensor | None]:
    torch.manual_seed(1)
    loss, held = torch.zeros(()), [*m.up.parameters(), *m.adapters.parameters()]
    for _ in range(calls):
        loss = loss + m(torch.randn(4, 8, dtype=torch.float32)).square().sum().float()
        between(m)
    loss.backward()
    return [p.grad for p in held]


def equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


HOWS = [
    "global",
    "table",
    "nested",
    "namespace",
    "slot",
    "class",
    "closure",
    "variable",
    "environment",
    "dtype",
    "method",
]


@pytest.mark.parametrize("how", [*HOWS, "small array", "own", "own tensor", "tensor", "adapter", "default"])
def test_forward_finds_what_it_read(how: str) -> None:
    model, twin = pair(how)
    theirs = gradients(twin, lambda m: m.up.bias.requires_grad_(False))
    ours = gradients(model, change)
    now = (
        SCALE,
        Static.scale,
        TABLE["scale"],
        model.active,
        type(model.act),
        model.up.bias.requires_grad,
        model.training,
    )
    assert now == (3.0, 3.0, 3.0, ["q"], nn.Tanh, False, False)
    assert torch.get_default_dtype() == torch.float64
    assert model.calls == 1
    assert any(g is not None for g in ours)
    assert all(map(equal, ours, theirs))


def test_adapters_switched_between_two_calls_of_one_backward() -> None:
    def switch(m: Block) -> None:
        m.active = ["q"] if m.active == ["p"] else ["p"]

    model, twin = pair("adapter")
    assert all(equal(*pair) for pair in zip(*(gradients(m, switch, calls=2) for m in (model, twin)), strict=True))


@pytest.mark.parametrize("how", ["tensor", "own tensor"])
def test_a_tensor_written_in_place_is_an_error_where_forward_uses_it(how: str) -> None:
    model, _ = pair(how)
    with pytest.raises(RekindleError, match=r"Block runs again.*has been modified by an inplace operation"):
        gradients(model, lambda m: (TENSOR if how == "tensor" else m.tensor).mul_(2.0))
    TENSOR.fill_(1.0)


def test_a_tensor_that_forward_does_not_use_may_be_written_to() -> None:
    model, twin = pair("table")
    ours, theirs = (gradients(m, lambda _: TABLE["log"].add_(1.0)) for m in (model, twin))
    assert all(map(equal, ours, theirs))


def test_an_array_that_has_changed_is_named() -> None:
    model, _ = pair("array")
    with pytest.raises(RekindleError, match=r"the global .*ARRAY changed between its forward and this backward"):
        gradients(model, lambda _: ARRAY.__setitem__(0, 3.0))


def test_the_state_of_a_call_serves_the_next_one() -> None:
    model, _ = pair("table")
    gradients(model, lambda _: None)
    first = model.forward.outside
    gradients(model, lambda _: None)
    assert model.forward.outside is first
    TABLE["scale"] = 2.0
    gradients(model, lambda _: None)
    assert model.forward.outside is not first


def test_a_part_that_begins_to_write_to_a_tensor_is_an_error() -> None:
    """It was planned while it did not."""
    model, _ = pair("table")
    model.act.register_forward_hook(lambda m, a, out: TABLE["log"].add_(1.0) and None)
    with pytest.raises(RekindleError, match=r"test_noted_state.py.*has been modified by an inplace operation"):
        gradients(model, lambda _: None)
    assert TABLE["log"] == 1.0
