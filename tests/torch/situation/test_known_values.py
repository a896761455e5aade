"""Which values of fake tensors are known while a model is captured."""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import rekindle
from branching import Linear, ops
from marks import every, sweep
from rekindle.errors import TraceError
from rekindle.torch.capture import known_values
from rekindle.torch.capture.known_values import KnownValues
from rekindle.torch.situation.recorded_ops import Result, result_of
from steps_compared import assert_same_steps, planned_and_eager, plans


def asks(how: str, h: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    seen = torch.zeros(4, dtype=torch.int64)
    if how == "number":
        return h.mean() * int(ids.sum())
    if how == "written":
        seen.view(2, 2).add_(h.detach().long().view(-1)[:4].view(2, 2))
    if how == "shared":
        torch.empty(0, dtype=seen.dtype).set_(seen).add_(ids)
    if how == "copied":
        copy.copy(seen).add_(ids)
    if how == "exchanged":
        torch.utils.swap_tensors(seen, torch.ones_like(ids))
    if how == "random":
        seen = torch.randint(0, 9, (4,))
    if how == "unknown op":
        seen = torch.ops.rekindle_tests.drawn(4)
    if how == "float":
        seen = h > 0
    return h.mean() if bool((seen == 0).all()) else h.sum()


@torch.library.custom_op("rekindle_tests::drawn", mutates_args=())
def drawn(n: int) -> Tensor:
    return torch.randint(0, 9, (n,))  # and does not say that it is random


@drawn.register_fake
def _(n: int) -> Tensor:
    return torch.empty(n, dtype=torch.int64)


@pytest.mark.parametrize("how", ["number", "written", "shared", "copied", "exchanged", "random", "unknown op", "float"])
def test_what_may_differ_in_every_call_is_not_known(how: str) -> None:
    with pytest.raises(TraceError):
        rekindle.trace(Linear(functools.partial(asks, how)), (torch.randn(4, 4), torch.arange(4)))


@pytest.mark.parametrize("how", ["written", "shared", "random", "unknown op", "float"])
def test_what_was_written_to_is_not_known_of_fake_tensors(how: str) -> None:
    with FakeTensorMode(), KnownValues((), None):
        x, ids = torch.randn(4, 4), torch.arange(4)
        with pytest.raises(DataDependentOutputException):
            asks(how, x, x, ids)


def test_what_is_only_read_stays_known() -> None:
    with FakeTensorMode(), KnownValues((), None):
        mask, x = torch.ones(4, dtype=torch.bool), torch.randn(4)
        x.masked_fill_(mask, 1.0)
        x.copy_(mask)
        torch.logical_or(mask, mask, out=torch.empty(4, dtype=torch.bool))
        assert bool(mask.all())


def test_another_memory_at_the_same_address_is_not_known() -> None:
    with FakeTensorMode(), KnownValues((), None):
        mask = torch.ones(4, dtype=torch.bool)
        mask.data = torch.zeros(4, dtype=torch.bool)
        later = [torch.zeros(4, dtype=torch.bool) for _ in range(64)]
        for other in later:
            mask.data = other
            with pytest.raises(DataDependentOutputException):
                bool(mask.all())


def test_values_of_fake_tensors_are_known_while_they_live_and_no_longer() -> None:
    with FakeTensorMode(), KnownValues((), None):
        seen = torch.arange(4)
        assert bool((seen == torch.arange(4)).all())
        gone = weakref.ref(seen)
        del seen
        gc.collect()
        assert gone() is None


def in_place_by_parts(x: Tensor, ids: Tensor) -> Tensor:
    made = torch.ones(3, 4)
    made[0] = 0
    left, right = made.split(2, dim=1)
    left.mul_(0)
    right[1:] = torch.arange(2) * 0
    return made


MADE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "zeros": lambda x, ids: torch.zeros(4, dtype=torch.int64),
    "like": lambda x, ids: torch.zeros_like(x, dtype=torch.int64),
    "new": lambda x, ids: x.new_zeros(3, dtype=torch.bool),
    "large view": lambda x, ids: (ids[:, None, None].expand(4, 2**15, 2**15), ids < 0)[1],
    "after a write": lambda x, ids: (torch.zeros(3).fill_(2), ids < 0)[1],
    "float": lambda x, ids: torch.full((3, 3), 0.5).triu() - torch.ones(3).mul(0.5).expand(3, 3).triu(),
    "floats of integers": lambda x, ids: (1.0 - (ids >= 0).float()) * torch.finfo(torch.float32).min,
    "a float input": lambda x, ids: x.isnan().float(),
    "filled": lambda x, ids: torch.empty(3).fill_(1.5) - 1.5,
    "given numbers": lambda x, ids: torch.tensor([0.1, 0.2]) - torch.tensor([0.1, 0.2]),
    "by parts": in_place_by_parts,
    "of inputs, by parts": lambda x, ids: (
        torch.zeros_like(ids).index_fill_(0, ids[:1], 5).sub_(5 * (ids == ids[0]).long())
    ),
    "all but random": lambda x, ids: torch.zeros(2) * (torch.rand(2) < 0.0),
    "long": lambda x, ids: functools.reduce(lambda a, _: a * 2, range(500), ids * 0),
}


