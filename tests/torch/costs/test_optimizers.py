"""The state of an optimizer counts before its first step has made it, to the byte."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_post_hook

import rekindle
from rekindle import UsageError
from rekindle.torch.costs.resident import counted, optimizers_by_name, state_bytes

OPTIM: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adafactor": (torch.optim.Adafactor, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adam": (torch.optim.Adam, {}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "fused": (torch.optim.Adam, {"fused": True}),
    "foreach": (torch.optim.AdamW, {"foreach": True}),
    "tensor rate": (torch.optim.AdamW, {"lr": torch.tensor(1e-3)}),
    "adamw": (torch.optim.AdamW, {}),
    "adamax": (torch.optim.Adamax, {}),
    "asgd": (torch.optim.ASGD, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "rmsprop, all": (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "rprop": (torch.optim.Rprop, {}),
    "sgd": (torch.optim.SGD, {}),
    "sgd, momentum 0": (torch.optim.SGD, {"lr": 0.1, "momentum": 0}),
    "sgd-momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
}


class Mixed(nn.Module):
    """Parameters of 0 to 4 dimensions; tied ones; frozen ones; sizes of 1 and sizes that agree."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()))
        self.layer, self.frozen = nn.Linear(12, 20), nn.Linear(20, 12).requires_grad_(False)
        self.tied = nn.Linear(12, 20)
        self.tied.weight = self.layer.weight
        self.one, self.deep = nn.Conv1d(1, 6, 3), nn.Conv2d(6, 6, (1, 3))


def stepped(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the true state after one step."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p) if p.requires_grad else None
    optimizer.step()
    tensors = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    return sum(t.untyped_storage().nbytes() for t in tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", OPTIM)
def test_the_state_to_come_is_the_state_that_comes(name: str, dtype: torch.dtype) -> None:
    cls, options = OPTIM[name]
    model = Mixed().to(dtype)
    optimizer = cls(model.parameters(), **options)
    expected = state_bytes(optimizer, model)
    assert expected == stepped(optimizer)
    assert state_bytes(optimizer, model) == expected  # now that it is there
    if not options:
        training = cls([p for p in model.parameters() if p.requires_grad])  # Adagrad has state for frozen ones too
        assert state_bytes(cls, model) == state_bytes(name, model) == stepped(training)
    if name not in ("sgd", "sgd, momentum 0"):
        assert expected > 0


def test_every_optimizer_of_torch_has_been_compared_or_is_told_apart() -> None:
    known = {cls for cls, _ in OPTIM.values()}
    there = {c for c in vars(torch.optim).values() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)}
    apart = {torch.optim.Optimizer, torch.optim.SparseAdam, torch.optim.LBFGS, getattr(torch.optim, "Muon", None)}
    assert there <= known | apart
    assert {c.__name__.lower() for c in there - {torch.optim.Optimizer, torch.optim.SparseAdam}} <= {
        *optimizers_by_name()
    }


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_is_for_matrices() -> None:
    model = Mixed()
    matrices = [p for p in model.parameters() if p.ndim == 2 and p.requires_grad]
    rest = [p for p in model.parameters() if p.ndim != 2]
    muon = torch.optim.Muon(matrices)
    expected = state_bytes(muon, model)
    assert expected == stepped(muon)
    assert state_bytes("muon", model) == expected + stepped(torch.optim.AdamW(rest))


def test_lbfgs_counts_its_whole_history() -> None:
    model, x = nn.Linear(12, 5), torch.rand(64, 12)
    optimizer = torch.optim.LBFGS(model.parameters(), history_size=4, max_iter=3)
    expected = state_bytes(optimizer, model)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - x[:, :5].sin()).square().mean()
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)
    assert 0.8 * expected < state_bytes(torch.optim.LBFGS(model.parameters(), history_size=4), model) <= expected
    held = [t for s in optimizer.state.values() for x in s.values() for t in (x if isinstance(x, list) else [x])]
    assert sum(t.untyped_storage().nbytes() for t in held if isinstance(t, torch.Tensor)) <= expected


def test_groups_with_options_of_their_own() -> None:
    model = Mixed()
    optimizer = torch.optim.SGD(
        [
            {"params": model.layer.parameters(), "momentum": 0.9},
            {"params": model.deep.parameters(), "initial_lr": 3, "name": "deep"},
        ],
        lr=0.1,
    )
    assert state_bytes(optimizer, model) == stepped(optimizer) == 4 * sum(p.numel() for p in model.layer.parameters())


