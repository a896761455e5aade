"""Idioms of published models: attributes set past nn.Module, flags of arguments, several losses, masks; reasons of refusals."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rekindle
from marks import every
from rekindle import RekindleError, TraceError
from rekindle.torch.measure.first_difference import explained
from rekindle.torch.measure.measured_step import Outcome
from rekindle.torch.tensors.loss import losses

CAPTURE = Path(rekindle.__file__).parent / "torch" / "capture"
EASY: dict[str, Any] = {"budget": 0.6, "or_least": True, "progress": False}


def train(model: nn.Module, steps: int = 3) -> list[Tensor]:
    """Losses, gradients and `model.w` after each of some steps."""
    found = []
    for i in range(steps):
        torch.manual_seed(i)
        model.zero_grad()
        loss = model(torch.randn(16, 8)).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * p.grad if p.grad is not None else 0.0)
        found += [loss.detach(), model.w.detach().clone(), *(p.detach().clone() for p in model.parameters())]
    return found


class SetsPast(nn.Module):
    """forward sets the tensor `w` past nn.Module.__setattr__, as weight dropping does. kind : of `w` before, or "none"."""

    def __init__(self, how: str, kind: str):
        super().__init__()
        self.raw, self.layer, self.how = nn.Parameter(torch.randn(8, 8)), nn.Linear(8, 8), how
        if kind == "attribute":
            self.w = torch.zeros(8, 8)
        elif kind == "parameter":
            self.w = nn.Parameter(torch.zeros(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        w = F.dropout(self.raw, 0.5) if self.how == "random" else self.raw.tanh()
        if self.how == "object":
            object.__setattr__(self, "w", w)
        else:
            self.__dict__["w"] = w
        return self.layer(x) @ self.w


@pytest.mark.parametrize("kind", every(2, ["none", "attribute", "parameter"]))
@pytest.mark.parametrize("how", every(2, ["dict", "object", "random"]))
def test_attributes_set_past_the_module(how: str, kind: str) -> None:
    eager = SetsPast(how, kind)
    planned = rekindle.checkpoint(copy.deepcopy(eager), torch.randn(16, 8), **EASY)
    assert all(map(torch.equal, train(planned), train(eager)))


class Flags(nn.Module):
    """forward differentiates by its argument, as networks for physics do."""

    def __init__(self, flag: Callable[[Tensor], Tensor], second: bool):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.flag, self.second = flag, second

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        at = self.flag(batch["at"])
        u = self.net(at)
        return (torch.autograd.grad(u.sum(), at, create_graph=True)[0] if self.second else u).pow(2).mean()


def in_place(x: Tensor) -> Tensor:
    return x.requires_grad_()


def of_a_copy(x: Tensor) -> Tensor:
    return x.clone().requires_grad_()


@pytest.mark.parametrize("second", [False, True])
def test_an_argument_that_forward_lets_require_grad_is_named(second: bool) -> None:
    at = torch.rand(16, 2)
    with pytest.raises(TraceError, match=r"argument batch\['at'\] require grad at .*in_place.*x\.clone\(\)") as e:
        rekindle.checkpoint(Flags(in_place, second), ({"at": at},), strict=True, **EASY)
    assert e.value.line.startswith("test_idioms.py:")
    assert not at.requires_grad


@pytest.mark.parametrize("second", every(2, [False, True]))
@pytest.mark.parametrize("flag", [in_place, of_a_copy])
def test_the_remedies_work(flag: Callable[[Tensor], Tensor], second: bool) -> None:
    eager, at = Flags(flag, second), torch.rand(16, 2, requires_grad=flag is in_place)
    planned = rekindle.checkpoint(copy.deepcopy(eager), ({"at": at},), strict=True, **EASY)
    for model in (eager, planned):
        model({"at": at}).backward()
    for p, q in zip(eager.parameters(), planned.parameters(), strict=True):
        assert p.grad is q.grad or torch.equal(p.grad, q.grad)


def test_parts_around_such_a_line_are_planned() -> None:
    model = Flags(in_place, False)
    rekindle.checkpoint(model, ({"at": torch.rand(16, 2)},), **EASY)
    at = torch.rand(16, 2)
    model({"at": at}).backward()
    assert at.grad is not None


class Several(nn.Module):
    """Returns reconstruction, divergence and what else is asked for."""

    def __init__(self, more: bool = False):
        super().__init__()
        self.down, self.up, self.more = (
            nn.Linear(8, 8),
            nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)),
            more,
        )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mean, spread = self.down(x).chunk(2, 1)
        made = self.up(mean + torch.randn_like(mean) * spread.exp())
        return F.mse_loss(made, x), (mean**2 + spread.exp() - spread).mean(), *[made.sum(1)] * self.more


def test_several_losses() -> None:
    eager, x = Several(), torch.randn(16, 8)
    planned = rekindle.checkpoint(copy.deepcopy(eager), x, **EASY)
    for weights in ((1.0, 0.1), (1.0, 0.0), (0.0, 1.0)):
        for model in (eager, planned):
            torch.manual_seed(0)
            model.zero_grad()
            sum(w * t for w, t in zip(weights, model(x), strict=True) if w).backward()
        for p, q in zip(eager.parameters(), planned.parameters(), strict=True):
            assert p.grad is q.grad or torch.equal(p.grad, q.grad)


def test_a_gradient_of_another_result_names_the_call_that_planned() -> None:
    planned = rekindle.checkpoint(Several(True), torch.randn(16, 8), **EASY)
    with pytest.raises(RekindleError, match=r"output\[2\].*loss='all' to .*rekindle\.checkpoint"):
        planned(torch.randn(16, 8))[2].sum().backward()


def test_which_results_are_losses() -> None:
    scalar, large = torch.zeros((), requires_grad=True), torch.zeros(3, requires_grad=True)
    assert losses([scalar, large, scalar], ["output[0]", "output[1]", "output[2]"]) == [0, 2]
    assert losses([scalar, torch.zeros(())], ["output[0]", "output[1]"]) == [0]
    assert losses([large, scalar, scalar], ["output[0]", "output[1]", "output[2]"]) == []
    assert losses([scalar, scalar], ["output['kl']", "output['loss']"]) == [1]
    assert losses([scalar, scalar], ["output['kl']", "output['rec']"]) == []


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.layer = nn.Parameter(torch.randn(3)), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask, x = torch.rand(x.shape[:-1]) < 0.3, x.clone()
        x[mask] = self.token  # its backward selects
        return self.layer(x)


def test_a_selection_in_backward_is_refused_by_its_line_in_forward() -> None:
    line = next(
        i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "its backward selects" in text
    )
    with pytest.raises(TraceError, match=rf"test_idioms\.py:{line}, in its backward") as e:
        rekindle.trace(Masked(), torch.randn(4, 5, 3))
    assert e.value.line == f"test_idioms.py:{line}"


@pytest.mark.parametrize("path", sorted(CAPTURE.glob("*.py")), ids=lambda p: p.stem)
def test_every_refusal_of_a_capture_gives_its_reason(path: Path) -> None:
    """Else the line that says which parts run plain would not say why."""
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    made = [n for n in calls if ast.unparse(n.func) == "TraceError"]
    assert not [n.lineno for n in made if "reason" not in {k.arg for k in n.keywords}]


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.layer.weight.data.clamp_(-1, 1)
        return self.layer(x)


def test_the_reason_has_the_users_line() -> None:
    with pytest.raises(TraceError) as e:
        rekindle.trace(Writes(), torch.randn(4, 4))
    assert e.value.reason == "writes to the parameter layer.weight, which requires grad"
    assert e.value.line.startswith("test_idioms.py:")


def outcome(gradient: float | None, written: float = 0.0) -> Outcome:
    gradients = {"weight": None if gradient is None else torch.tensor(gradient)}
    return Outcome(torch.zeros(()), gradients, {"seen": torch.tensor(written)}, [], False, 0, 0.0)


@pytest.mark.parametrize(
    ("plain", "planned", "words"),
    [
        (outcome(1.0), outcome(2.0), "gradients are added up in another order"),
        (outcome(1.0), outcome(None), "only the plain step has a gradient of weight"),
        (outcome(None), outcome(1.0), "only the planned step has a gradient of weight"),
        (outcome(1.0), outcome(1.0, 1.0), "seen is not left as the plain step leaves it"),
    ],
)
def test_where_no_operator_differs_the_cause_is_the_one_that_is_seen(
    plain: Outcome, planned: Outcome, words: str
) -> None:
    told = explained("Net", lambda: plain, lambda: planned)
    assert words in told
    assert ("another order" in told) == ("another order" in words)