@pytest.mark.parametrize("how", every(4, MADE))
def test_what_is_known(how: str) -> None:
    def mean_or_sum(h: Tensor, x: Tensor, ids: Tensor) -> Tensor:
        return h.mean() if bool((MADE[how](x, ids) == 0).all()) else h.sum()

    model, sample = Linear(mean_or_sum), (torch.randn(4, 4), torch.arange(4))
    trace = rekindle.trace(model, sample)
    assert ops(trace.graph, "mean") == 1
    assert rekindle.verify(model, sample, rekindle.plan(trace, minimize="memory", solver="storages")).ok


def written_view(h: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    seen = torch.zeros(4)
    seen[1:].copy_(h.detach()[0, 1:])  # of values that are not known
    seen[:1].fill_(0)  # and then of known ones, through another view
    return h.mean() if bool((seen == 0).all()) else h.sum()


def input_written(h: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    ids.mul_(0)
    return h.mean() if bool((ids == 0).all()) else h.sum()


@pytest.mark.parametrize("then", [written_view, input_written])
def test_what_unknown_values_were_written_to_stays_unknown(then: Callable[..., Tensor]) -> None:
    with pytest.raises(TraceError):
        rekindle.trace(Linear(then), (torch.randn(4, 4), torch.arange(4)))


def test_a_question_with_too_much_to_compute_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def asks_of_many(h: Tensor, x: Tensor, ids: Tensor) -> Tensor:
        return h.mean() if bool((torch.zeros(2000) == 0).all()) else h.sum()

    model, sample = Linear(asks_of_many), (torch.randn(4, 4), torch.arange(4))
    rekindle.trace(model, sample)
    monkeypatch.setattr(known_values, "ELEMENTS_MOST", 1000)
    with pytest.raises(TraceError):
        rekindle.trace(model, sample)


def test_results_are_freed_when_no_further_op_reads_them() -> None:
    alive: list[weakref.ref[Tensor]] = []

    def added(x: Tensor) -> Tensor:
        made = x + 1
        alive.append(weakref.ref(made))
        assert sum(r() is not None for r in alive) <= 2
        return made

    result_of([(torch.zeros, ((10,), {})), *[(added, ((Result(i, 0),), {})) for i in range(9)]], ())
    assert len(alive) == 9


class Scaled(nn.Module):
    """Asks a mask whose values depend on a number that changes from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), 0.3

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x) * self.scale
        return h.sum() if bool((torch.arange(1, 4) * self.scale > 1).any()) else 2 * h.sum()


@sweep
def test_values_that_depend_on_a_changing_number_are_not_constants() -> None:
    torch.manual_seed(0)
    planned, eager = planned_and_eager(Scaled(), torch.randn(3, 4))
    for i, scale in enumerate((0.3, 0.31, 0.32, 0.9, 0.33, 0.95)):
        planned.scale = eager.scale = scale  # type: ignore[assignment]
        assert_same_steps(planned, eager, lambda _, i=i: torch.full((3, 4), i + 1.0), count=1)


class AsksItsBuffer(nn.Module):
    """Begins in another way while a buffer says that it is new, as modules that set themselves up from data do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), nn.Buffer(torch.ones(4))
        self.is_new = nn.Buffer(torch.tensor(True))

    def forward(self, x: Tensor) -> Tensor:
        if self.is_new:
            self.scale.copy_(1 / (x.detach().std(0) + 1))
            self.is_new.fill_(False)
        return self.linear(x * self.scale)


def test_a_branch_on_a_buffer_is_another_plan_once_the_buffer_says_otherwise() -> None:
    torch.manual_seed(0)
    planned, eager = planned_and_eager(AsksItsBuffer(), torch.randn(3, 4))
    assert_same_steps(planned, eager, lambda i: torch.full((3, 4), 1.0 + i) + torch.arange(4))
    assert not planned.is_new
    assert plans(planned) == 2


def test_a_branch_on_a_float_input_is_guarded() -> None:
    def scaled(h: Tensor, x: Tensor, ids: Tensor) -> Tensor:
        return (h / 255 if bool(x.max() > 1) else h).sum()

    torch.manual_seed(0)
    planned, eager = planned_and_eager(Linear(scaled), (torch.rand(3, 4), torch.arange(4)))
    small = torch.rand(3, 4)
    assert_same_steps(planned, eager, lambda i: (small * (255 if i % 2 else 1), torch.arange(4)), count=4)
    assert plans(planned) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
def test_a_question_is_asked_again_outside_of_autocast(dtype: torch.dtype | None) -> None:
    """1 + 2**-9 is more than 1 in single precision, and 1 in bfloat16; forward asks in single precision."""

    def asks_precisely(h: Tensor, x: Tensor, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            more = bool((x @ torch.ones(4, 1) > 1).all())
        return h.float().sum() if more else 2 * h.float().sum()

    torch.manual_seed(0)
    x = torch.tensor([[1 + 2**-9, 0, 0, 0]])
    cast = functools.partial(torch.autocast, "cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None)
    with cast():
        planned, eager = planned_and_eager(Linear(asks_precisely), (x, torch.arange(4)))
    for i in range(3):
        with cast():  # whose casts of weights are forgotten at its end
            assert_same_steps(planned, eager, lambda _, i=i: (x * (i + 1), torch.arange(4)), count=1)
    assert plans(planned) == 1
