"""What forward reads outside of the module counts, in whatever way it is read: a change of it is a change of the step."""

from __future__ import annotations

import copy
import enum
import functools
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rekindle
from marks import every

Change = Callable[[pytest.MonkeyPatch], Any]
ELSEWHERE = types.ModuleType("settings_of_another_file")
ELSEWHERE.scale = 2.0  # type: ignore[attr-defined]
sys.modules[ELSEWHERE.__name__] = ELSEWHERE


class Config:
    bias = 0.0

    def __init__(self) -> None:
        self.scale, self.calls, self.seen, self.inner = 2.0, 0, [], types.SimpleNamespace(gain=1.0)

    @property
    def double(self) -> float:
        return 2 * self.scale

    def factor(self) -> float:
        return self.scale * GAIN

    def counted(self, x: torch.Tensor) -> float:
        self.calls += 1
        self.seen.append(tuple(x.shape))
        return self.scale


class Slotted:
    __slots__ = ("__hidden", "scale")

    def __init__(self) -> None:
        self.scale, self.__hidden = 2.0, 1.0

    def hidden(self, value: float | None = None) -> float:
        self.__hidden = self.__hidden if value is None else value
        return self.__hidden


class Namespace:
    scale = 2.0


class Derived(Namespace):
    pass


class Lazy:
    def __init__(self) -> None:
        self.held = {"scale": 2.0}

    def __getattr__(self, name: str) -> Any:
        if name == "held":
            raise AttributeError(name)
        return self.held[name]


class Mode(enum.Enum):
    ONE = 1.0
    TWO = 2.0


