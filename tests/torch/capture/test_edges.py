"""What else decides how a call computes: backward code, strides, modes, hooks on all modules, wrappers around the call."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import rekindle
from rekindle import RekindleWarning

HOW: dict[str, Any] = {"solver": "storages", "time_limit": 2, "minimize": "memory"}
FACTOR = 1.5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.factor = nn.Linear(8, 16), nn.Linear(16, 8), 1.5

    def compute(self, x: Tensor) -> Tensor:
        return torch.tanh(self.b(torch.tanh(self.a(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x)


class HookReads(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.compute(x)
        if h.requires_grad:
            h.register_hook(lambda g: g * self.factor)
        return h


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return -FACTOR * g


class FunctionReads(Net):
    def forward(self, x: Tensor) -> Tensor:
        return Reversed.apply(self.compute(x))


class ModuleInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, module: Any) -> Tensor:
        ctx.module = module
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.module.factor, None


class ContextReads(Net):
    def forward(self, x: Tensor) -> Tensor:
        return ModuleInBackward.apply(self.compute(x), self)


class ByStrides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.w).sum() * (2.0 if self.w.is_contiguous() else 3.0)


def pair(model: nn.Module, x: Tensor) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return model, rekindle.checkpoint(copy.deepcopy(model), x, **HOW)


def equal(eager: nn.Module, planned: nn.Module, *xs: Tensor) -> bool:
    found = []
    for m in (eager, planned):
        m.zero_grad()
        out = sum(m(x).square().sum() for x in xs)
        out.backward()  # type: ignore[union-attr]
        found.append([out, *(p.grad for p in m.parameters())])
    return all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("kind", [HookReads, ContextReads])
def test_an_attribute_that_backward_alone_reads(kind: type[Net]) -> None:
    x = torch.randn(16, 8)
    eager, planned = pair(kind(), x)
    assert equal(eager, planned, x)
    eager.factor = planned.factor = 3.0
    assert equal(eager, planned, x)


def test_a_global_that_backward_alone_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(16, 8)
    eager, planned = pair(FunctionReads(), x)
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    assert equal(eager, planned, x)


def test_strides_of_a_parameter() -> None:
    x = torch.randn(16, 8)
    eager, planned = pair(ByStrides(), x)
    for m in (eager, planned):
        m.w.data = m.w.data.t().contiguous().t()  # type: ignore[union-attr]
    assert equal(eager, planned, x)


def test_the_kind_of_a_parameter() -> None:
    class Doubled(nn.Parameter):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = super().__torch_function__(func, types, args, kwargs or {})
            return 2 * out if func is torch.nn.functional.linear else out

    x = torch.randn(16, 8)
    eager, planned = pair(Net(), x)
    for m in (eager, planned):
        m.a.weight = Doubled(m.a.weight.detach().clone())  # type: ignore[union-attr]
    assert equal(eager, planned, x)


def test_what_a_hook_on_all_modules_holds() -> None:
    scale = [2.0]
    x = torch.randn(16, 8)
    handle = register_module_forward_hook(lambda m, args, out: out * scale[0] if isinstance(m, nn.Linear) else None)
    try:
        eager, planned = pair(Net(), x)
        scale[0] = 3.0
        assert equal(eager, planned, x)
    finally:
        handle.remove()


def test_autocast_casts_a_weight_once_for_two_calls() -> None:
    x = torch.randn(16, 8)
    with torch.autocast("cpu", torch.bfloat16):
        eager, planned = pair(Net(), x)  # the check makes two calls as well
        assert equal(eager, planned, x)
        assert equal(
            eager, planned, x, 2 * x
        )  # one backward through both calls: eager adds their gradients at one cast


def test_a_planned_module_inside_of_torchs_checkpoint_at_a_new_shape() -> None:
    x = torch.randn(16, 8)
    eager, planned = pair(Net(), x)
    for m in (eager, planned):
        m.zero_grad()
        checkpoint(m, x[:5], use_reentrant=False).sum().backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(eager.parameters(), planned.parameters(), strict=True))


def test_forward_mode_runs_plain() -> None:
    x, t = torch.randn(16, 8), torch.randn(16, 8)
    eager, planned = pair(Net(), x)
    found = []
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        found.append(forward_ad.unpack_dual(eager(dual)).tangent)
        with pytest.warns(RekindleWarning, match="in forward-mode automatic differentiation"):
            out = planned(dual)
        found.append(forward_ad.unpack_dual(out).tangent)
    assert torch.equal(*found)


@pytest.mark.filterwarnings("ignore:Net was called under parametrize.cached")
def test_values_kept_from_call_to_call_run_plain() -> None:
    x = torch.randn(16, 8)
    model = Net()
    parametrizations.spectral_norm(model.a)
    eager, planned = pair(model, x)
    assert equal(eager, planned, x)
    for m in (eager, planned):  # one at a time: torch's cache takes a copy for the same module
        m.zero_grad()
        with parametrize.cached():
            (m(x).sum() + m(2 * x).sum()).backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(eager.parameters(), planned.parameters(), strict=True))