def test_state_that_is_there_counts_where_it_is_more() -> None:
    model = Mixed()
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    more = stepped(optimizer)
    for group in optimizer.param_groups:
        group["amsgrad"] = False
    model.layer.requires_grad_(False)  # frozen now: its state stays
    assert state_bytes(optimizer, model) == more


def test_the_optimizer_is_not_touched() -> None:
    model = Mixed()
    rate = torch.tensor(0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    undo = register_optimizer_step_post_hook(lambda *_: calls.append(2))
    before = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
    rng = torch.get_rng_state()
    try:
        state_bytes(optimizer, model)
        state_bytes(torch.optim.Adagrad, model)
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()
    finally:
        undo.remove()
    assert calls == [2]  # the last one's
    assert torch.equal(rng, torch.get_rng_state())
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())
    after = optimizer.state_dict(), model.state_dict()
    assert before[0]["param_groups"] == after[0]["param_groups"]
    assert all(torch.equal(a, b) for a, b in zip(before[1].values(), after[1].values(), strict=True))


def test_modes_and_devices_do_not_matter() -> None:
    expected = state_bytes("adamw", Mixed())
    with FakeTensorMode():
        assert state_bytes("adamw", Mixed()) == expected
    with torch.device("meta"):
        model = Mixed()
        assert state_bytes("adamw", model) == expected
        assert state_bytes(torch.optim.AdamW(model.parameters(), capturable=True), model) == expected
    with torch.inference_mode():
        assert state_bytes(torch.optim.Adagrad, model) > 0


@pytest.mark.parametrize("given", [3, None, "adamax2", "", Mixed, nn.Linear(1, 1)])
def test_what_is_no_optimizer_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="adamw.*sgd-momentum"):
        state_bytes(given, Mixed())


class Third(torch.optim.Optimizer):
    """Somebody's own: a required argument, a factored state, a buffer of a fixed size, nested lists."""

    def __init__(self, params: Any, strength: float, fixed: int = 4) -> None:
        super().__init__(params, {"strength": strength, "fixed": fixed})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and not self.state[p]:
                    flat = p.detach().flatten()
                    self.state[p] = {
                        "rows": [p.new_zeros(n) for n in p.shape], "flat": {"x": flat.to(torch.float64)},
                        "fixed": p.new_zeros(group["fixed"], 3), "count": 0,
                    }  # fmt: skip


def test_a_class_of_somebody_else() -> None:
    model = nn.Conv2d(4, 10, 3)
    optimizer = Third(model.parameters(), 0.3, fixed=17)
    rows = 4 * (10 + 4 + 3 + 3) + 4 * 10
    assert state_bytes(optimizer, model) == rows + 8 * (360 + 10) + 2 * 4 * 17 * 3
    with pytest.raises(UsageError, match="Third.*strength"):
        state_bytes(Third, model)


class Unsteady(torch.optim.SGD):
    """State whose size is a sum of sizes."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            self.state[p]["x"] = torch.zeros(sum(p.shape))


def test_state_of_an_unforeseen_size_is_refused() -> None:
    with pytest.raises(UsageError, match="Unsteady.*first step"):
        state_bytes(Unsteady, nn.Linear(4, 9))


def test_what_a_budget_leaves_out() -> None:
    model = nn.Linear(1024, 512)
    assert counted(model, None, None)[1] == "optimizer state (AdamW would add 4.0 MiB)"
    assert counted(model, "adamw", None) == (state_bytes("adamw", model), "")
    held = 'the optimizer\'s state (4.0 MiB), which offload="optimizer" holds on the host'
    assert counted(model, "adamw", 0) == (0, held)
    assert counted(model, "sgd", 0) == counted(model, "unknown here", 0) == counted(model, None, 0) == (0, "")
    model.requires_grad_(False)
    assert counted(nn.ReLU(), None, None) == counted(model, None, None) == (0, "")


@pytest.mark.parametrize("given", ["adamw", torch.optim.AdamW, "instance"])
def test_a_trace_counts_it_before_the_first_step(given: Any) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.rand(4, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    bare = rekindle.trace(model, x).graph.resident_bytes
    with_state = rekindle.trace(model, x, optimizer=optimizer if given == "instance" else given).graph.resident_bytes
    assert with_state - bare == stepped(optimizer)
