"""What a module does beside computing is named when it is captured, and tracing itself leaves no trace of it."""

from __future__ import annotations

import collections
import copy
import functools
import logging
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import rekindle
from marks import every
from rekindle import RekindleWarning, Trace
from rekindle.torch.undo.restorable import PutBack
from rekindle.torch.undo.side_effects import SideEffects

HISTORY: list[Any] = []
COUNTS: collections.Counter[str] = collections.Counter()
RATE = 0.5
log = logging.getLogger(__name__)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.encoder(x)))


def traced(model: nn.Module) -> Trace:
    return rekindle.trace(model, torch.rand(4, 8))


def effects(model: nn.Module) -> list[str]:
    return traced(model).lowered.captured.effects


class Recorder:
    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self.last: Any = None
        self.count = 0
        self.queue: collections.deque[Any] = collections.deque(maxlen=3)

    def keep(self, module: nn.Module, args: Any, out: Tensor) -> None:
        self.seen["x"] = out

    def keep_last(self, module: nn.Module, args: Any, out: Tensor) -> None:
        self.last = out.detach()

    def __call__(self, module: nn.Module, args: Any, out: Tensor) -> None:
        self.count += 1

    def queued(self, module: nn.Module, args: Any, out: Tensor) -> None:
        self.queue.append(out.norm())


def kept_elsewhere(where: Any, module: nn.Module, args: Any, out: Tensor) -> None:
    where.append(out)


def in_a_global(module: nn.Module, args: Any, out: Tensor) -> None:
    HISTORY.append(out)
    COUNTS["calls"] += 1


def rebinds_a_global(module: nn.Module, args: Any, out: Tensor) -> None:
    global RATE
    RATE = RATE / 2


def through_a_helper(module: nn.Module, args: Any, out: Tensor) -> None:
    def inner() -> None:
        in_a_global(module, args, out)

    inner()


def prints(module: nn.Module, args: Any, out: Tensor) -> None:
    print(out.shape)


def logs(module: nn.Module, args: Any, out: Tensor) -> None:
    log.info("%s", out.shape)


def on_the_module(module: Any, args: Any, out: Tensor) -> None:
    module.calls = getattr(module, "calls", 0) + 1


def counter() -> tuple[Callable[..., None], Callable[[], int]]:
    count = 0

    def hook(module: nn.Module, args: Any, out: Tensor) -> None:
        nonlocal count
        count += 1

    return hook, lambda: count


R = Recorder()
WITH_EFFECTS = [R.keep, R.keep_last, R, R.queued, functools.partial(kept_elsewhere, []), in_a_global, rebinds_a_global,
                through_a_helper, prints, logs, counter()[0], on_the_module]  # fmt: skip


@pytest.mark.parametrize("hook", every(4, WITH_EFFECTS))
def test_a_hook_that_does_more_than_compute_is_named(hook: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = Net()
    model.encoder[0].register_forward_hook(hook)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="forward of")  # it is no attribute of forward's
        found = effects(model)
    assert len(found) == 1
    assert found[0].startswith("the forward hook ")
    assert found[0].endswith("of encoder.0")
    assert (R.seen, R.last, R.count, len(R.queue), HISTORY, COUNTS, RATE) == ({}, None, 0, 0, [], {}, 0.5)
    assert not hasattr(model.encoder[0], "calls")


def test_the_name_says_where_the_hook_is_written() -> None:
    model = Net()
    model.head.register_forward_pre_hook(lambda m, args: HISTORY.append(args))
    (name,) = effects(model)
    assert name.startswith("the forward pre-hook <lambda> (test_side_effects.py:")
    assert name.endswith(") of head")
    assert HISTORY == []


def test_backward_hooks_are_seen() -> None:
    model, norms = Net(), []
    model.encoder[2].register_full_backward_hook(lambda m, given, got: norms.append(got[0].norm()))
    assert (
        effects(model) == [e for e in effects(model) if "backward hook <lambda>" in e and e.endswith("encoder.2")] != []
    )
    assert norms == []


def test_a_backward_hook_on_its_own_module() -> None:
    model = Net()

    def keep(m: Any, given: Any, got: Any) -> None:
        m.last_gradient = got[0]

    model.encoder[2].register_full_backward_hook(keep)
    with pytest.raises(
        rekindle.TraceError, match=r"the backward hook keep .*sets or writes to encoder\.2\.last_gradient"
    ):
        effects(model)
    assert not hasattr(model.encoder[2], "last_gradient")


