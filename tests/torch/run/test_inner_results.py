"""A result from which forward goes on is a node of autograd's graph: its whole gradient comes together there, as in eager."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

import rekindle
from pairs import tight
from rekindle import RekindleError, TraceError

Tensors = list[torch.Tensor | None]


class Nested(nn.Module):
    """Three results, each made from the one before; a weight is used on both sides of a result."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.tanh(self.a(x))
        g = torch.sigmoid(self.b(h)) + h
        return {"y": self.c(self.b(g)) * h.mean(), "deep": [h, g], "again": h}


class Views(nn.Module):
    """Results that are views of a result; two results share one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.tanh(self.a(x))
        left, right = h.chunk(2, -1)
        return self.b(left) + self.b(x), left + right, h, left, h.view(-1)


class Loss(nn.Module):
    """Only the loss gets a gradient, as far as the plan knows."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.relu(self.a(x))
        logits = self.b(h)
        return {"loss": logits.log_softmax(-1)[:, 0].mean(), "logits": logits, "hidden": h}


class Residual(nn.Module):
    """A residual stream that is returned after each block, as hidden states are: a whole gradient is a part of the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(4))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = []
        for i, block in enumerate(self.blocks):
            x = x + block(x) if i % 2 else block(x) + x
            hidden.append(x)
        return {"loss": self.head(x).log_softmax(-1)[:, 0].mean(), "hidden": hidden}


def results(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    out = model(x)
    flat = [*out.values()] if isinstance(out, dict) else [*out]
    return list({id(t): t for v in flat for t in (v if isinstance(v, list) else [v])}.values())


def size(t: torch.Tensor) -> torch.Tensor:
    return (t * torch.linspace(-1, 1, t.numel()).view(t.shape)).sum()


def retained(model: nn.Module, x: torch.Tensor) -> Tensors:
    out = results(model, x)
    for t in out:
        t.retain_grad()
    size(out[0]).backward()
    return [t.grad for t in out]


def halved(model: nn.Module, x: torch.Tensor) -> Tensors:
    out = results(model, x)
    for t in out:
        t.register_hook(lambda g: g * 0.5)
    sum(map(size, out)).backward(retain_graph=True)
    sum(map(size, out)).backward()
    return []


def kept_by_hooks(model: nn.Module, x: torch.Tensor) -> Tensors:
    """The hooks keep the very tensors, over which the plan would write."""
    out, kept = results(model, x), []
    for t in out:
        t.register_hook(kept.append)
    sum(map(size, out)).backward()
    return sorted(kept, key=lambda t: (t.dim(), t.shape, float(t.sum())))


def one_alone(model: nn.Module, x: torch.Tensor) -> Tensors:
    h = results(model, x)[2]
    size(h).backward()
    return []


def balanced(model: nn.Module, x: torch.Tensor) -> Tensors:
    """The second backward goes on from a result at which the first ended."""
    out = results(model, x)
    (g,) = torch.autograd.grad(size(out[0]), out[2])
    out[2].backward(g * 2)
    return [g]


def of_inputs(model: nn.Module, x: torch.Tensor) -> Tensors:
    out = results(model, x)
    sum(map(size, out)).backward(inputs=[out[2]])
    return [out[2].grad]


def two_calls(model: nn.Module, x: torch.Tensor) -> Tensors:
    one, two = results(model, x), results(model, x)
    one[2].register_hook(lambda g: g * 0.5)
    (size(one[0]) + size(two[0]) + size(two[2])).backward()
    return []


WAYS = [retained, halved, kept_by_hooks, one_alone, balanced, of_inputs, two_calls]


def pair(model: nn.Module, **how: Any) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """(the model, a planned copy, a sample)."""
    x = torch.randn(6, 8, requires_grad=True)
    return model, rekindle.apply(copy.deepcopy(model), tight(rekindle.trace(model, x, **how))), x


@pytest.mark.parametrize("kind", [Nested, Views, Loss, Residual])
@pytest.mark.parametrize("loss", ["auto", "all"])
def test_gradients_of_results_are_eagers(kind: Callable[[], nn.Module], loss: str) -> None:
    model, planned, x = pair(kind(), loss=loss)
    for way in WAYS:
        found = []
        for m in (model, planned):
            m.zero_grad()
            x.grad = None
            found.append([*way(m, x), x.grad, *(p.grad for p in m.parameters())])
        for i, (eager, ours) in enumerate(zip(*found, strict=True)):
            same = eager is ours if eager is None or ours is None else torch.equal(eager, ours)
            assert same, f"{way.__name__}: {i}"


@pytest.mark.parametrize("kind", [Nested, Loss, Residual])
def test_second_derivatives_go_through_results(kind: Callable[[], nn.Module]) -> None:
    model, planned, x = pair(kind(), loss="all")
    found = []
    for m in (model, planned):
        out = results(m, x)
        h = out[2]
        h.register_hook(lambda g: g * 0.5)
        gx, gh = torch.autograd.grad(sum(map(size, out)), [x, h], create_graph=True)
        m.zero_grad()
        ((gx * gx).sum() + (gh * h).sum()).backward()
        found.append([gx, gh, *(p.grad for p in m.parameters())])
    for eager, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager)


class Words(nn.Module):
    """Its logits are the largest tensor by far, so a plan of least memory makes their gradient in slices."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.a, self.head = nn.Embedding(2000, 16), nn.Linear(16, 16), nn.Linear(16, 2000)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        h = torch.tanh(self.a(self.words(ids)))
        logits = self.head(h)
        return {"loss": nn.functional.cross_entropy(logits, ids), "logits": logits}


