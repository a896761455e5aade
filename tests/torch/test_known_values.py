"""Which values of fake tensors are known while a model is captured."""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import rekindle
from branching import Linear, ops
from rekindle.errors import TraceError
from rekindle.torch.capture.known_values import KnownValues


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


MADE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "zeros": lambda x, ids: torch.zeros(4, dtype=torch.int64),
    "like": lambda x, ids: torch.zeros_like(x, dtype=torch.int64),
    "new": lambda x, ids: x.new_zeros(3, dtype=torch.bool),
    "large view": lambda x, ids: (ids[:, None, None].expand(4, 2**15, 2**15), ids < 0)[1],
    "after a write": lambda x, ids: (torch.zeros(3).fill_(2), ids < 0)[1],
    "long": lambda x, ids: functools.reduce(lambda a, _: a * 2, range(500), ids * 0),
}


@pytest.mark.parametrize("how", MADE)
def test_what_is_known(how: str) -> None:
    def mean_or_sum(h: Tensor, x: Tensor, ids: Tensor) -> Tensor:
        return h.mean() if bool((MADE[how](x, ids) == 0).all()) else h.sum()

    model, sample = Linear(mean_or_sum), (torch.randn(4, 4), torch.arange(4))
    trace = rekindle.trace(model, sample)
    assert ops(trace.graph, "mean") == 1
    assert rekindle.verify(model, sample, rekindle.plan(trace, minimize="memory", solver="storages")).ok
