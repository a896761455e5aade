"""Code in backward reads values as they are when backward runs, though they were set after forward."""

from __future__ import annotations

import copy
import types
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rekindle
from marks import sweep
from rekindle import RekindleError
from rekindle.compiling import Compiled, CompileOptions
from rekindle.torch.compiled.compiled_forward import CompiledForward

CONFIG, SCALE = {"scale": 1.0}, 1.0


def by_helper(gradient: Tensor) -> Tensor:
    return gradient * CONFIG["scale"]


def after_node(made: Any, given: Any) -> Any:
    return tuple(None if g is None else g * SCALE for g in made)


class Scaled(torch.autograd.Function):
    scale = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor, owner: Any, held: Any) -> Tensor:
        ctx.owner, ctx.held = owner, held
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        how = ctx.owner.how
        if how == "helper":
            return by_helper(gradient * 2), None, None
        scale = Scaled.scale if how == "class" else ctx.held["scale"] if how == "held" else ctx.owner.scale
        return gradient * 2 * scale, None, None


class Net(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.scale, self.gain, self.table = how, 1.0, 1.0, {"scale": 1.0}
        self.a, self.b = nn.Linear(8, 64), nn.Linear(64, 8)
        if how == "module hook":
            self.b.register_full_backward_hook(lambda m, given, got: (given[0] * SCALE,))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x)) * self.gain
        if self.how == "hook":
            h.register_hook(lambda g: g * SCALE)
        elif self.how == "method":
            torch.autograd.graph.register_multi_grad_hook((h,), lambda _: None)
            h.register_hook(self.hung)
        elif self.how == "node":
            h.grad_fn.register_prehook(lambda given: (given[0] * SCALE,))  # type: ignore[union-attr]
        elif self.how == "node after":
            h.grad_fn.register_hook(after_node)  # type: ignore[union-attr]
        elif self.how == "unpack":
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack_hook=lambda t: t * SCALE):
                h = h * h
        elif self.how == "both":
            h = Scaled.apply(h * self.scale, self, None)
        elif self.how != "module hook":
            h = Scaled.apply(h, self, self.table if self.how == "held" else None)
        return self.b(h).tanh()  # type: ignore[no-any-return]

    def hung(self, gradient: Tensor) -> Tensor:
        return gradient * self.scale

    def put(self, value: float) -> None:
        global SCALE
        SCALE = Scaled.scale = CONFIG["scale"] = self.scale = self.table["scale"] = value


def gradients(model: Net, x: Tensor, after: float, gain: float = 1.0) -> list[Tensor]:
    model.zero_grad()
    loss = sum(model(x * (i + 1)).sum() for i in range(2))  # two calls, as in gradient accumulation
    model.put(after)
    model.gain = gain
    loss.backward()  # type: ignore[union-attr]
    model.put(1.0)
    model.gain = 1.0
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def pair(how: str, **options: Any) -> tuple[Net, Net, Tensor]:
    plain, x = Net(how), torch.randn(16, 8)
    planned = rekindle.checkpoint(
        copy.deepcopy(plain), x, minimize="memory", solver="storages", progress=False, **options
    )
    return plain, planned, x


@pytest.mark.parametrize(
    "how", ["class", "helper", "module", "hook", "module hook", "method", "both", "node", "node after", "unpack"]
)
@pytest.mark.filterwarnings("ignore:a backward whose code reads")
def test_backward_reads_what_was_set_after_forward(how: str) -> None:
    plain, planned, x = pair(how)
    for after in (1.0, 7.0):
        assert all(map(torch.equal, gradients(plain, x, after), gradients(planned, x, after)))
    assert rekindle.status(planned).calls == 4


@pytest.mark.filterwarnings("ignore:a backward whose code reads")
def test_forward_has_its_own_values_where_it_runs_again() -> None:
    plain, planned, x = pair("module")
    assert all(map(torch.equal, gradients(plain, x, 7.0, gain=3.0), gradients(planned, x, 7.0, gain=3.0)))


def test_a_value_that_only_forward_reads_costs_nothing(recwarn: pytest.WarningsRecorder) -> None:
    plain, planned, x = pair("module")
    assert all(map(torch.equal, gradients(plain, x, 1.0, gain=3.0), gradients(planned, x, 1.0, gain=3.0)))
    assert not recwarn.list


def test_an_object_that_forward_hands_on_must_not_change() -> None:
    _, planned, x = pair("held")
    with pytest.raises(RekindleError, match="a backward whose code reads table, which was set after forward"):
        gradients(planned, x, 7.0)


@dataclass
class Options:
    scale: float = 1.0