class Entries:
    """Of an array, as monkeypatch takes them."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def get(self, key: Any, default: Any) -> Any:
        return self.array[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.array[key] = value


def decorated(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def call(*args: Any) -> Any:
        return f(*args)

    return call


@decorated
def gained(x: torch.Tensor) -> torch.Tensor:
    return x * GAIN


def scale_of(config: Any) -> float:
    return config.scale


def powered(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


GAIN = 1.0
CONFIG, SLOTTED, LAZY, MODE = Config(), Slotted(), Lazy(), Mode.ONE
TABLE, LARGE, TENSOR, DROP = np.ones(3), np.ones(2**18), torch.tensor(2.0), nn.Dropout(0.1)
PARTIAL = functools.partial(powered, by=2.0)
CHOSEN = types.SimpleNamespace(kind=Namespace)


def by_local(x: torch.Tensor) -> torch.Tensor:
    c = CONFIG
    return x * c.scale + c.bias


def by_inner(x: torch.Tensor) -> torch.Tensor:
    inner = CONFIG.inner
    return x * inner.gain


def by_slot(x: torch.Tensor) -> torch.Tensor:
    c = SLOTTED
    return x * c.scale * c.hidden()


def by_namespace(x: torch.Tensor) -> torch.Tensor:
    c = Derived
    return x * c.scale


def by_file(x: torch.Tensor) -> torch.Tensor:
    settings = ELSEWHERE
    return x * settings.scale


def by_import(x: torch.Tensor) -> torch.Tensor:
    from settings_of_another_file import scale  # type: ignore[import-not-found]

    return x * scale


def by_import_of_a_file(x: torch.Tensor) -> torch.Tensor:
    import settings_of_another_file as settings

    return x * settings.scale


def put(where: Any, name: str, value: Any) -> Change:
    return lambda patch: patch.setattr(where, name, value)


def put_global(name: str, make: Callable[[], Any]) -> Change:
    return lambda patch: patch.setitem(globals(), name, make())


def put_item(where: Any, key: Any, value: Any) -> Change:
    return lambda patch: patch.setitem(where, key, value)


def hide(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SLOTTED, "_Slotted__hidden", 3.0)


def other_config() -> Config:
    made = Config()
    made.scale = 3.0
    return made


WAYS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Change]] = {
    "a local": (by_local, put(CONFIG, "scale", 3.0)),
    "a helper": (lambda x: x * scale_of(CONFIG), put(CONFIG, "scale", 3.0)),
    "getattr": (lambda x: x * getattr(CONFIG, "scale"), put(CONFIG, "scale", 3.0)),  # noqa: B009
    "a property": (lambda x: x * CONFIG.double, put(CONFIG, "scale", 3.0)),
    "a method": (lambda x: x * CONFIG.factor(), put(CONFIG, "scale", 3.0)),
    "a global in a method": (lambda x: x * CONFIG.factor(), put_global("GAIN", lambda: 3.0)),
    "an object in an object": (by_inner, put(CONFIG.inner, "gain", 3.0)),
    "a default in the class": (by_local, put(Config, "bias", 3.0)),
    "a field before the default": (by_local, lambda patch: patch.setattr(CONFIG, "bias", 3.0, raising=False)),
    "another object": (lambda x: x * CONFIG.scale, put_global("CONFIG", other_config)),
    "a slot": (by_slot, put(SLOTTED, "scale", 3.0)),
    "a slot by its name": (lambda x: x * SLOTTED.scale, put(SLOTTED, "scale", 3.0)),
    "a private slot": (by_slot, hide),
    "an inherited class attribute": (by_namespace, put(Namespace, "scale", 3.0)),
    "a new class attribute": (by_namespace, lambda patch: patch.setattr(Derived, "scale", 3.0, raising=False)),
    "a class in an object": (lambda x: x * CHOSEN.kind.scale, put(Namespace, "scale", 3.0)),
    "a file": (by_file, put(ELSEWHERE, "scale", 3.0)),
    "an import in the function": (by_import, put(ELSEWHERE, "scale", 3.0)),
    "an import of a file in the function": (by_import_of_a_file, put(ELSEWHERE, "scale", 3.0)),
    "__getattr__": (lambda x: x * LAZY.scale, put_item(LAZY.held, "scale", 3.0)),
    "an enum": (lambda x: x * MODE.value, put_global("MODE", lambda: Mode.TWO)),
    "an array": (lambda x: x * float(TABLE[0]), put_item(Entries(TABLE), 0, 3.0)),
    "a large array": (lambda x: x * float(LARGE[7]), put_item(Entries(LARGE), 7, 3.0)),
    "a tensor": (lambda x: x * TENSOR, put_global("TENSOR", lambda: torch.tensor(3.0))),
    "a module": (lambda x: DROP(x), put(DROP, "p", 0.7)),
    "a partial": (lambda x: PARTIAL(x), put_global("PARTIAL", lambda: functools.partial(powered, by=3.0))),
    "a decorated function": (lambda x: gained(x), put_global("GAIN", lambda: 3.0)),
}


class Net(nn.Module):
    def __init__(self, way: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.way = nn.Linear(8, 8), nn.Linear(8, 8), way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.way(self.b(self.a(x).tanh()).sin())


class Counting(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * CONFIG.counted(x)


def planned_twin(model: nn.Module) -> tuple[Any, torch.Tensor]:
    planned, x = copy.deepcopy(model), torch.randn(4, 8)
    plan = rekindle.plan(rekindle.trace(planned, x, target="cpu"), minimize="memory", solver="storages", progress=False)
    return rekindle.apply(planned, plan), x


def equal(plain: nn.Module, planned: nn.Module, x: torch.Tensor) -> bool:
    results = []
    for m in (plain, planned):
        m.zero_grad()
        torch.manual_seed(3)
        y = m(x)
        y.square().sum().backward()
        results.append([y.detach(), *(p.grad.clone() for p in m.parameters() if p.grad is not None)])
    return all(map(torch.equal, *results))


@pytest.mark.parametrize(("way", "change"), every(4, WAYS.values()), ids=WAYS)
def test_whatever_way_a_global_is_read(way: Any, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Net(way)
    planned, x = planned_twin(plain)
    assert equal(plain, planned, x)
    assert equal(plain, planned, x)
    first = planned.forward.last
    assert first.uses == 2
    change(monkeypatch)
    assert equal(plain, planned, x)
    assert planned.forward.last is not first
    monkeypatch.undo()
    assert equal(plain, planned, x)
    assert planned.forward.last is first


def test_fields_that_forward_changes_itself_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CONFIG", Config())
    plain = Counting(by_local)
    with pytest.warns(rekindle.RekindleWarning, match="the global CONFIG"):
        planned, x = planned_twin(plain)
    first = None
    for _ in range(4):
        assert equal(plain, planned, x)  # the plain step counts on
        first = first or planned.forward.last
        assert planned.forward.last is first
    CONFIG.scale = 3.0
    assert equal(plain, planned, x)
    assert planned.forward.last is not first


def test_a_field_that_changes_at_every_call_is_named_and_runs_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CONFIG", Config())
    plain = Net(by_local)
    planned, x = planned_twin(plain)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(12):
            CONFIG.calls += 1
            assert equal(plain, planned, x)
    assert [str(w.message) for w in told if "CONFIG.calls differ" in str(w.message)]
    assert len(list(planned.forward.bounds)) <= 8


def test_a_name_that_only_an_attribute_has_is_no_global(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Net(by_local)
    planned, x = planned_twin(plain)
    monkeypatch.setitem(globals(), "scale", 0)
    for _ in range(3):
        monkeypatch.setitem(globals(), "scale", globals()["scale"] + 1)
        assert equal(plain, planned, x)
    assert planned.forward.last.uses == 3


class Node:
    def __init__(self, below: int) -> None:
        self.value, self.next = 1.0, Node(below - 1) if below else None


class Held(nn.Module):
    """What an attribute may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.deep, self.slots, self.kind = Node(12), Slotted(), Namespace
        self.config, self.large, self.turned = Config(), np.ones((512, 512)), np.ones((512, 512)).T[::2]
        self.call = PARTIAL

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at: Any = self.deep
        while at.next is not None:
            at = at.next
        factor = at.value * self.slots.scale * self.kind.scale * float(self.large[3, 4]) * float(self.turned[3, 4])
        return self.call(gained(self.a(x).tanh())) * factor + self.config.bias


