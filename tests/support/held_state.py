"""Optimizers of PyTorch and others, in pairs, of which the host holds the state of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from rekindle.torch.costs.resident import optimizers_by_name
from rekindle.torch.offload.optimizer_state import StateOnHost, held_on_host

Trained = tuple[nn.Module, Optimizer]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 24), nn.Linear(24, 4))


class Counts(Optimizer):
    """Divides its updates by a count of its steps, keeps past gradients in a tensor that grows, and a view of that tensor."""

    def __init__(self, params: Any):
        super().__init__(params, {"lr": 0.1})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.steps += 1
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            s = self.state[p]
            mean = s.setdefault("mean", torch.zeros_like(p))
            s["past"] = torch.cat([s.get("past", torch.zeros(0, *p.shape))[-2:], p.grad[None]])
            s["last"] = s["past"][-1]
            p -= mean.lerp_(p.grad, 0.1) / self.steps + 0.1 * s["past"].mean(0) + 0.01 * s["last"]


class Partly(Counts):
    """Updates one tensor of its state in place and replaces another, and keeps all of them in a list as well."""

    def __init__(self, params: Any):
        super().__init__(params)
        self.all = list[torch.Tensor]()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            s = self.state[p]
            if "mean" not in s:
                self.all.append(s.setdefault("mean", torch.zeros_like(p)))
            p -= 0.1 * s["mean"].lerp_(p.grad, 0.1) + 0.01 * s.get("past", p.grad)
            s["past"] = p.grad.clone()
        for t in self.all:
            t *= 0.99


class Flat(Counts):
    """Keeps its state in one tensor of its own, of which the state has views."""

    def __init__(self, params: Any):
        super().__init__(params)
        self.flat = dict[nn.Parameter, torch.Tensor]()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            if p not in self.flat:
                self.flat[p] = torch.zeros(p.numel())
                self.state[p]["mean"] = self.flat[p].view_as(p)
            self.flat[p].mul_(0.9).add_(p.grad.flatten())
            p -= 0.1 * self.state[p]["mean"]


class ByNorm(torch.optim.SGD):
    """Divides all gradients by the norm of all, and keeps them in its state."""

    def __init__(self, params: Any):
        super().__init__(params, 0.1, momentum=0.9)

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        params = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        torch.nn.utils.clip_grad_norm_(params, 0.1)
        for p in params:
            self.state[p]["gradient"] = p.grad
        return super().step(closure)


def by_name(name: str) -> Callable[[Any], Optimizer]:
    cls, options = optimizers_by_name()[name]
    return lambda params: cls([p for p in params if p.ndim == 2 or name != "muon"], **options)


OWN: dict[str, Callable[[Any], Optimizer]] = {
    name: by_name(name) for name in {*optimizers_by_name()} - {"lbfgs", "lion"}
} | {
    "adamw fused": lambda p: torch.optim.AdamW(p, amsgrad=True, fused=True),
    "adam foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "sgd by groups": lambda p: torch.optim.SGD(
        [{"params": [q], "lr": 0.1 / (i + 1)} for i, q in enumerate(p)], momentum=0.9
    ),
}


OTHERS: dict[str, Callable[[Any], Optimizer]] = {
    "counts": Counts,
    "partly": Partly,
    "flat": Flat,
    "by norm": ByNorm,
    "lion": by_name("lion"),
}


MAKE = OWN | OTHERS


def hold(model: nn.Module, optimizer: Optimizer) -> StateOnHost:
    with held_on_host(model, optimizer) as held:
        return held


def gradients(model: nn.Module, seed: int, without: int = -1) -> None:
    g = torch.Generator().manual_seed(seed)
    for i, p in enumerate(model.parameters()):
        p.grad = None if i == without else torch.rand(p.shape, generator=g) - 0.5


def pair(make: Callable[[Any], Optimizer]) -> list[Trained]:
    models = [net(), net()]
    return [(m, make(m.parameters())) for m in models]


def same(a: Trained, b: Trained) -> bool:
    """Whether weights, gradients and all of the state are the same."""
    weights = [all(map(torch.equal, a[0].state_dict().values(), b[0].state_dict().values()))]
    grads = [
        (p.grad is None) == (q.grad is None) and (p.grad is None or q.grad is None or torch.equal(p.grad, q.grad))
        for p, q in zip(a[0].parameters(), b[0].parameters(), strict=True)
    ]
    one, two = (o.state_dict()["state"] for _, o in (a, b))
    state = [
        torch.equal(x, two[i][k]) if isinstance(x, torch.Tensor) else x == two[i][k]
        for i, entries in one.items() for k, x in entries.items()
    ]  # fmt: skip
    return all([*weights, *grads, *state, one.keys() == two.keys()])


def on_device(optimizer: Optimizer, held: StateOnHost) -> int:
    """Bytes of tensors of the state that lie in no block of the host's."""
    away = {id(t) for part in held._parts for t in part.on_host()}
    found = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.ndim]
    return sum(t.nbytes for t in found if id(t) not in away)
