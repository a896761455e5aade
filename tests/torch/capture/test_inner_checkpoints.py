"""Forwards that run again in their own backward: in torch.utils.checkpoint with use_reentrant=True, and in Functions."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rekindle
from rekindle import TraceError

LEAST: dict[str, Any] = {"minimize": "memory", "solver": "storages", "progress": False}


class Again(torch.autograd.Function):
    """Checkpointing as DeepSpeed and Megatron have it: its backward leaves gradients of parameters in `.grad`."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            made = ctx.run(x)
        torch.autograd.backward(made, gradient)
        return None, x.grad


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        s = ctx.saved_tensors[0].sigmoid()
        return gradient * (s + ctx.saved_tensors[0] * s * (1 - s))


class Adapted(nn.Module):
    """Trained layers behind a frozen one, whose result is let require gradients where they run again in backward."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8).requires_grad_(False)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(2))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.how != "plain":
            x.requires_grad_()
        if self.how != "function":
            x = Swish.apply(x)
        seen = [x]
        for layer in self.layers:
            if self.how == "reentrant":
                seen.append(checkpoint(layer, seen[-1], use_reentrant=True))
            else:
                seen.append(Again.apply(layer, seen[-1]) if self.how == "function" else layer(seen[-1]))
        return torch.stack([t.square().mean() for t in seen]).sum()


def gradients(model: nn.Module, x: Tensor) -> list[Tensor | None]:
    torch.manual_seed(1)
    model.zero_grad()
    model(x).backward()
    return [p.grad for p in model.parameters() if p.requires_grad]


def same(plain: nn.Module, planned: nn.Module, x: Tensor) -> bool:
    pairs = zip(gradients(plain, x), gradients(planned, x), strict=True)
    return all(a is not None and b is not None and torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("check", [True, False])
def test_reentrant_checkpoints_run_as_a_part_of_the_plan(check: bool) -> None:
    plain, x = Adapted("reentrant"), torch.randn(16, 8)
    planned = rekindle.checkpoint(copy.deepcopy(plain), x, check=check, **LEAST)
    assert same(plain, planned, x)
    assert rekindle.status(planned).calls == 1


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(("how", "by_plan"), [("reentrant", 1), ("function", 0)])
@pytest.mark.filterwarnings("ignore:.*calls backward\\(\\) itself")
def test_a_checkpoint_that_is_switched_on_later_is_seen(how: str, by_plan: int, check: bool) -> None:
    plain, x = Adapted("plain"), torch.randn(16, 8)
    planned = rekindle.checkpoint(copy.deepcopy(plain), x, check=check, **LEAST)
    plain.how = planned.how = how  # type: ignore[assignment]
    assert same(plain, planned, x)
    assert rekindle.status(planned).calls == by_plan


def test_a_function_that_leaves_gradients_by_the_way_is_refused() -> None:
    with pytest.raises(TraceError, match=r"calls backward\(\) itself at .*test_inner_checkpoints"):
        rekindle.trace(Adapted("function"), torch.randn(16, 8))


def test_parameters_get_no_gradients_where_no_argument_requires_any() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(checkpoint(self.inner, x, use_reentrant=True)).square().mean()  # type: ignore[no-any-return]

    plain, x = Frozen(), torch.randn(16, 8)
    planned = rekindle.checkpoint(copy.deepcopy(plain), x, **LEAST)
    theirs, ours = gradients(plain, x), gradients(planned, x)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    assert ours[0] is None