def test_a_look_at_a_gradient_that_is_made_in_slices_is_refused() -> None:
    ids = torch.arange(256)
    planned = rekindle.checkpoint(Words(), ids, minimize="memory", progress=False)
    out = planned(ids)
    out["logits"].register_hook(lambda g: g)
    with pytest.raises(RekindleError, match=r"on output\['logits'\], from which forward goes on.*loss='all'"):
        out["loss"].backward()


def test_a_backward_that_ends_at_such_a_result_is_refused() -> None:
    ids = torch.arange(256)
    model = Words()
    planned = rekindle.checkpoint(copy.deepcopy(model), ids, minimize="memory", progress=False)
    grad = torch.autograd.grad
    out = planned(ids)
    with pytest.raises(RekindleError, match="ends at a result, .* from which forward goes on.*loss='all'"):
        grad(out["loss"], out["logits"], retain_graph=True, allow_unused=True)
    assert grad(out["loss"] * 3, out["loss"], retain_graph=True)[0] == 3
    ours, eager = (grad(o["loss"] * 3, m.head.weight) for o, m in ((out, planned), (model(ids), model)))
    assert torch.equal(ours[0], eager[0])


class Holding(nn.Module):
    """The result is an attribute too, and forward lets autograd keep its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
        self.held: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.tanh(self.a(x))
        h.retain_grad()
        self.held = h
        return self.b(h), h


def test_a_result_and_an_attribute_are_one_tensor_whose_gradient_is_kept() -> None:
    model, planned, x = pair(Holding())
    grads = []
    for m in (model, planned):
        y, h = m(x)
        assert m.held is h
        y.square().sum().backward()
        grads.append(h.grad)
    assert torch.equal(*grads)


class Screen(nn.Module):
    """The gradient of a tensor that forward makes out of nothing, as renderers of Gaussians ask for it."""

    def __init__(self, leaf: bool, kept: bool = False) -> None:
        super().__init__()
        self.a, self.leaf, self.kept = nn.Linear(8, 8), leaf, kept

    def forward(self, x: torch.Tensor) -> Any:
        points = torch.zeros(x.shape, requires_grad=True)
        points = points if self.leaf else points + 0
        if self.kept:
            points.retain_grad()
        return self.a(x + points), points


def test_a_gradient_that_no_plan_makes_is_refused() -> None:
    _, planned, x = pair(Screen(leaf=False))
    planned(x)[0].sum().backward()
    y, points = planned(x)
    points.retain_grad()
    with pytest.raises(RekindleError, match="from which forward goes on.*pass it in"):
        y.sum().backward()
    for refused in (Screen(leaf=True), Screen(leaf=False, kept=True)):
        with pytest.raises(TraceError, match=r"makes output\[1\] with requires_grad=True"):
            rekindle.trace(refused, x)


class Looks(nn.Module):
    """Looks at the gradient of what it is given."""

    def __init__(self, how: str, branches: bool = False) -> None:
        super().__init__()
        self.how, self.branches, self.a, self.b = how, branches, nn.Linear(8, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "hook":
            x.register_hook(lambda g: g * 2)
        elif self.how == "retain":
            x.retain_grad()
        h = self.a(x).relu()
        h = h * 2 if self.branches and float(h.detach().sum()) > 1e9 else h
        return self.b(h.tanh() * h)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("how", "method"), [("hook", "register_hook"), ("retain", "retain_grad")])
def test_a_look_at_the_gradient_of_an_argument_is_refused(how: str, method: str) -> None:
    leaf = torch.randn(16, 8, requires_grad=True)
    if how == "retain":
        rekindle.trace(Looks(how), leaf)  # of a leaf, the gradient is kept in any case
    with pytest.raises(TraceError, match=rf"forward calls {method} of an argument at .*view_as"):
        rekindle.trace(Looks(how), leaf * 1)


def test_a_part_that_hangs_hooks_on_its_argument_does_not_run_again() -> None:
    model = nn.Sequential(*(Looks("", branches=True) for _ in range(3)))
    rekindle.checkpoint(model, torch.randn(64, 8), minimize="memory", progress=False)
    for part in model:
        part.how = "hook"
    with pytest.raises(TraceError):
        rekindle.checkpoint(model, torch.randn(64, 8, requires_grad=True), minimize="memory", progress=False)


def test_a_model_without_such_results_is_captured_as_before() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    captured = rekindle.trace(model, torch.randn(6, 8)).lowered.captured
    assert not captured.inner
    assert not captured.goes_on


def test_gradients_of_weights_may_be_taken_later() -> None:
    """Inputs' gradients first, weights' from the nodes between, as schedules of pipelines without bubbles do."""
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    found = []
    for m in pair(model)[:2]:
        x = torch.ones(6, 8, requires_grad=True)
        _, groups = stage_backward_input([m(x).sum()], None, [x], iter(m.parameters()))
        stage_backward_weight(iter(m.parameters()), groups)
        found.append([x.grad, *(p.grad for p in m.parameters())])
    assert all(map(torch.equal, *found))


def test_a_backward_that_ends_at_a_result_leaves_no_cycle() -> None:
    _, planned, x = pair(Loss())
    gc.collect()
    gc.disable()
    try:
        out = results(planned, x)
        torch.autograd.grad(out[0], out[2])
        step = weakref.ref(out[0].grad_fn.step)  # type: ignore[union-attr]
        del out
        assert step() is None
    finally:
        gc.enable()
