"""A process that plans, trains and restores again and again holds no more objects and bytes than after the first few times."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import itertools
import linecache
import logging
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

import rekindle
from marks import sweep
from rekindle.torch.serve import bound_plans

WARM_UP, FEW, MANY_CYCLES, MANY_STEPS = 6, 5, 100, 400
SIZES = 7
GOAL: dict[str, Any] = {"minimize": "memory", "solver": "feng", "progress": False}


class Net(nn.Module):
    """Dropout, a buffer that is written, and a hook: all that a plan looks after."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.drop, self.norm = nn.Linear(8, 32), nn.Dropout(0.1), nn.BatchNorm1d(32)
        self.down = nn.Linear(32, 8)
        self.down.register_forward_hook(lambda module, given, made: made * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.down(self.norm(self.drop(self.up(x).relu())).tanh())).square().mean()


@contextlib.contextmanager
def nothing_kept_by_pytest() -> Iterator[None]:
    """Pytest keeps what is logged and warned until a test is over: inside, it gets neither. Objects that are there already are
    left out of collections and counts."""
    every = [
        logging.getLogger(),
        *(x for x in logging.root.manager.loggerDict.values() if isinstance(x, logging.Logger)),
    ]
    handlers = [x.handlers for x in every]
    for x in every:
        x.handlers = []
    gc.collect()
    gc.freeze()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gc.unfreeze()
        for x, own in zip(every, handlers, strict=True):
            x.handlers = own


def held() -> dict[str, int]:
    """What this process holds, in numbers that would grow if something were not let go."""
    gc.collect()
    objects = gc.get_objects()
    tensors = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in objects if _has_bytes(t)}
    found = {
        "objects": len(objects), "tensors": sum(map(_has_bytes, objects)), "bytes of tensors": sum(tensors.values()),
        "source texts": len(linecache.cache), "graphs' texts": len(torch.fx.graph_module._loader.eval_cache),
        "context variables": len(contextvars.copy_context()),
        "hooks": sum(len(v) for k, v in vars(torch_module).items() if k.startswith("_global") and isinstance(v, dict)),
    }  # fmt: skip
    return found | _containers()


def _has_bytes(x: Any) -> bool:
    return type(x) in (torch.Tensor, nn.Parameter) and x.layout is torch.strided and x.device.type == "cpu"


def _containers() -> dict[str, int]:
    """Lengths of the containers that stand in the modules of this package."""
    kinds = (dict, list, set, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
    return {
        f"{name}.{k}": len(v)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "rekindle"
        for k, v in list(vars(module).items())
        if isinstance(v, kinds) and not k.startswith("__")
    }


def growth(act: Callable[[], None], few: int, many: int) -> dict[str, int]:
    """How much more is held after `many` further times than after `few`. The count itself makes a few objects; something that
    is not let go leaves at least one each time."""
    held()  # fills caches of its own
    for _ in range(few):
        act()
    held()
    before = held()
    for _ in range(many):
        act()
    grown = {k: n - before.get(k, 0) for k, n in held().items()}
    return {k: n for k, n in grown.items() if n >= (many if k == "objects" else 1)}


def cycles() -> Callable[[], None]:
    model, x = Net(), torch.randn(16, 8)

    def cycle() -> None:
        rekindle.checkpoint(model, x, **GOAL)
        model(x).backward()
        rekindle.restore(model)
        model.zero_grad(set_to_none=True)

    return cycle


def new_lengths() -> Callable[[], None]:
    """One new batch size each, of which two plans are kept, under autocast."""
    model, sizes = Net(), itertools.cycle(range(3, 3 + SIZES))
    rekindle.checkpoint(model, torch.randn(16, 8), **GOAL)

    def another() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(next(sizes), 8))
        loss.backward()
        model.zero_grad(set_to_none=True)

    return another


def steps() -> Callable[[], None]:
    model, x = Net(), torch.randn(16, 8)
    rekindle.checkpoint(model, x, **GOAL)

    def step() -> None:
        model(x).backward()
        model.zero_grad(set_to_none=True)

    return step


def check(what: Callable[[], Callable[[], None]], many: int, warm_up: int = WARM_UP) -> None:
    with nothing_kept_by_pytest():
        grown = growth(what(), warm_up, many)
    assert grown == {}


def test_planning_again_and_again_holds_no_more() -> None:
    check(cycles, FEW)


@sweep
def test_new_lengths_hold_no_more_than_the_plans_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound_plans, "SETTINGS", bound_plans.BoundPlansSettings(plans_least=2, plans_most=2))
    check(new_lengths, 2 * SIZES, 3 * SIZES)


def test_steps_hold_no_more() -> None:
    check(steps, MANY_STEPS)


@sweep
def test_steps_allocate_no_blocks_that_stay() -> None:
    """Blocks of memory are those of strings and numbers too. Caches of Python and torch settle over hundreds of steps."""
    with nothing_kept_by_pytest():
        step, found = steps(), []
        for _ in range(3):
            gc.collect()
            found.append(sys.getallocatedblocks())
            for _ in range(MANY_STEPS):
                step()
    assert found[2] - found[1] < MANY_STEPS


@pytest.mark.sweep
def test_planning_a_hundred_times_holds_no_more() -> None:
    check(cycles, MANY_CYCLES)
