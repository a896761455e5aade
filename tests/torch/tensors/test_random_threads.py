"""Another thread may use the random generators while a call is captured: a loader that prefetches batches, say."""

from __future__ import annotations

import contextlib
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from random import choice, randint
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rekindle
from marks import every
from rekindle.torch.tensors.rng import numpys, pythons


def every_generator() -> None:
    random.random(), random.gauss(0, 1), randint(0, 9), choice([1, 2]), random.getstate()
    np.random.rand(3), np.random.randn(), np.random.shuffle(np.arange(4))
    torch.rand(2), torch.get_rng_state()


@contextlib.contextmanager
def in_a_thread(draw: Callable[[], Any]) -> Iterator[list[Exception]]:
    stop, failed = threading.Event(), []

    def loop() -> None:
        while not stop.wait(1e-4):
            try:
                draw()
            except Exception as e:
                failed.append(e)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield failed
    finally:
        stop.set()
        thread.join()


class Net(nn.Module):
    def __init__(self, draw: Callable[[], Any] = lambda: 0.5):
        super().__init__()
        self.a, self.b, self.draw = nn.Linear(16, 32), nn.Linear(32, 16), draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).tanh() * float(self.draw()))


def test_a_thread_that_draws_neither_fails_nor_keeps_a_new_shape_from_its_plan() -> None:
    model = rekindle.checkpoint(Net(), torch.rand(32, 16), minimize="memory", solver="storages", time_limit=2)
    with in_a_thread(every_generator) as failed, warnings.catch_warnings():
        warnings.simplefilter("error", rekindle.RekindleWarning)
        for size in (10, 11, 12):
            model(torch.rand(size, 16)).sum().backward()
    assert failed == []
    assert len(list(model.forward.bounds)) == 4


@pytest.mark.parametrize(
    "draw",
    every(4, [
        random.random, lambda: random.gauss(0, 1), lambda: choice([1, 2]), lambda: random.seed(0) or 1,
        np.random.rand, lambda: np.random.randn(), lambda: np.random.seed(0) or 1,
        # Another seed than the present one, which other tests may have set: beside a thread that draws, the seed alone tells.
        lambda: torch.default_generator.manual_seed(torch.initial_seed() + 1) and 1,
    ]),
)  # fmt: skip
def test_what_forward_draws_is_refused_all_the_same(draw: Callable[[], Any]) -> None:
    with in_a_thread(every_generator), pytest.raises(rekindle.TraceError, match="random generator"):
        rekindle.trace(Net(draw), torch.rand(32, 16))


def test_a_thread_goes_on_in_its_own_sequence() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = [random.random() for _ in range(4)], np.random.rand(4).tolist()
    random.seed(1)
    np.random.seed(1)
    drawn: tuple[list[float], list[float]] = ([], [])

    def draw() -> None:
        drawn[0].append(random.random())
        drawn[1].append(float(np.random.rand()))

    def in_another() -> None:
        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()

    draw()
    with pythons() as python_used, numpys() as numpy_used:
        in_another()
        in_another()
        assert not python_used()
        assert not numpy_used()
    draw()
    assert drawn == expected


def test_another_kind_of_generator_may_be_numpys() -> None:
    before, state = np.random.get_bit_generator(), np.random.get_state()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        was = str(np.random.get_state(legacy=False))
        rekindle.trace(Net(), torch.rand(32, 16))
        assert str(np.random.get_state(legacy=False)) == was
        with pytest.raises(rekindle.TraceError, match="NumPy's random generator"):
            rekindle.trace(Net(np.random.rand), torch.rand(32, 16))
    finally:
        np.random.set_bit_generator(before)
        np.random.set_state(state)