def set_deep(m: Any) -> None:
    at = m.deep
    while at.next is not None:
        at = at.next
    at.value = 3.0


def set_slot(m: Any) -> None:
    m.slots.scale = 3.0


def set_large(m: Any) -> None:
    m.large[3, 4] = 3.0


def set_turned(m: Any) -> None:
    m.turned[3, 4] = 3.0


def set_field(m: Any) -> None:
    m.config.bias = 3.0


@pytest.mark.parametrize("change", every(3, [set_deep, set_slot, set_large, set_turned, set_field]))
def test_what_an_attribute_holds(change: Callable[[Any], None]) -> None:
    plain = Held()
    planned, x = planned_twin(plain)
    assert equal(plain, planned, x)
    for m in (plain, planned):
        change(m)
    assert equal(plain, planned, x)
    assert len(list(planned.forward.bounds)) == 2


@pytest.mark.parametrize(("where", "name"), [(Namespace, "scale"), (Config, "bias")])
def test_a_class_attribute_of_what_an_attribute_holds(where: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Held()
    planned, x = planned_twin(plain)
    assert equal(plain, planned, x)
    monkeypatch.setattr(where, name, 3.0)
    assert equal(plain, planned, x)


def test_of_a_very_large_array_elements_spread_evenly_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle.torch.situation import values

    monkeypatch.setattr(values, "CHECKSUM_MOST_BYTES", 2**16)
    x = np.zeros(2**16)
    before = values.key_of(x)
    x[1] = 1.0
    assert values.key_of(x) == before
    x[:] = 1.0
    assert values.key_of(x) != before


def test_arrays_of_every_kind_have_a_key() -> None:
    from rekindle.torch.situation.values import Watch, key_of

    for x in (
        np.float32(3), np.array(3.0), np.zeros((0, 3)), np.zeros(5000, "datetime64[s]"), bytearray(9000), bytearray(),
        np.asfortranarray(np.ones((99, 99))), np.ones((99, 99))[::2, ::2], np.ma.ones(5000), np.ones(3, object),
    ):  # fmt: skip
        watch = Watch()
        assert key_of(x, watch) == key_of(x)
        watch.close()
        assert watch.unchanged()
