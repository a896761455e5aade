"""A plan that went through a file runs on the model as the plan itself would, with all that it was made with."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rekindle
from marks import every, sweep
from two_results import TwoResults


class Custom(torch.optim.AdamW):
    pass


def with_momentum() -> torch.optim.Optimizer:
    return torch.optim.SGD(TwoResults().parameters(), momentum=0.9)


def saved(path: Path, **how: Any) -> tuple[nn.Module, nn.Module, torch.Tensor, Any]:
    """(plain model, one with the plan read from the file, input, the plan that was saved)."""
    plain, x = TwoResults(), torch.randn(4, 8)
    made = rekindle.plan(
        rekindle.trace(plain, x, target="cpu", **how), minimize="memory", solver="storages", progress=False
    )
    made.save(path)
    planned = rekindle.apply(copy.deepcopy(plain), rekindle.load(path))
    return plain, planned, x, made


def equal(plain: nn.Module, planned: nn.Module, x: torch.Tensor) -> bool:
    results = []
    for m in (plain, planned):
        m.zero_grad()
        one, y = m(x)
        (one + y.square().sum()).backward()
        results.append([one.detach(), y.detach(), *(p.grad.clone() for p in m.parameters() if p.grad is not None)])
    return all(map(torch.equal, *results))


@pytest.mark.parametrize(
    "how",
    every(
        3,
        [
            {"loss": "all"},
            {"loss": "all", "must_save": ["a"]},
            {"loss": "all", "optimizer": Custom},
            {"loss": "all", "optimizer": with_momentum},
            {"loss": "all", "optimizer": "adamw"},
        ],
    ),
    ids=["loss", "must_save", "a class", "options", "a name"],
)
def test_what_the_step_was_captured_with(tmp_path: Path, how: dict[str, Any]) -> None:
    if how.get("optimizer") is with_momentum:
        how = how | {"optimizer": with_momentum()}
    path = tmp_path / "plan.json"
    plain, planned, x, made = saved(path, **how)
    for batch in (x, torch.randn(6, 8)):
        assert equal(plain, planned, batch)
    first, other = (b.trace for b in sorted(planned.forward.bounds, key=lambda b: b.turn))
    assert first.graph.hash == made.graph_hash
    assert first.state_bytes == other.state_bytes == made.trace.state_bytes
    assert bool(first.state_bytes) == ("optimizer" in how)
    for k in ("loss", "target", "must_save", "unused"):
        assert getattr(first.options, k) == getattr(made.trace.options, k)
    rekindle.load(path).save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(path.read_text())


@pytest.mark.parametrize(("field", "name"), [("optimizer", "myopt"), ("target", "myphone")])
def test_a_name_that_is_not_known_here_is_left_out_with_a_word(tmp_path: Path, field: str, name: str) -> None:
    path = tmp_path / "plan.json"
    plain, _, x, _ = saved(path, loss="all", optimizer="adamw")
    doc = json.loads(path.read_text())
    doc["options"][field] = name
    doc["options"].pop("state_bytes")
    path.write_text(json.dumps(doc))
    with pytest.warns(rekindle.RekindleWarning, match=f"{name}.*not known here"):
        planned = rekindle.apply(copy.deepcopy(plain), rekindle.load(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert equal(plain, planned, x)
        assert equal(plain, planned, torch.randn(6, 8))


def test_plans_of_a_frontier_keep_their_options() -> None:
    front = rekindle.frontier(
        rekindle.trace(TwoResults(), torch.randn(4, 8), target="cpu"),
        solver="storages",
        time_limit=2,
        seed=7,
        progress=False,
    )
    assert front
    for p in front:
        assert (p.options.time_limit, p.options.seed, p.options.goal) == (2, 7, p.goal)
        carried = {"effort": "normal", "time_limit": 2, "seed": 7, "optimizer": None, "target": "cpu"}
        assert p.to_json()["options"] == carried


class Wrapper:
    """Of an optimizer."""

    def __init__(self, **held: Any) -> None:
        self.__dict__ |= held


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.AdamW(TwoResults().parameters())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: "adamz", "did you mean 'adam'"),
        (lambda: Wrapper(inner=optimizer(), state={}, param_groups=[]), "the one inside"),
        (lambda: 3, "is no optimizer"),
        (lambda: nn.Linear, "is no optimizer"),
    ],
)
def test_what_is_no_optimizer_is_refused_before_forward_runs(given: Callable[[], Any], said: str) -> None:
    calls: list[int] = []

    class Counted(TwoResults):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            calls.append(1)
            return super().forward(x)

    for use in (rekindle.checkpoint, rekindle.trace):
        goal = {"minimize": "memory"} if use is rekindle.checkpoint else {}
        with pytest.raises(rekindle.UsageError, match=said):
            use(Counted(), torch.randn(4, 8), optimizer=given(), **goal)
    assert not calls


def test_the_optimizer_in_a_wrapper_counts() -> None:
    inner = optimizer()
    x = torch.randn(4, 8)
    one, two = (rekindle.trace(TwoResults(), x, target="cpu", optimizer=o) for o in (inner, Wrapper(optimizer=inner)))
    assert one.graph.resident_bytes == two.graph.resident_bytes > 0


class SetsAState(nn.Module):
    """Its first call makes a state that later calls read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.b(torch.tanh(self.a(x)))
        out = h if self.state is None else h + 0.1 * self.state
        self.state = h.detach()
        return out


