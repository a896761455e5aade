"""Several threads call a planned module while one of them meets new shapes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import every
from rekindle import RekindleError, UsageError
from rekindle.torch.capture.compiling_flag import as_if_compiling
from rekindle.torch.capture.inner_results import hooks_noted
from rekindle.torch.situation import module_call as calls
from rekindle.torch.tensors import lock as locks
from rekindle.torch.tensors import rng
from rekindle.torch.tensors.lock import Lock


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


@pytest.mark.parametrize("gradients", every(2, [False, True]))
@pytest.mark.parametrize("off", every(2, [False, True]))
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
    lock, net = Lock(), Net()
    with lock.call(net), lock.call(net), lock.capturing(net):
        assert lock.mine
        with lock.call(net), lock.planning("plans"), lock.capturing(net):
            assert lock.mine
    assert not lock.mine
    assert not lock.plans
    assert not lock._inside
    with pytest.raises(KeyError), lock.call(net), lock.planning("plans", net):
        raise KeyError
    with lock.planning("plans"):
        assert not lock._inside


def test_one_thread_waits_until_the_other_has_left_its_call() -> None:
    lock, net, order = Lock(), Net(), []
    inside, go_on = threading.Event(), threading.Event()

    def calls_a_module() -> None:
        with lock.call(net):
            inside.set()
            go_on.wait(10)
            order.append("called")
        with lock.call(nn.Sequential(net.first)):  # another module, with a part of it
            order.append("called again")

    other = threading.Thread(target=calls_a_module)
    other.start()
    assert inside.wait(10)
    threading.Timer(0.05, go_on.set).start()
    with lock.capturing(net):
        order.append("captured")
    other.join()
    assert order == ["called", "captured", "called again"]


def test_steps_of_other_modules_go_on_while_one_is_planned() -> None:
    """They see none of the changes that capturing makes to torch."""
    (model, x), seen = planned(), SimpleQueue[Any]()  # capturing puts lists back as they were
    model(x).sum().backward()
    expected = model.second.weight.grad.clone()

    class Slow(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert torch.compiler.is_compiling()
            other = threading.Thread(target=step)
            other.start()
            other.join(20)
            assert not other.is_alive()
            return super().forward(x)

    def step() -> None:
        try:
            plans = len(list(model.forward.bounds))
            model.zero_grad()
            with torch.autocast("cpu", enabled=False):
                model(x).sum().backward()
            assert torch.equal(model.second.weight.grad, expected)
            assert len(list(model.forward.bounds)) == plans
            seen.put(bool(torch.compiler.is_compiling()))
        except BaseException as e:
            seen.put(e)

    net = Slow()
    with as_if_compiling(None):
        rekindle.trace(net, x, target="h100", progress=False)
    assert not seen.empty()
    while not seen.empty():
        assert seen.get() is False
    assert torch.compiler.is_compiling() is False


def test_threads_that_plan_take_turns_and_say_so(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(locks, "NAMED_AFTER_S", 0.01)
    began, failed, nets = threading.Event(), [], [Net() for _ in range(3)]

    class First(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            began.set()
            return super().forward(x)

    def plan(net: nn.Module) -> None:
        try:
            x = torch.randn(32, 16)
            rekindle.checkpoint(net, x, minimize="memory", solver="chen-sqrt", cache=False)
            net(x).sum().backward()
        except BaseException as e:
            failed.append(e)

    first = threading.Thread(target=plan, args=(First(),))
    first.start()
    assert began.wait(60)
    others = [threading.Thread(target=plan, args=(n,)) for n in nets]
    for t in others:
        t.start()
    for t in [first, *others]:
        t.join()
    assert not failed
    assert "rekindle: waiting for another thread that runs rekindle.checkpoint(First)" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["checkpoint", "trace", "estimate"])
def test_planning_inside_of_planning_is_refused_by_its_name(verb: str) -> None:
    """The outer plan and all that it changed are as they were: the next plan is made as if nothing had been."""

    class Outer(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if nests:
                getattr(rekindle, verb)(inner, x, **({"minimize": "memory"} if verb == "checkpoint" else {}))
            return super().forward(x)

    outer, inner, x, nests = Outer(), Net(), torch.randn(8, 16), True
    with pytest.raises(
        UsageError, match=rf"rekindle\.{verb} was called by code .* while this thread runs rekindle.trace"
    ):
        rekindle.trace(outer, x)
    with pytest.raises(UsageError, match=r"while this thread runs rekindle.checkpoint\(Outer\)"):
        rekindle.checkpoint(outer, x, minimize="memory")
    nests = False
    assert "forward" not in outer.__dict__
    assert "forward" not in inner.__dict__
    rekindle.checkpoint(outer, x, minimize="memory", solver="chen-sqrt", progress=False)
    assert rekindle.verify(outer, x).ok


def test_memory_is_measured_beside_a_profiler_of_another_thread() -> None:
    stop, runs = threading.Event(), threading.Event()

    def profiled() -> None:
        with torch.autograd.profiler.profile(profile_memory=True):
            runs.set()
            stop.wait(60)

    other = threading.Thread(target=profiled)
    other.start()
    try:
        assert runs.wait(10)
        model, x = Net(), torch.randn(32, 16)
        with pytest.warns(rekindle.RekindleWarning, match="measured by tensors alone"):
            rekindle.checkpoint(model, x, minimize="memory", solver="chen-sqrt", cache=False)
    finally:
        stop.set()
        other.join()
    assert rekindle.verify(model, x).peak_error < 0.02


def test_numbers_drawn_by_another_thread_are_no_difference() -> None:
    model, x = planned()

    def draw() -> None:
        torch.rand(100)

    checks: list[Any] = []
    assert meanwhile(draw, lambda: checks.append(rekindle.verify(model, x))) == []
    assert checks[0].ok, checks[0]


def test_an_op_that_cannot_draw_its_numbers_again_raises() -> None:
    wrong: list[int] = []

    def draws(size: int) -> None:
        kept: rng.Kept = {}
        first = rng.draw(kept, 0, "cpu", torch.rand, 1000)
        torch.rand(size)
        with contextlib.suppress(RekindleError):
            wrong.append(not torch.equal(first, rng.replay(kept, 0, "cpu", torch.rand, 1000)))

    assert meanwhile(lambda: torch.rand(1000), lambda: [draws(k) for k in range(300)]) == []
    assert len(wrong) > 200
    assert not any(wrong)
    kept: rng.Kept = {}
    rng.draw(kept, 0, "cpu", torch.rand, 4)
    with pytest.raises(RekindleError, match="another thread drew"):
        rng.replay(kept, 0, "cpu", torch.rand, 3)


def test_hooks_of_another_thread_are_not_noted_and_torchs_methods_are_as_before() -> None:
    found: list[Any] = []
    with hooks_noted(found, [], []):
        x = torch.rand(2, requires_grad=True)
        other = threading.Thread(target=x.register_hook, args=(print,))
        other.start()
        other.join()
        x.register_hook(len)
    assert found == [len]
    assert "retain_grad" not in vars(torch.Tensor)  # which inherits it