class Given(nn.Module):
    """Leaves what it is given, or what stands in what it is given or holds, to code in backward."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.a, self.b, self.table = how, nn.Linear(8, 64), nn.Linear(64, 8), [Options()]

    def forward(self, x: Tensor, given: Any) -> Tensor:
        h = torch.relu(self.a(x))
        if self.how == "hook":
            h.register_hook(lambda g: g * given["in"].scale)
            return self.b(h)  # type: ignore[no-any-return]
        left = OPTIONS if self.how == "global" else self.table[0] if self.how == "attribute" else given["in"]
        return self.b(Left.apply(h, (left,)))  # type: ignore[no-any-return]


OPTIONS = Options()


class Left(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, left: tuple[Options]) -> Tensor:
        ctx.left = left
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * 2 * ctx.left[0].scale, None


@pytest.mark.parametrize("how", ["argument", "hook", "attribute"])
def test_what_stands_in_an_object_that_forward_hands_on_must_not_change(how: str) -> None:
    model, x, given = Given(how), torch.randn(16, 8), {"in": Options()}
    rekindle.checkpoint(model, (x, given), minimize="memory", solver="storages", progress=False)
    model(x, given).sum().backward()
    result = model(x, given).sum()
    (model.table[0] if how == "attribute" else given["in"]).scale = 7.0  # type: ignore[index]
    which = "table" if how == "attribute" else "the argument given"
    with pytest.raises(RekindleError, match=f"code reads {which}, which was set after forward"):
        result.backward()


@pytest.mark.parametrize("hook", [False, True])
def test_variables_of_the_function_around_are_read_late(hook: bool) -> None:
    class Scaler(torch.autograd.Function):
        scale = torch.tensor(1.0)

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return gradient * 2 * Scaler.scale

    class Inside(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self[0](x))
            if hook:
                h.register_hook(lambda g: g * scale)
            else:
                h = Scaler.apply(h)
            return self[1](h)  # type: ignore[no-any-return]

    scale = 1.0
    model, x = Inside(nn.Linear(8, 64), nn.Linear(64, 8)), torch.randn(16, 8)
    rekindle.checkpoint(model, x, minimize="memory", solver="storages", progress=False)
    model(x).sum().backward()
    result = model(x).sum()
    scale, Scaler.scale = 7.0, torch.tensor(7.0)
    with pytest.raises(RekindleError, match="which was set after forward"):
        result.backward()


@pytest.mark.filterwarnings("ignore:a backward whose code reads")
def test_a_field_of_an_object_that_cannot_be_hashed_is_read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, x, given = Given("global"), torch.randn(16, 8), {"in": Options()}
    planned = copy.deepcopy(plain)
    rekindle.checkpoint(planned, (x, given), minimize="memory", solver="storages", progress=False)
    for model in (plain, planned):
        result = model(x, given).sum()
        with monkeypatch.context() as m:
            m.setattr(OPTIONS, "scale", 7.0)
            result.backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), planned.parameters(), strict=True))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:a backward whose code reads")
def test_parts_and_copies_on_the_host_do_the_same() -> None:
    plain, planned, x = pair("class", offload=True)
    assert all(map(torch.equal, gradients(plain, x, 7.0), gradients(planned, x, 7.0)))


@sweep
def test_compiled_code_refuses_what_was_set_after_forward() -> None:
    _, planned, x = pair("hook", compile=True)
    gradients(planned, x, 1.0)
    with pytest.raises(RekindleError, match="was set after forward, and code in backward of Net may read it"):
        gradients(planned, x, 7.0)


class Passes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, held: Any) -> Tensor:
        ctx.held = held
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        held = ctx.held
        return gradient * (held["scale"] if isinstance(held, dict) else held.scale), None


TABLE = {"scale": 1.0}


class HandsOver(nn.Module):
    """Forward leaves something to a Function, which reads it in backward."""

    scale, losses = 1.0, [1.0]

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.a, self.own = what, nn.Linear(8, 8), types.SimpleNamespace(scale=1.0)

    def forward(self, x: Tensor, given: dict[str, float]) -> Tensor:
        held = {"class": self, "global": TABLE, "own": self.own, "argument": given}[self.what]
        return torch.tanh(Passes.apply(self.a(x), held)) * self.losses[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("what", ["class", "global", "own", "argument"])
def test_compiled_code_refuses_what_forward_left_to_a_function(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    model, x, given = HandsOver(what), torch.randn(4, 8), {"scale": 1.0}
    call = CompiledForward(model, Compiled(), CompileOptions(), "")
    result = call(x, given).sum()
    monkeypatch.setattr(model, "scale", 1.0, raising=False)  # the class's own value
    monkeypatch.setattr(model, "own", types.SimpleNamespace(scale=2.0))  # which the Function does not have
    monkeypatch.setattr(model, "losses", [7.0])
    result.backward()
    result = call(x, given).sum()
    if what in ("class", "own"):
        monkeypatch.setattr(model if what == "class" else model.own, "scale", 7.0)
    else:
        monkeypatch.setitem(TABLE if what == "global" else given, "scale", 7.0)
    with pytest.raises(RekindleError, match="was set after forward, and code in backward of HandsOver may read it"):
        result.backward()
