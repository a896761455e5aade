"""Ways to call a planned module: how arguments are passed, calls that cannot be planned, other people's wrappers."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import rekindle
from changing_net import Config, Net, equal, pair, plans, silent, step
from marks import every, sweep
from rekindle import RekindleWarning
from rekindle.torch.serve import unused


# -- how it is called ------------------------------------------------------------------------------------------------------
def test_how_arguments_are_passed_makes_no_difference() -> None:
    plain, planned, x = pair()
    mask = torch.rand(16, 8)
    with silent():
        for args, kwargs in (
            ((x,), {}), ((), {"x": x}), ((x, None), {}), ((x,), {"mask": None}), ((x, None, 1.0, False), {}),
            ((x,), {"weight": 1.0, "mask": None}), ((x,), {"flag": False}),
        ):  # fmt: skip
            assert equal(plain, planned, *args, **kwargs)
    assert plans(planned) == 1
    for args, kwargs in (
        ((x, mask), {}), ((), {"mask": mask, "x": x}), ((x,), {"mask": mask}), ((x, mask, 1.0), {}),
    ):  # fmt: skip
        assert equal(plain, planned, *args, **kwargs)
    assert plans(planned) == 2
    assert equal(plain, planned, x, None, 1.0, True)
    assert equal(plain, planned, x, flag=True)
    assert plans(planned) == 3


def test_an_object_among_the_arguments_that_changes() -> None:
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, config: Config) -> torch.Tensor:
            return self.linear(x) * config.gain

    plain, x, config = Takes(), torch.randn(5, 4), Config()
    planned = rekindle.checkpoint(copy.deepcopy(plain), (x, config), minimize="memory", solver="storages")
    for gain in (1.0, 3.0, 0.0, -0.0, 1.0):
        config.gain = gain
        assert equal(plain, planned, x, config)
    assert equal(plain, planned, x, copy.deepcopy(config))


# -- calls that cannot be planned ------------------------------------------------------------------------------------------
def test_a_call_that_cannot_be_planned_runs_plain_with_a_word() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.looks, self.off = nn.Linear(4, 4), False, False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.linear(x).detach() if self.off else self.linear(x)
            return -h if self.looks and bool(h.sum() > 0) else h

    plain, x = Looks(), torch.randn(5, 4)
    planned = rekindle.checkpoint(copy.deepcopy(plain), x, minimize="memory", solver="storages")
    assert equal(plain, planned, x)
    planned.looks = plain.looks = True
    with pytest.warns(RekindleWarning, match="depend on tensor values"):
        assert equal(plain, planned, x)
    with silent():
        assert equal(plain, planned, x)
    planned.looks = plain.looks = False
    with silent():
        assert equal(plain, planned, x)
    planned.off = plain.off = True
    with pytest.warns(RekindleWarning, match="no result"):
        assert torch.equal(plain(x), planned(x))
    planned.requires_grad_(False)
    with silent():
        planned(torch.randn(6, 4))


def test_a_batch_beyond_the_budget_runs_with_least_memory_and_a_word() -> None:
    torch.manual_seed(0)
    plain, x = Net(), torch.randn(64, 8)
    least = rekindle.plan(rekindle.trace(plain, x), minimize="memory", solver="storages").peak_bytes
    planned = rekindle.checkpoint(copy.deepcopy(plain), x, budget=least + 16384, solver="storages")
    more = torch.randn(1024, 8)
    with pytest.warns(RekindleWarning, match="least memory"):
        assert equal(plain, planned, more)
    with silent():
        assert equal(plain, planned, more)


@sweep
def test_later_plans_are_made_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle import api

    asked = []

    def noting(make: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            asked.append(args[1])
            return make(*args, **kwargs)

        return noted

    for name in ("plan_graph", "replan_graph"):
        monkeypatch.setattr(api, name, noting(getattr(api, name)))
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rekindle.checkpoint(
        model, torch.randn(16, 8), budget=0.8, solver="storages", cost="flops", time_limit=3, seed=5, optimizer=optimizer,
        must_save=["head"], parity="close",
    )  # fmt: skip
    step(model, torch.randn(20, 8))
    assert len(asked) == 2
    assert asked[0] == asked[1]
    options = [b.trace.options for b in model.forward.bounds]
    assert options[0] == options[1]
    assert options[0].optimizer is optimizer
    assert options[0].must_save == ("head",)


# -- other people's wrappers -----------------------------------------------------------------------------------------------
@sweep
def test_a_wrapped_forward_is_not_traced_in_circles() -> None:
    """As Accelerate does under mixed precision."""
    plain, planned, x = pair()
    inner = planned.forward

    @functools.wraps(inner)
    def wrapped(*args: Any, **kwargs: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return inner(*args, **kwargs).float()

    planned.forward = wrapped
    own = plain.forward

    def wrapped_plain(*args: Any, **kwargs: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return own(*args, **kwargs).float()

    plain.forward = wrapped_plain
    for size in (16, 20, 20):
        assert equal(plain, planned, torch.randn(size, 8))
    assert len(list(inner.bounds)) == 3
    assert rekindle.verify(planned, x).ok
    rekindle.restore(planned)
    ran = inner.last
    inner.last = None
    assert equal(plain, planned, x)
    assert inner.last is None
    assert ran is not None


def test_a_plan_that_is_not_in_use_says_so_once() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x)

        def training_step(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).sum()

    outer, x = Outer(), torch.randn(3, 4)
    rekindle.checkpoint(outer, x, minimize="memory", solver="storages")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(6):
            outer.training_step(x).backward()
    assert ["plan of Outer is not in use" in str(w.message) for w in told] == [True]
    rekindle.checkpoint(outer, x, minimize="memory", solver="storages")
    with silent():
        outer(x).sum().backward()
        for _ in range(6):
            outer.training_step(x).backward()


def test_a_transform_of_functions_runs_plain_with_a_word() -> None:
    plain, planned, x = pair()
    planned.blocks.eval(), plain.blocks.eval(), planned.norm.eval(), plain.norm.eval()

    def loss(params: Any, model: nn.Module) -> torch.Tensor:
        return torch.func.functional_call(model, params, (x,)).square().sum()

    expected = torch.func.grad(loss)(dict(plain.named_parameters()), plain)
    with pytest.warns(RekindleWarning, match=r"torch\.func"):
        found = torch.func.grad(loss)(dict(planned.named_parameters()), planned)
    assert all(torch.equal(found[k], expected[k]) for k in expected)


def selective(run: Callable[[], torch.Tensor]) -> torch.Tensor:
    def contexts() -> Any:
        return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])

    return checkpoint(run, use_reentrant=False, context_fn=contexts)


def mutable(run: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        result = run()
        result.backward()
    return result.detach().requires_grad_()


@pytest.mark.parametrize(
    ("around", "words"), every(2, [(selective, "selective"), (mutable, r"allow_mutation_on_saved_tensors\(\)")])
)
def test_what_keeps_results_of_ops_runs_plain_with_a_word(around: Any, words: str) -> None:
    plain, planned, x = pair()
    planned.blocks.eval(), plain.blocks.eval(), planned.norm.eval(), plain.norm.eval()
    around(lambda: plain(x).square().sum()).backward()
    with pytest.warns(RekindleWarning, match=words):
        around(lambda: planned(x).square().sum()).backward()
    for p, q in zip(planned.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_other_parameters_for_one_call() -> None:
    plain, planned, x = pair()
    params = {k: (v.detach() * 2).requires_grad_() for k, v in plain.named_parameters()}
    torch.manual_seed(1)
    expected = torch.func.functional_call(plain, params, (x,))
    torch.manual_seed(1)
    with pytest.warns(
        RekindleWarning, match="in place of its parameter '.*', as torch.func.functional_call does; such"
    ):
        found = torch.func.functional_call(planned, params, (x,))
    assert torch.equal(found, expected)
    one, two = (torch.autograd.grad(y.sum(), list(params.values())) for y in (expected, found))
    assert all(map(torch.equal, one, two))


def test_a_plan_that_waits_for_its_first_step_makes_no_compiled_module_warn() -> None:
    """Torch warned of our hooks wherever another model ran compiled, as if they were the user's."""
    for waiting, _ in [*unused._waiting.values()]:  # models of other tests
        unused.used(waiting())
    planned, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(3, 4)
    compiled = torch.compile(nn.Linear(4, 4), backend="eager")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        rekindle.checkpoint(planned, x, minimize="memory", solver="storages")
        compiled(x)
        assert not [w for w in told if "global hooks" in str(w.message)]
        planned(x).sum().backward()
        with nn.modules.module.register_module_forward_pre_hook(lambda module, args: None):
            compiled(x)
        assert [w for w in told if "global hooks" in str(w.message)]
