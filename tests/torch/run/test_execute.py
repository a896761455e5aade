"""A planned module behaves in a training loop as the plain one does."""

from __future__ import annotations

import contextlib
import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import rekindle
from marks import every
from models import make
from pairs import Net, both, equal_gradients, tight
from rekindle import RekindleError
from rekindle.torch.measure import memory as measure


def test_gradients_accumulate(pair: Any) -> None:
    for _ in range(3):
        both(pair, lambda m, x: m(x).square().mean().backward())
    assert equal_gradients(*pair[:2])


def test_backward_twice_over_one_forward(pair: Any) -> None:
    def step(m: nn.Module, x: torch.Tensor) -> None:
        loss = m(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()

    both(pair, step)
    assert equal_gradients(*pair[:2])


class Gated(nn.Module):
    """Backward reads both factors of the product for the last time when it multiplies the gradient by them."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.c(torch.nn.functional.silu(self.a(x)) * self.b(x))


def test_what_forward_saved_is_written_over_only_by_the_last_backward() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Gated(), Gated(), nn.Linear(32, 32))
    planned = copy.deepcopy(plain)
    x = torch.rand(64, 32)
    found = rekindle.plan(rekindle.trace(planned, x), 1.0, solver="none")
    rekindle.apply(planned, found)
    source: str = planned.forward.source  # type: ignore[attr-defined, assignment]
    assert " if retain else " in source

    def step(m: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        grads: list[torch.Tensor] = []
        loss = m(x).square().mean()
        for last in (False, False, True):
            grads += torch.autograd.grad(loss, list(m.parameters()), retain_graph=not last)
        return grads

    theirs, ours = both((plain, planned, x), step)
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    check = rekindle.verify(planned, x)
    assert check.ok
    assert check.measured_peak_bytes == pytest.approx(found.activation_peak_bytes, rel=0.02)


def test_gradients_of_some_parameters_alone(pair: Any) -> None:
    def step(m: Any, x: torch.Tensor) -> Any:
        loss = m(x).square().mean()
        late = torch.autograd.grad(loss, [m.head.weight], retain_graph=True)
        return late, torch.autograd.grad(loss, [m.blocks[0][0].weight, m.blocks[3][1].bias])

    plain, planned = both(pair, step)
    for a, b in zip([*plain[0], *plain[1]], [*planned[0], *planned[1]], strict=True):
        assert torch.equal(a, b)
    assert all(p.grad is None for p in pair[1].parameters())


def test_gradients_flow_on_into_the_input(pair: Any) -> None:
    torch.manual_seed(3)
    before = nn.Linear(16, 16)
    model = Net()
    x = torch.rand(32, 16)
    planned = copy.deepcopy(model)
    rekindle.apply(planned, tight(rekindle.trace(planned, before(x).detach().requires_grad_())))
    grads = []
    for m in (model, planned):
        torch.manual_seed(1)
        before.zero_grad()
        m(before(x)).sum().backward()
        grads.append(before.weight.grad.clone())
    assert torch.equal(*grads)
    assert len(list(planned.forward.bounds)) == 1


def test_hooks_fire_once_each_before_the_next_stage(pair: Any) -> None:
    seen: dict[str, list[str]] = {"plain": [], "planned": []}
    for kind, m in (("plain", pair[0]), ("planned", pair[1])):
        for name, p in m.named_parameters():
            p.register_post_accumulate_grad_hook(lambda p, kind=kind, name=name: seen[kind].append(name))
            p.register_hook(lambda g: g * 2)
    both(pair, lambda m, x: m(x).square().mean().backward())
    assert sorted(seen["plain"]) == sorted(seen["planned"])
    assert len(set(seen["planned"])) == len(seen["planned"])
    assert seen["planned"].index("head.weight") < seen["planned"].index("blocks.0.0.weight")
    assert equal_gradients(*pair[:2])


def test_hooks_of_the_module_itself_run_at_each_call(pair: Any) -> None:
    calls = []
    pair[1].register_forward_hook(lambda m, args, out: calls.append(tuple(out.shape)))
    pair[1](pair[2])
    pair[1](pair[2])
    assert calls == [(32, 3), (32, 3)]


def test_eval_and_no_grad_run_the_modules_own_forward(pair: Any) -> None:
    plain, planned, x = pair
    with torch.no_grad():
        a, b = both(pair, lambda m, x: m(x))
    assert torch.equal(a, b)
    assert b.grad_fn is None
    plain.eval()
    planned.eval()
    assert torch.equal(plain(x), planned(x))
    assert "Boundary" not in type(planned(x).grad_fn).__name__


def test_two_forwards_before_one_backward(pair: Any) -> None:
    def step(m: nn.Module, x: torch.Tensor) -> None:
        a = m(x)
        b = m(x.flip(0))
        (a * b).mean().backward()

    both(pair, step)
    assert equal_gradients(*pair[:2])


def test_an_error_in_a_hook_leaves_nothing_behind(pair: Any) -> None:
    _, planned, x = pair

    def fail(_: torch.Tensor) -> None:
        raise ValueError("on purpose")

    handle = planned.blocks[2][0].weight.register_hook(fail)
    for p in planned.parameters():
        p.grad = torch.zeros_like(p)

    def failing() -> None:
        loss = planned(x).square().mean()
        with contextlib.suppress(ValueError):
            loss.backward()
            pytest.fail("the hook was not called")

    def step() -> None:
        failing()
        torch.ones(1, requires_grad=True).sum().backward()  # autograd holds on to a failed backward until the next one
        gc.collect()

    step()
    assert measure.allocator_peak(step).left_bytes == 0
    handle.remove()
    planned.zero_grad()
    pair[0].load_state_dict(planned.state_dict())
    both(pair, lambda m, x: m(x).square().mean().backward())
    assert equal_gradients(*pair[:2])


class TwoResults(nn.Module):
    """Two results that share a trunk; each has a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.trunk(x).tanh()
        return self.a(h).tanh(), self.b(h).tanh()


def test_a_result_without_a_loss_gets_no_gradient() -> None:
    torch.manual_seed(0)
    plain, x = TwoResults(), torch.rand(4, 8)
    planned = rekindle.apply(copy.deepcopy(plain), tight(rekindle.trace(plain, x)))
    both((plain, planned, x), lambda m, x: m(x)[1].sum().backward())
    assert plain.a.weight.grad is None
    assert equal_gradients(plain, planned)


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x).tanh()
        return {"loss": logits.square().mean(), "logits": logits, "norm": logits.norm()}


