"""A name that begins to stand for another value is a change: one that hides a class's value, say, or a function's default."""

from __future__ import annotations

import copy
import enum
import functools
import sys
import types
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from rekindle.torch.situation.guards import Expected, Guards, Reads

Patch = pytest.MonkeyPatch
Change = Callable[[Patch], Any]


class Base:
    gain = 1.5


class Config(Base):
    inner = types.SimpleNamespace(gain=1.5)

    @property
    def computed(self) -> float:
        return self.gain

    @functools.cached_property
    def cached(self) -> float:
        return self.gain

    def factor(self) -> float:
        return self.gain


class Hidden(Base):
    def __init__(self) -> None:
        self.gain = 2.5


class Slotted(Base):
    __slots__ = ("gain",)


class Meta(type):
    rate = 1.5


class OfMeta(metaclass=Meta):
    pass


class Mode(enum.Enum):
    ONE, TWO = 1.5, 2.5


def scaled(x: torch.Tensor, by: float = 1.5, *, more: float = 1.0) -> torch.Tensor:
    return x * by * more


def closed(gain: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        return x * gain

    return call


def rated(x: torch.Tensor) -> torch.Tensor:
    return x * rated.gain  # type: ignore[attr-defined]


def other(x: torch.Tensor, by: float = 2.5, *, more: float = 1.0) -> torch.Tensor:
    return x * by * more + 1


class Scale:
    def __init__(self) -> None:
        pass

    def of(self, x: torch.Tensor, by: float = 1.5) -> torch.Tensor:
        return x * by

    @staticmethod
    def static(x: torch.Tensor, by: float = 1.5) -> torch.Tensor:
        return x * by

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.of(x)


class Grad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: float = 1.5) -> torch.Tensor:
        return x * by

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g, None


rated.gain = 1.5  # type: ignore[attr-defined]
Pair = namedtuple("Pair", "gain more")
CONFIG, HIDDEN, SLOTTED, MODE, PAIR, SCALE = Config(), Hidden(), Slotted(), Mode.ONE, Pair(1.5, 1.0), Scale()
PARTIAL, CLOSED = functools.partial(scaled, more=1.5), closed(1.5)
NESTED = types.SimpleNamespace(config=CONFIG)
FILE, BELOW = types.ModuleType("settings_in_a_package"), types.ModuleType("settings_in_a_package.below")
FILE.below, BELOW.gain = BELOW, 1.5  # type: ignore[attr-defined]
exec(
    """
values = {"lazy": 1.5}
def __getattr__(name):
    if name in values:
        return values[name]
    raise AttributeError(name)
""",
    vars(FILE),
)
sys.modules |= {FILE.__name__: FILE, BELOW.__name__: BELOW}


def put(where: Any, name: str, value: Any = 3.0) -> Change:
    return lambda patch: patch.setattr(where, name, value, raising=False)


def take(where: Any, name: str) -> Change:
    return lambda patch: patch.delattr(where, name)


def item(where: Any, key: str, value: Any = 3.0) -> Change:
    return lambda patch: patch.setitem(where, key, value)


def cell(patch: Patch) -> None:
    patch.setattr(CLOSED.__closure__[0], "cell_contents", 3.0)  # type: ignore[index]


def renamed(patch: Patch) -> None:
    patch.setattr(CONFIG, "gain", 3.0, raising=False)
    patch.delattr(CONFIG, "label")


def whole(x: torch.Tensor) -> torch.Tensor:
    c = CONFIG
    return x * c.gain


def whole_inner(x: torch.Tensor) -> torch.Tensor:
    c = CONFIG
    return x * c.inner.gain


