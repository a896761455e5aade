"""State that changes the numbers of a step and that `torch.compile` has no guard for: such calls have eager's numbers."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as all_modules

import rekindle


class Block(nn.Module):
    rate = 1.0

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.act(self.down(nn.functional.gelu(self.up(self.norm(x))))) * self.rate

    def act(self, x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return torch.tanh(x) * by


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Louder(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made * 1.5 if func is nn.functional.gelu else made


@contextlib.contextmanager
def put(where: Any, name: str, value: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, value)
        yield


@contextlib.contextmanager
def hook(register: Callable[[Any], Any], fn: Callable[..., Any]) -> Iterator[None]:
    handle = register(fn)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def between(on: Callable[[], Any], off: Callable[[], Any]) -> Iterator[None]:
    on()
    try:
        yield
    finally:
        off()


def louder(m: Any, *given: Any) -> Any:
    """Of all four kinds of hooks: the last argument 1.5 times."""
    if not isinstance(m, nn.Linear):
        return None
    x = given[-1]
    return x * 1.5 if isinstance(x, torch.Tensor) else tuple([None if t is None else t * 1.5 for t in x])


def of_gradients(m: Any, of_inputs: Any, _: Any) -> Any:
    return louder(m, of_inputs)


linear = nn.Linear.forward
CHANGES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], str]] = {
    "nothing": (contextlib.nullcontext, ""),
    "a forward hook": (lambda: hook(all_modules.register_module_forward_hook, louder), "hooks on all"),
    "a forward pre-hook": (lambda: hook(all_modules.register_module_forward_pre_hook, louder), "hooks on all"),
    "a backward hook": (lambda: hook(all_modules.register_module_full_backward_hook, of_gradients), "hooks on all"),
    "a backward pre-hook": (lambda: hook(all_modules.register_module_full_backward_pre_hook, louder), "hooks on all"),
    "a hook on parameters": (
        lambda: hook(all_modules.register_module_parameter_registration_hook, lambda *_: None),
        "",
    ),
    "a forward of torch": (lambda: put(nn.Linear, "forward", lambda m, x: linear(m, x) * 1.5), "Linear.forward"),
    "a forward": (lambda: put(Block, "forward", lambda m, x: m.down(m.up(x)) + m.norm(x)), "Block.forward"),
    "a method": (lambda: put(Block, "act", lambda m, x: torch.sin(x)), "Block.act"),
    "a default": (lambda: put(Block.act, "__defaults__", (1.5,)), "Block.act"),
    "a class attribute": (lambda: put(Block, "rate", 1.5), ""),
    "a function of torch": (lambda: put(nn.functional, "gelu", torch.relu), ""),
    "a function mode": (Louder, "TorchFunctionMode"),
    "a default device": (lambda: torch.device("cpu"), ""),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), ""),
    "oneDNN": (lambda: torch.backends.mkldnn.flags(enabled=False), ""),
    "deterministic": (
        lambda: between(
            lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)
        ),
        "",
    ),
    "the default dtype": (
        lambda: between(lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
        "",
    ),
    "forgotten code": (lambda: between(torch._dynamo.reset, lambda: None), ""),
}
X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


def plans() -> dict[str, dict[str, Any]]:
    return {"whole": {}, "stages": {"compile": True}, "parts": {"compile": True, "parts": "blocks.*"}}


@pytest.fixture(scope="module", params=plans())
def models(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module, str]:
    torch.manual_seed(0)
    plain = Net()
    how = plans()[request.param]
    planned = rekindle.checkpoint(copy.deepcopy(plain), X, minimize="memory", effort="quick", progress=False, **how)
    return plain, planned, request.param


def step(model: nn.Module, around: Callable[[], AbstractContextManager[Any]]) -> list[torch.Tensor]:
    model.zero_grad()
    with around():
        y = model(X)
        y.float().square().sum().backward()
    return [y.detach().float(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.sweep
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_a_change_has_eagers_numbers(change: str, models: tuple[nn.Module, nn.Module, str]) -> None:
    plain, planned, kind = models
    around, words = CHANGES[change]
    want = step(plain, around)
    if change != "nothing" and words:
        assert any(not torch.equal(a, b) for a, b in zip(want, step(plain, contextlib.nullcontext), strict=True))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        got = step(planned, around)
    said = [str(w.message) for w in told if issubclass(w.category, rekindle.RekindleWarning)]
    if kind == "whole":
        assert all(map(torch.equal, got, want))
        return
    most = 3e-2 if change == "autocast" else 1e-4
    assert all(torch.allclose(a, b, atol=most * b.abs().max().item()) for a, b in zip(got, want, strict=True))
    assert all(words in line for line in said if words)
    assert not said or words
    assert step(planned, contextlib.nullcontext)[0].allclose(step(plain, contextlib.nullcontext)[0], atol=1e-5)


def test_a_hook_for_all_modules_after_planning_is_called() -> None:
    plain = Net()
    planned = rekindle.checkpoint(
        copy.deepcopy(plain), X, minimize="memory", effort="quick", progress=False, compile=True
    )
    with hook(all_modules.register_module_forward_hook, louder):
        want = step(plain, contextlib.nullcontext)
        with pytest.warns(
            rekindle.RekindleWarning, match="Net has hooks on all modules, which compiled code would not run"
        ):
            assert all(map(torch.equal, step(planned, contextlib.nullcontext), want))


class Dropping(Block):
    def act(self, x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return nn.functional.dropout(torch.tanh(x), 0.2)


def once(y: torch.Tensor, _: nn.Module) -> list[torch.Tensor]:
    y.square().mean().backward()
    return []


def thrice(y: torch.Tensor, _: nn.Module) -> list[torch.Tensor]:
    loss = y.square().mean()
    for retain in (True, True, False):
        loss.backward(retain_graph=retain)
    return []


def some_first(y: torch.Tensor, model: nn.Module) -> list[torch.Tensor]:
    loss = y.square().mean()
    some = torch.autograd.grad(loss, [*model.parameters()][-3:], retain_graph=True)
    loss.backward()
    return [*some]


def two_losses(y: torch.Tensor, _: nn.Module) -> list[torch.Tensor]:
    y.square().mean().backward(retain_graph=True)
    y.sin().sum().backward()
    return []


@pytest.mark.parametrize("how", [{}, pytest.param({"offload": True}, marks=pytest.mark.sweep),
                                 pytest.param({"parts": "*"}, marks=pytest.mark.sweep)])  # fmt: skip
def test_a_compiled_backward_that_runs_again(how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(*[Dropping() for _ in range(3)])
    planned = rekindle.checkpoint(
        copy.deepcopy(plain), X, minimize="memory", effort="quick", progress=False,
        compile={"options": {"fallback_random": True}}, **how,
    )  # fmt: skip
    for way in (once, thrice, some_first, two_losses, once):
        found = []
        for model in (plain, planned):
            model.zero_grad()
            torch.manual_seed(1)
            found.append([*way(model(X), model), *(p.grad for p in model.parameters())])
        for a, b in zip(*found, strict=True):
            assert torch.allclose(a, b, atol=1e-5 * b.abs().max().item()), way