def test_a_gradient_nobody_planned_for_is_refused_or_planned() -> None:
    model, x = WithLoss(), torch.rand(4, 8)
    planned = rekindle.apply(copy.deepcopy(model), tight(rekindle.trace(model, x)))
    out = planned(x)
    assert out["norm"].requires_grad
    with pytest.raises(RekindleError, match="output\\['norm'\\].*loss='all'"):
        (out["loss"] + out["norm"]).backward()
    # The loss is made from the logits, so their whole gradient comes together outside of the program.
    both((model, planned, x), lambda m, x: (m(x)["loss"] + m(x)["logits"].sum()).backward())
    assert equal_gradients(model, planned)
    model.zero_grad()
    planned = rekindle.apply(copy.deepcopy(model), tight(rekindle.trace(model, x, loss="all")))
    both((model, planned, x), lambda m, x: (m(x)["loss"] + m(x)["logits"].sum()).backward())
    assert equal_gradients(model, planned)


def test_an_expanded_gradient_is_as_good_as_any() -> None:
    """`sum` hands back an expanded tensor, of which no `view` may exist."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).view(4, 2, 3).transpose(1, 2)

    model, x = Flat(), torch.rand(4, 8)
    planned = rekindle.apply(copy.deepcopy(model), tight(rekindle.trace(model, x)))
    both((model, planned, x), lambda m, x: m(x).sum().backward())
    assert equal_gradients(model, planned)


def test_transformers_results_keep_their_type() -> None:
    model, sample = make("gpt2")
    plain = type(model(**sample))
    rekindle.apply(model, tight(rekindle.trace(model, sample)))
    result = model(**sample)
    assert type(result) is plain
    assert torch.equal(result["loss"], result.loss)
    assert result.past_key_values is None


@pytest.mark.parametrize("ambient", every(2, [False, True]))
def test_fake_models_run_and_hold_what_was_predicted(ambient: bool) -> None:
    mode = FakeTensorMode()
    with mode:
        model, x = Net(256), torch.rand(512, 256)
    outer = mode if ambient else torch.enable_grad()
    with outer:
        plan = tight(rekindle.trace(model, x))
        rekindle.apply(model, plan)
    with mode:
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        peak = measure.storage_peak(lambda: model(x).sum().backward(), [x, *model.parameters()])
    assert peak.peak_bytes == pytest.approx(plan.activation_peak_bytes, rel=0.02)
    check = rekindle.verify(model, x, plan)
    assert check.ok
    assert check.loss_equal is None
    assert check.measured_peak_bytes == pytest.approx(plan.activation_peak_bytes, rel=0.02)
