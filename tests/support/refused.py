"""Models and samples to be refused or allowed, and a look at all that a failure must leave as it was."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import rekindle
from extra_solver import extra_solver
from rekindle import RekindleError, UsageError
from rekindle.torch.serve.planned import PlannedForward


class Net(nn.Module):
    """Dropout draws, batch norm writes statistics, an attribute counts the calls."""

    def __init__(self, after: Callable[[torch.Tensor], Any] | None = None):
        super().__init__()
        self.first, self.norm, self.drop, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4)
        self.after, self.calls = after, 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        y = self.last(self.drop(torch.tanh(self.norm(self.first(x)))))
        return self.after(y) if self.after else y


class Scale(nn.Module):
    """Has no parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (2 * x).tanh()


class Held:
    def __init__(self, x: torch.Tensor):
        self.x = x

    def __copy__(self) -> Held:
        return self


class Reads(nn.Module):
    """Looks into its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, held: Any) -> torch.Tensor:
        x = held.x if isinstance(held, Held) else next(iter(held))
        return self.layer(x)


def batch() -> torch.Tensor:
    return torch.rand(4, 4)


class NeverAsked(Exception):
    """A solver was asked."""


@pytest.fixture(autouse=True)
def never() -> Iterator[None]:
    """A solver that must not be reached: what is refused late raises its error."""

    def solve(problem: Any) -> Any:
        raise NeverAsked

    with extra_solver("never", solve):
        yield


def plan_it(model: Any, sample: Any, **options: Any) -> Any:
    return rekindle.checkpoint(model, sample, **({"budget": 1.0, "solver": "never"} | options))


def _seen(model: Any, sample: Any) -> dict[str, Any]:
    """All that a failure must leave as it was, comparable by ==."""
    found: dict[str, Any] = {
        "torch": torch.get_rng_state().tolist(), "NumPy": str(np.random.get_state(legacy=False)),
        "Python": random.getstate(), "grad mode": torch.is_grad_enabled(), "inference": torch.is_inference_mode_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(), "dtype": torch.get_default_dtype(),
    }  # fmt: skip
    tensors = [sample] if isinstance(sample, torch.Tensor) else sample if isinstance(sample, tuple | list) else []
    for i, t in enumerate(tensors):
        if isinstance(t, torch.Tensor) and t.layout is torch.strided and not (t.is_meta or t.is_nested):
            version = None if t.is_inference() else t._version
            found[f"sample {i}"] = (str(_numbers(t)), t.requires_grad, version)
            if t.is_leaf:
                found[f"gradient {i}"] = t.grad
    if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        for name, m in model.named_modules():
            found |= {
                f"{name}.{k}": [*x.items()] if isinstance(x, dict) else list(x)
                for k, x in m.__dict__.items()
                if k.endswith("_hooks")
            }
            found[f"{name}: attributes"] = sorted(m.__dict__)
            found |= {f"{name}.{k}": x for k, x in m.__dict__.items() if isinstance(x, int | bool | PlannedForward)}
        for name, t in [*model.named_parameters(), *model.named_buffers()]:
            found[f"{name}: itself"] = (id(t), t.requires_grad)
            if not (torch.nn.parameter.is_lazy(t) or t.is_meta):
                found[f"{name}: numbers"] = (str(_numbers(t)), None if t.is_inference() else t._version)
                found[f"{name}: gradient"] = id(t.grad)
    return found


def _numbers(t: torch.Tensor) -> Any:
    t = t.detach()
    return (t.int_repr() if t.is_quantized else t.to_dense() if t.is_sparse else t).tolist()


@contextlib.contextmanager
def left_alone(model: Any, sample: Any = None) -> Iterator[None]:
    before = _seen(model, sample)
    yield
    after = _seen(model, sample)
    assert [k for k in before.keys() | after.keys() if before.get(k) != after.get(k)] == []


class Refused(NamedTuple):
    """A call that is refused: `make` gives (model, sample), `call` is what is done with them."""

    name: str
    make: Callable[[], tuple[Any, Any]]
    error: type[RekindleError]
    words: str
    call: Callable[..., Any] = plan_it


def model_is(name: str, make: Callable[[], Any], words: str, error: type[RekindleError] = UsageError) -> Refused:
    return Refused(f"model: {name}", lambda: (make(), batch()), error, words)


def sample_is(name: str, make: Callable[[], Any], words: str, error: type[RekindleError] = UsageError) -> Refused:
    return Refused(f"sample: {name}", lambda: (Net(), make()), error, words)


def option(key: str, given: Any, words: str, shown: str = "") -> Refused:
    return Refused(
        f"{key}={shown or repr(given)}",
        lambda: (Net(), batch()),
        UsageError,
        words,
        lambda m, x: plan_it(m, x, **{key: given}),
    )


def called(name: str, call: Callable[[Any, Any], Any], words: str, error: type[RekindleError] = UsageError) -> Refused:
    return Refused(name, lambda: (Net(), batch()), error, words, call)


def inferred(make: Callable[[], Any]) -> Any:
    with torch.inference_mode():
        return make()


def holding_inferred(table: Callable[[nn.Module], Any] = lambda m: m._buffers) -> nn.Module:
    model = Net()
    table(model)["seen"] = inferred(lambda: torch.ones(4))
    return model


def frozen_sparse() -> nn.Module:
    model = Net()
    model.first.weight = nn.Parameter(torch.eye(8, 4).to_sparse())
    return model


def holding_quantised() -> nn.Module:
    model = Net()
    model.first.weight = nn.Parameter(torch.quantize_per_tensor(torch.rand(8, 4), 0.1, 0, torch.quint8), False)
    return model


def planned(model: nn.Module | None = None) -> nn.Module:
    return rekindle.checkpoint(model or Net(), batch(), 1.0, solver="chen-sqrt")


@functools.cache
def a_trace() -> rekindle.Trace:
    return rekindle.trace(Net(), batch())


@functools.cache
def a_plan() -> rekindle.Plan:
    return rekindle.plan(a_trace(), 1.0, solver="chen-sqrt")


def under_vmap(model: Any, sample: Any) -> Any:
    return torch.func.vmap(lambda x: plan_it(model, x))(sample[None])


def under_compile(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda m, x: torch.compile(call, backend="eager")(m, x)
