"""Several threads call a planned module while one of them meets new shapes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from rekindle.torch.capture import module_call as calls
from rekindle.torch.capture.lock import Lock


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh()).sin()


def planned() -> tuple[Any, torch.Tensor]:
    x = torch.randn(32, 16)
    return rekindle.checkpoint(Net(), x, minimize="memory", solver="storages"), x


def meanwhile(work: Callable[[], Any], main: Callable[[], Any]) -> list[BaseException]:
    """Errors of two threads that work again and again until `main` is done."""
    done, failed = threading.Event(), []

    def loop() -> None:
        while not done.is_set():
            try:
                work()
            except BaseException as e:
                failed.append(e)

    threads = [threading.Thread(target=loop) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        main()
    finally:
        done.set()
        for t in threads:
            t.join()
    return failed


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("off", [False, True])
def test_other_threads_wait_while_one_plans(gradients: bool, off: bool) -> None:
    model, x = planned()
    if off:  # as plain as under no_grad, with gradients on
        model.eval()
    expected = model(x).detach()

    def work() -> None:
        with torch.set_grad_enabled(gradients):
            assert torch.equal(model(x).detach(), expected)

    trained, _ = planned()

    def main() -> None:
        for size in range(10, 13):
            trained(torch.randn(size, 16)).sum().backward()
            if not off:
                model(torch.randn(size, 16)).sum().backward()

    assert meanwhile(work, main) == []


def test_a_plan_that_was_let_go_finds_its_weights_again() -> None:
    model, x = planned()
    call = calls.bind(model.forward.plain, (x,), {})
    model(x)
    bound = model.forward.last
    assert bound.serves(model, call)
    bound.let_go()
    assert torch.equal(bound(model, call), rekindle.restore(model)(x))


def test_a_call_inside_of_a_call_does_not_wait_for_itself() -> None:
    lock = Lock()
    with lock.calls, lock.calls, lock:
        assert lock.mine
        with lock.calls, lock:
            assert lock.mine
    assert not lock.mine
    assert not lock._inside
    with pytest.raises(KeyError), lock.calls, lock:
        raise KeyError
    with lock:
        assert not lock._inside


def test_one_thread_waits_until_the_other_has_left_its_call() -> None:
    lock, order = Lock(), []
    inside, go_on = threading.Event(), threading.Event()

    def calls_a_module() -> None:
        with lock.calls:
            inside.set()
            go_on.wait(10)
            order.append("called")
        with lock.calls:
            order.append("called again")

    other = threading.Thread(target=calls_a_module)
    other.start()
    assert inside.wait(10)
    threading.Timer(0.05, go_on.set).start()
    with lock:
        order.append("captured")
    other.join()
    assert order == ["called", "captured", "called again"]