class HooksItself(SetsAState):
    """Its first call puts hooks on a submodule, which act in that call too: it cannot be captured."""

    def forward(self, x: Tensor) -> Tensor:
        if self.state is None:
            self.b.register_forward_hook(lambda m, a, out: out * 2)
            self.state = torch.zeros(())
        return self.b(torch.tanh(self.a(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [SetsAState, HooksItself])
@pytest.mark.parametrize("on_new_shape", every(2, ["plan", "error"]))
def test_a_plan_for_the_calls_after_the_first_waits_for_those(
    tmp_path: Path, on_new_shape: str, kind: type[SetsAState]
) -> None:
    torch.manual_seed(0)
    model, x = kind(), torch.randn(16, 8)
    planned, eager = copy.deepcopy(model), copy.deepcopy(model)
    rekindle.checkpoint(model, x, minimize="memory", solver="storages", time_limit=2)
    model.forward.plan.save(tmp_path / "plan.json")  # type: ignore[union-attr]
    rekindle.apply(planned, rekindle.load(tmp_path / "plan.json"), on_new_shape=on_new_shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(3):
            for m in (eager, planned):
                m.zero_grad()
                m((i + 1) * x).square().sum().backward()
            assert all(
                torch.equal(p.grad, q.grad) for p, q in zip(planned.parameters(), eager.parameters(), strict=True)
            )
            assert (planned.forward.last is None) == (i == 0)  # type: ignore[union-attr]
    assert len(list(planned.forward.bounds)) == 1  # type: ignore[union-attr]


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16))


def test_a_plan_for_rows_of_a_table_is_bound_to_such_rows_of_another(tmp_path: Path) -> None:
    """The graph says how many bytes an input uses, and not how large the storage is in which it lies."""
    model, other = small(), small()
    rekindle.checkpoint(model, torch.rand(32, 16)[4:12], minimize="memory", progress=False)
    model.forward.plan.save(tmp_path / "plan.json")
    rekindle.apply(other, rekindle.load(tmp_path / "plan.json"), on_new_shape="error")
    other(torch.rand(8, 16)).sum().backward()
    assert other.forward.last is not None


class Ends(nn.Module):
    """Its head is given the last rows of a larger tensor, and forward around it cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = small(), small()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.head(self.body(x)[:, -3:]).square().mean()
        return loss * (2.0 if loss.item() > 1e9 else 1.0)


@sweep
def test_a_part_that_is_given_a_view_is_bound_from_a_file(tmp_path: Path) -> None:
    model, other = Ends(), Ends()
    x = torch.rand(8, 22, 16)
    rekindle.checkpoint(model, x, parts=["body", "head"], minimize="memory", progress=False)
    model.forward.plan.save(tmp_path / "plan.json")
    rekindle.apply(other, rekindle.load(tmp_path / "plan.json"), on_new_shape="error")
    other(x).backward()
    assert other.head.forward.last is not None