WAYS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Change]] = {
    "an attribute of the instance": (lambda x: x * CONFIG.gain, put(CONFIG, "gain")),
    "of the instance, another one going": (lambda x: x * CONFIG.gain, renamed),
    "of a nested instance": (lambda x: x * NESTED.config.gain, put(CONFIG, "gain")),
    "of a subclass": (lambda x: x * CONFIG.gain, put(Config, "gain")),
    "of a class read by its name": (lambda x: x * Config.gain, put(Config, "gain")),
    "of a metaclass": (lambda x: x * OfMeta.rate, put(OfMeta, "rate")),
    "a property instead of an attribute": (lambda x: x * HIDDEN.gain, put(Hidden, "gain", property(lambda _: 3.0, print))),
    "a deleted attribute": (lambda x: x * HIDDEN.gain, take(HIDDEN, "gain")),
    "a slot": (lambda x: x * getattr(SLOTTED, "gain", 1.5), put(SLOTTED, "gain")),
    "behind a property": (lambda x: x * CONFIG.computed, put(CONFIG, "gain")),
    "a cached property": (lambda x: x * CONFIG.cached, put(CONFIG, "cached")),
    "a method on the instance": (lambda x: x * CONFIG.factor(), put(CONFIG, "factor", lambda: 3.0)),
    "an object as a whole": (whole, put(CONFIG, "gain")),
    "an object in the class": (lambda x: x * CONFIG.inner.gain, put(CONFIG, "inner", types.SimpleNamespace(gain=3.0))),
    "a field of an object in the class": (lambda x: x * CONFIG.inner.gain, put(Config.inner, "gain")),
    "a field of an object in the class, as a whole": (whole_inner, put(Config.inner, "gain")),
    "an object in the class, as a whole": (whole_inner, put(Config, "inner", types.SimpleNamespace(gain=3.0))),
    "a default": (lambda x: scaled(x), put(scaled, "__defaults__", (3.0,))),
    "a default of a keyword": (lambda x: scaled(x), put(scaled, "__kwdefaults__", {"more": 3.0})),
    "an entry of the defaults of keywords": (lambda x: scaled(x), item(scaled.__kwdefaults__, "more")),
    "code": (lambda x: scaled(x), put(scaled, "__code__", other.__code__)),
    "a default of a method": (lambda x: SCALE.of(x), put(Scale.of, "__defaults__", (3.0,))),
    "code of a method": (lambda x: SCALE.of(x), put(Scale.of, "__code__", (lambda self, x, by=1.5: x).__code__)),
    "a default of a static method": (lambda x: Scale.static(x), put(Scale.static, "__defaults__", (3.0,))),
    "a default behind __call__": (lambda x: SCALE(x), put(Scale.of, "__defaults__", (3.0,))),
    "a default of an autograd function": (lambda x: x * Grad.forward(None, x), put(Grad.forward, "__defaults__", (3.0,))),
    "a closure's cell": (lambda x: CLOSED(x), cell),
    "an attribute of a function": (lambda x: rated(x), put(rated, "gain")),
    "keywords of a partial": (lambda x: PARTIAL(x), item(PARTIAL.keywords, "more")),
    "a file below a file": (lambda x: x * FILE.below.gain, put(BELOW, "gain")),
    "__getattr__ of a file": (lambda x: x * FILE.lazy, item(vars(FILE)["values"], "lazy")),
    "before __getattr__ of a file": (lambda x: x * FILE.lazy, put(FILE, "lazy")),
    "an enum": (lambda x: x * MODE.value, item(globals(), "MODE", Mode.TWO)),
    "a named tuple": (lambda x: x * PAIR.gain, item(globals(), "PAIR", Pair(3.0, 1.0))),
    "a function of torch": (lambda x: torch.tanh(x), put(torch, "tanh", torch.sin)),
    "a function of torch, by a path": (lambda x: torch.nn.functional.gelu(x), put(nn.functional, "gelu", torch.sin)),
    "a built-in function": (lambda x: x * abs(-1.5), item(globals(), "abs", lambda _: 3.0)),
}  # fmt: skip


class Net(nn.Module):
    rate = 1.0

    def __init__(self, way: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.a, self.way, self.label = nn.Linear(8, 8), way, "a"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.way(self.a(x)) * self.rate + self.shift()

    def shift(self, by: float = 1.0) -> float:
        return by


def guarded(model: Any, x: torch.Tensor) -> Guards:
    reads = Reads()
    plain = model.forward
    model.__dict__["forward"] = reads.recorded(plain)
    model(x)
    del model.__dict__["forward"]
    return Guards(model, Expected.of(model, reads.by_path(model)))


@pytest.mark.parametrize(("way", "change"), WAYS.values(), ids=WAYS)
def test_another_value_under_a_name_is_a_change(way: Any, change: Change, monkeypatch: Patch) -> None:
    monkeypatch.setattr(CONFIG, "label", "a", raising=False)
    model, x = Net(way), torch.ones(2, 8)
    guards, before = guarded(model, x), model(x)
    assert guards.unchanged(model)
    with monkeypatch.context() as patch:
        change(patch)
        assert not torch.equal(model(x), before)
        assert not guards.unchanged(model)
        assert not guards.hold(model)
    assert torch.equal(model(x), before)
    assert guards.hold(model)


def patched(where: Any, name: str, value: Any) -> Callable[[Any, Patch], Any]:
    return lambda m, patch: patch.setattr(where(m), name, value, raising=False)


def swapped(m: Any, patch: Patch) -> None:
    patch.setattr(m, "rate", 3.0)
    patch.delattr(m, "label")


@pytest.mark.parametrize("change", [
    patched(lambda m: m, "rate", 3.0), patched(lambda m: Net, "rate", 3.0), swapped,
    patched(lambda m: m, "shift", lambda: 3.0), patched(lambda m: Net.shift, "__defaults__", (3.0,)),
    patched(lambda m: m.a, "forward", lambda x: x + 3), patched(lambda m: nn.Linear, "forward", lambda s, x: x + 3),
    patched(lambda m: Net, "forward", lambda s, x: x + 3),
    patched(lambda m: Net.forward, "__code__", (lambda self, x: x + 3).__code__),
])  # fmt: skip
def test_the_module_itself(change: Any, monkeypatch: Patch) -> None:
    model, x = nn.Sequential(Net(lambda x: x)), torch.ones(2, 8)
    for m, part in ((model, model[0]), (copy.deepcopy(model[0]),) * 2):
        guards, before = guarded(m, x), m(x)
        assert guards.unchanged(m)
        with monkeypatch.context() as patch:
            change(part, patch)
            assert not torch.equal(m(x), before)
            assert not guards.hold(m)
        assert guards.hold(m)
