"""Engines that copy late, slowly, out of order, or not at all, and the training that they should not change."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from torch import nn

from rekindle.torch.offload import away
from rekindle.torch.offload.away import ThreadEngine


class Late:
    """The event of a copy that runs when somebody waits for it, and not before."""

    def __init__(self, run: Callable[[], None], after: Late | None = None):
        self._run: Callable[[], None] | None = run
        self._after = after

    def wait(self) -> None:
        if self._after is not None:
            self._after.wait()
        run, self._run = self._run, None
        if run is not None:
            run()

    synchronize = wait


def address(t: torch.Tensor) -> tuple[int, int]:
    """Where the bytes lie. The tensor is not kept: memory that is freed too early is written to by others."""
    return t.data_ptr(), t.nbytes


class LateEngine:
    """Copies at the last moment that the events allow."""

    def out(self, device: torch.Tensor, host: torch.Tensor) -> Late:
        (source, size), (to, _) = address(device), address(host)
        return Late(lambda: ctypes.memmove(to, source, size) and None)

    def back(self, host: torch.Tensor, device: torch.Tensor, after: Any) -> Late:
        (source, size), (to, _) = address(host), address(device)
        device.fill_(255)  # NaN in every floating-point type
        return Late(lambda: ctypes.memmove(to, source, size) and None, after)


class SlowEngine(ThreadEngine):
    """A thread that sleeps before some copies."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(0)

    def out(self, device: torch.Tensor, host: torch.Tensor) -> Any:
        self._thread.submit(time.sleep, self._random.choice([0, 0.01]))
        return super().out(device, host)


class ShuffledEngine(LateEngine):
    """Once somebody waits, the copies that nobody waits for run first, in any order that their events allow."""

    def __init__(self) -> None:
        self._random, self._asked = random.Random(0), list[Late]()

    def _noted(self, event: Late) -> Late:
        self._random.shuffle(self._asked)
        while len(self._asked) > 3:
            self._asked.pop().wait()
        self._asked.append(event)
        return event

    def out(self, device: torch.Tensor, host: torch.Tensor) -> Late:
        return self._noted(super().out(device, host))

    def back(self, host: torch.Tensor, device: torch.Tensor, after: Any) -> Late:
        return self._noted(super().back(host, device, after))


class FailingEngine(ThreadEngine):
    """Its third copy to the host fails."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 2

    def out(self, device: torch.Tensor, host: torch.Tensor) -> Any:
        self.left -= 1
        if self.left >= 0:
            return super().out(device, host)
        failed: Future[Any] = Future()
        failed.set_exception(OSError("the link is down"))
        return away.ThreadEvent(failed)


def train(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The losses of three steps by the mean square of the result, and the weights after them."""
    losses = []
    for _ in range(3):
        loss = m(x).square().mean()
        loss.backward()
        losses.append(loss.detach())
        with torch.no_grad():
            for p in m.parameters():
                p -= 0.1 * p.grad  # type: ignore[operator]
                p.grad = None
    return torch.stack([*losses, *(p.detach().square().sum() for p in m.parameters())])