def test_a_forward_put_in_the_place_of_another() -> None:
    model, seen = Net(), []
    before = model.head.forward

    def patched(x: Tensor) -> Tensor:
        seen.append(x)
        return before(x)

    model.head.forward = patched  # type: ignore[method-assign]
    (name,) = effects(model)
    assert name.startswith("the forward patched (")
    assert seen == []


def test_a_hook_that_takes_itself_off_is_named() -> None:
    model = Net()
    handle = model.head.register_forward_hook(lambda m, args, out: handle.remove())
    assert len(effects(model)) == 1
    assert len(model.head._forward_hooks) == 1


def test_objects_that_cannot_be_read_are_left_alone() -> None:
    model, owner = Net(), Recorder()
    model.head.register_forward_hook(functools.partial(lambda o, m, args, out: out * 2, weakref.proxy(owner)))
    del owner
    assert effects(model) == []


def scaled(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return out * RATE + torch.log(out.abs() + 1) + out.exp().log()


def noised(module: nn.Module, args: Any) -> Any:
    return (args[0] + 0.1 * torch.rand_like(args[0]),)


def clipped(module: nn.Module, given: Any, got: Any) -> Any:
    return tuple(None if g is None else g.clamp(-0.01, 0.01) * 3 for g in given)


def set_tensor(module: Any, args: Any, out: Tensor) -> None:
    module.features = out.detach()


@pytest.mark.parametrize("solver", every(3, ["none", "chen-sqrt", "feng"]))
def test_hooks_that_only_compute_are_part_of_the_graph(solver: str) -> None:
    torch.manual_seed(0)
    plain = Net()
    plain.head.forward = functools.partial(lambda f, x: f(x * 2), plain.head.forward)  # type: ignore[method-assign]
    plain.encoder[0].register_forward_hook(scaled)
    plain.encoder[2].register_forward_pre_hook(noised)
    plain.encoder[2].register_full_backward_hook(clipped)
    plain.encoder[1].register_full_backward_pre_hook(lambda m, got: (got[0] * torch.rand_like(got[0]),))
    plain.encoder[2].register_forward_hook(set_tensor)
    parametrizations.spectral_norm(plain.encoder[0])
    nn.utils.spectral_norm(plain.encoder[2])
    planned = copy.deepcopy(plain)
    planned.head.forward = functools.partial(lambda f, x: f(x * 2), type(planned.head).forward.__get__(planned.head))  # type: ignore
    trace = traced(planned)
    assert trace.lowered.captured.effects == []
    assert trace.lowered.captured.dropped == []
    rekindle.apply(planned, rekindle.plan(trace, minimize="memory", solver=solver))
    results = []
    for m in (plain, planned):
        torch.manual_seed(1)
        x = torch.rand(4, 8, generator=torch.Generator().manual_seed(2))
        losses = []
        for _ in range(2):
            losses.append(m(x).square().sum() + m.encoder[2].features.sum())  # type: ignore[operator, union-attr]
            losses[-1].backward()
        results.append([*losses, *(p.grad for p in m.parameters()), *m.buffers(), torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


class Stats:
    def __init__(self) -> None:
        self.calls = 0


class Restless(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.history, self.stats = 0, [], Stats()
        self.last: Any = None
        self.queue: collections.deque[Any] = collections.deque(maxlen=4)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = super().forward(x)
        self.history.append(h)
        self.stats.calls += 1
        self.queue.append(h)
        self.last = h.detach()  # a planned step does that
        HISTORY.append(h)
        COUNTS["net"] += 1
        return h


def test_what_forward_changes_is_named_once() -> None:
    model = Restless()
    with pytest.warns(RekindleWarning) as found:
        trace = traced(model)
    (text,) = [str(w.message) for w in found]
    assert text == (
        "forward of Restless changes the attributes calls, history, queue, stats and the global COUNTS and the global "
        "HISTORY; planned steps do not"
    )
    assert found[0].filename == __file__
    assert trace.lowered.captured.effects == []
    assert trace.lowered.captured.dropped == [
        "calls",
        "history",
        "queue",
        "stats",
        "the global COUNTS",
        "the global HISTORY",
    ]
    assert (HISTORY, COUNTS) == ([], {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced(model)
    assert (model.calls, model.history, model.stats.calls, len(model.queue)) == (0, [], 0, 0)


def test_a_tensor_hook_that_keeps_gradients_is_named() -> None:
    class Keeps(Net):
        def __init__(self) -> None:
            super().__init__()
            self.gradients: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            h = self.encoder(x)
            h.register_hook(self.gradients.append)
            return self.head(h)

    model = Keeps()
    with pytest.warns(RekindleWarning, match="forward of Keeps changes the attribute gradients; planned"):
        traced(model)
    assert model.gradients == []


def test_nothing_is_said_where_nothing_is_dropped() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.LSTM(8, 8), nn.Identity())
        model[2].forward = functools.partial(lambda f, x: f(x)[0], model[2].forward)  # type: ignore[method-assign]
        captured = traced(model).lowered.captured
    assert (captured.effects, captured.dropped) == ([], [])


class PositionIndices(nn.Module):
    """Set at the first call, in another shape than the placeholder has."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(3, 8)
        self.indices = nn.Buffer(torch.zeros(1, 1, 1, 3), persistent=False) if buffer else torch.zeros(1, 1, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.indices.shape[1] != n:
            self.indices = torch.arange(n * n * 3, dtype=torch.float32).view(1, n, n, 3)
        return self.a(x) + self.b(self.indices).mean(2)


class State(nn.Module):
    def __init__(self, start: Tensor | None) -> None:
        super().__init__()
        self.a, self.state = nn.Linear(8, 8), start

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        h = h if self.state is None else h + self.state
        self.state = h.detach().mean(1, keepdim=True)
        return h


@pytest.mark.parametrize(
    ("model", "settles"),
    every(3, [
        (PositionIndices(True), True), (PositionIndices(False), True), (State(None), True),
        (State(torch.zeros(4, 1, 8)), False), (State(torch.zeros(1, 1, 8)), True), (Net(), False),
    ]),
)  # fmt: skip
def test_capture_tells_whether_the_next_call_is_another(model: nn.Module, settles: bool) -> None:
    x = torch.rand(4, 6, 8)
    assert rekindle.trace(model, x).lowered.captured.settles is settles
    model(x)
    assert not rekindle.trace(model, x).lowered.captured.settles


class Lazy:
    """A descriptor of the user's, which keeps its function as a property does."""

    def __init__(self, f: Any) -> None:
        self.fget = f

    def __get__(self, x: Any, kind: Any = None) -> Any:
        return self.fget(x)


class Large(bytearray):
    calls: int


LARGE, DEEP = Large(500_000), {"calls": {"n": [0]}}


class ReadsLazily(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    @Lazy
    def scale(self) -> float:
        DEEP["calls"]["n"].append(1)
        return 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        LARGE.calls += 1
        return self.inner(x) * self.scale  # type: ignore[operator]


def test_what_users_descriptors_and_large_buffers_reach_is_put_back() -> None:
    LARGE.calls = 0
    model = ReadsLazily()
    effects = SideEffects(model, {})
    effects.watch()
    model(torch.ones(1, 2))
    effects.put_back(back := PutBack())
    back.finish()
    assert (LARGE.calls, DEEP) == (0, {"calls": {"n": [0]}})
    assert {"the global LARGE", "the global DEEP"} <= {*effects.dropped}


def test_a_second_hook_like_one_that_was_accepted_is_called() -> None:
    """Both come from one line of code, and so have one name."""
    model, x, calls = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.rand(4, 8), [0, 0]

    def counting(k: int) -> Any:
        def hook(*_: Any) -> None:
            calls[k] += 1

        return hook

    model[0].register_forward_hook(counting(0))
    with pytest.warns(rekindle.RekindleWarning, match="planned steps do not run"):
        rekindle.checkpoint(model, x, minimize="memory")
    model(x).sum().backward()
    before = list(calls)
    model[0].register_forward_hook(counting(1))
    with pytest.warns(rekindle.RekindleWarning, match="run plain"):
        model(x).sum().backward()
    assert calls == [before[0] + 1, 1]
