"""A plan runs exactly when it should: what changes on the module, or in how it is called, leads to another plan or to a plain
step with a word, never to old numbers."""

from __future__ import annotations

import copy
import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from rekindle import RekindleWarning

GAIN = 1.5
GAINS = [1.0]


class Config:
    def __init__(self) -> None:
        self.gain, self.steps, self.table = 1.0, 2, {"shift": 0.0}


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.linear, self.drop, self.config = nn.Linear(8, 8), nn.Dropout(0.2), config
        self.act: Callable[[torch.Tensor], torch.Tensor] = torch.tanh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(self.act(self.linear(x)))
        return x + h * self.config.gain * GAIN * GAINS[0] + self.config.table["shift"]


class Net(nn.Module):
    """What a model may carry beside tensors."""

    kind_scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.blocks = nn.ModuleList(Block(self.config) for _ in range(3))
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.scale, self.rates, self.unread = 1.0, [1.0, 1.0, 1.0], 0

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, weight: float = 1.0, flag: bool = False
    ) -> Any:
        for block, rate in zip(self.blocks, self.rates, strict=True):
            x = block(x) * rate
        x = self.norm(x) * self.scale * self.kind_scale
        x = x if mask is None else x * mask
        return self.head(-x if flag else x) * weight


def pair(**goal: Any) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """(plain, planned, input)."""
    torch.manual_seed(0)
    plain, x = Net(), torch.randn(16, 8)
    planned = copy.deepcopy(plain)
    rekindle.checkpoint(planned, x, **(goal or {"minimize": "memory"}), solver="storages")
    return plain, planned, x


def step(model: nn.Module, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """Loss, gradients, buffers and the random state after one step."""
    model.zero_grad()
    torch.manual_seed(7)
    loss = model(*args, **kwargs).square().sum()
    noise = torch.rand(3)  # a loss that draws
    (loss * noise.sum()).backward()
    grads = [p.grad.clone() if p.grad is not None else torch.zeros(()) for p in model.parameters()]
    return [loss.detach(), *grads, *(b.clone() for b in model.buffers()), torch.get_rng_state()]


def equal(plain: nn.Module, planned: nn.Module, *args: Any, **kwargs: Any) -> bool:
    return all(map(torch.equal, step(plain, *args, **kwargs), step(planned, *args, **kwargs)))


def plans(model: nn.Module) -> int:
    return len(list(model.forward.bounds))


@contextmanager
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextmanager
def global_set(name: str, value: Any) -> Iterator[None]:
    before = globals()[name]
    globals()[name] = value
    try:
        yield
    finally:
        globals()[name] = before


def set_dropout(m: Any) -> None:
    m.blocks[1].drop.p = 0.5


def set_scale(m: Any) -> None:
    m.scale = 0.7


def set_scale_to_int(m: Any) -> None:
    m.scale = 3


def set_a_rate(m: Any) -> None:
    m.rates[1] = 0.25


def set_rates(m: Any) -> None:
    m.rates = (0.5, 0.5, 0.5)


def set_config(m: Any) -> None:
    m.config.gain = 2.0


def set_config_table(m: Any) -> None:
    m.config.table["shift"] = 0.5


def exchange_config(m: Any) -> None:
    m.blocks[0].config = Config()
    m.blocks[0].config.gain = 3.0


def set_activation(m: Any) -> None:
    m.blocks[2].act = torch.sigmoid


def set_closure(m: Any) -> None:
    factor = 2.0

    def act(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    m.blocks[2].act = act


def set_partial(m: Any) -> None:
    m.blocks[2].act = functools.partial(torch.clamp, min=-0.1)


def patch_forward(m: Any) -> None:
    linear = m.blocks[1].linear
    linear.forward = lambda x: nn.functional.linear(x, linear.weight) * 2


def patch_method(m: Any) -> None:
    m.norm.forward = types.MethodType(lambda self, x: x * self.weight, m.norm)


def forward_hook(m: Any) -> None:
    m.blocks[0].linear.register_forward_hook(lambda mod, args, out: out * 2)


def pre_hook(m: Any) -> None:
    m.head.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))


def backward_hook(m: Any) -> None:
    m.blocks[1].linear.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 3,))


def own_hook(m: Any) -> None:
    m.register_forward_hook(lambda mod, args, out: out * 2)


def exchange_module(m: Any) -> None:
    m.blocks[1] = nn.Sequential(nn.Linear(8, 8, bias=False), nn.GELU())


def exchange_activation_module(m: Any) -> None:
    m.norm = nn.Identity()


def evaluate_part(m: Any) -> None:
    m.blocks[0].eval()


def freeze(m: Any) -> None:
    m.blocks[2].requires_grad_(False)


def tie(m: Any) -> None:
    m.blocks[1].linear.weight = m.blocks[0].linear.weight


CHANGES = [
    set_dropout, set_scale, set_scale_to_int, set_a_rate, set_rates, set_config, set_config_table, exchange_config,
    set_activation, set_closure, set_partial, patch_forward, patch_method, forward_hook, pre_hook, backward_hook, own_hook,
    exchange_module, exchange_activation_module, evaluate_part, freeze, tie,
]  # fmt: skip


@pytest.fixture(scope="module")
def made() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    return pair()


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_of_the_module_is_a_change_of_the_step(made: Any, change: Callable[[Any], None]) -> None:
    plain, planned, x = copy.deepcopy(made)
    torch.manual_seed(3)
    assert equal(plain, planned, x)
    for m in (plain, planned):
        torch.manual_seed(4)
        change(m)
    assert equal(plain, planned, x)
    assert equal(plain, planned, x)


def test_a_patched_class_is_a_change(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, planned, x = copy.deepcopy(made)
    assert equal(plain, planned, x)
    with monkeypatch.context() as m:
        m.setattr(nn.Dropout, "forward", lambda self, x: x * 0.5)
        assert equal(plain, planned, x)
        m.setattr(Net, "kind_scale", 4.0)
        assert equal(plain, planned, x)
    assert equal(plain, planned, x)
    with global_set("GAIN", 0.25):
        assert equal(plain, planned, x)
    GAINS[0] = 0.5
    try:
        assert equal(plain, planned, x)
    finally:
        GAINS[0] = 1.0
    assert equal(plain, planned, x)


def test_what_was_planned_once_is_not_planned_again(made: Any) -> None:
    _, planned, x = copy.deepcopy(made)
    step(planned, x)
    for rate in (0.5, 0.4, 0.2, 0.5, 0.4):
        planned.blocks[0].drop.p = rate
        step(planned, x)
    assert plans(planned) == 3
    with silent():
        planned.unread, planned.note = planned.unread + 1, "seen"
        step(planned, x)
    assert plans(planned) == 3


def test_a_change_takes_over_the_plan_of_the_same_graph(made: Any, capfd: pytest.CaptureFixture[str]) -> None:
    _, planned, x = copy.deepcopy(made)
    step(planned, x)
    set_dropout(planned)
    step(planned, x)
    said = capfd.readouterr().err
    assert "blocks.1.drop.p" in said
    assert "took over the plan" in said


def test_a_closure_that_changes() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.factor = nn.Linear(4, 4), None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.by(self.linear(x))

    def scaled(model: Any) -> Callable[[float], None]:
        factor = 1.0

        def by(x: torch.Tensor) -> torch.Tensor:
            return x.tanh() * factor

        def put(value: float) -> None:
            nonlocal factor
            factor = value

        model.by = by
        return put

    model, twin, x = Scaled(), Scaled(), torch.randn(5, 4)
    twin.load_state_dict(model.state_dict())
    puts = [scaled(model), scaled(twin)]
    rekindle.checkpoint(model, x, minimize="memory", solver="storages")
    for value in (1.0, 2.0, 0.5):
        for put in puts:
            put(value)
        assert equal(twin, model, x)


# -- how it is called ------------------------------------------------------------------------------------------------------
def test_how_arguments_are_passed_makes_no_difference() -> None:
    plain, planned, x = pair()
    mask = torch.rand(16, 8)
    with silent():
        for args, kwargs in (
            ((x,), {}), ((), {"x": x}), ((x, None), {}), ((x,), {"mask": None}), ((x, None, 1.0, False), {}),
            ((x,), {"weight": 1.0, "mask": None}), ((x,), {"flag": False}),
        ):  # fmt: skip
            assert equal(plain, planned, *args, **kwargs)
    assert plans(planned) == 1
    for args, kwargs in (
        ((x, mask), {}), ((), {"mask": mask, "x": x}), ((x,), {"mask": mask}), ((x, mask, 1.0), {}),
    ):  # fmt: skip
        assert equal(plain, planned, *args, **kwargs)
    assert plans(planned) == 2
    assert equal(plain, planned, x, None, 1.0, True)
    assert equal(plain, planned, x, flag=True)
    assert plans(planned) == 3


def test_an_object_among_the_arguments_that_changes() -> None:
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, config: Config) -> torch.Tensor:
            return self.linear(x) * config.gain

    plain, x, config = Takes(), torch.randn(5, 4), Config()
    planned = rekindle.checkpoint(copy.deepcopy(plain), (x, config), minimize="memory", solver="storages")
    for gain in (1.0, 3.0, 0.0, -0.0, 1.0):
        config.gain = gain
        assert equal(plain, planned, x, config)
    assert equal(plain, planned, x, copy.deepcopy(config))


# -- calls that cannot be planned ------------------------------------------------------------------------------------------
def test_a_call_that_cannot_be_planned_runs_plain_with_a_word() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.looks, self.off = nn.Linear(4, 4), False, False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.linear(x).detach() if self.off else self.linear(x)
            return -h if self.looks and bool(h.sum() > 0) else h

    plain, x = Looks(), torch.randn(5, 4)
    planned = rekindle.checkpoint(copy.deepcopy(plain), x, minimize="memory", solver="storages")
    assert equal(plain, planned, x)
    planned.looks = plain.looks = True
    with pytest.warns(RekindleWarning, match="depend on tensor values"):
        assert equal(plain, planned, x)
    with silent():
        assert equal(plain, planned, x)
    planned.looks = plain.looks = False
    with silent():
        assert equal(plain, planned, x)
    planned.off = plain.off = True
    with pytest.warns(RekindleWarning, match="no result"):
        assert torch.equal(plain(x), planned(x))
    planned.requires_grad_(False)
    with silent():
        planned(torch.randn(6, 4))


def test_a_batch_beyond_the_budget_runs_with_least_memory_and_a_word() -> None:
    torch.manual_seed(0)
    plain, x = Net(), torch.randn(64, 8)
    least = rekindle.plan(rekindle.trace(plain, x), minimize="memory", solver="storages").peak_bytes
    planned = rekindle.checkpoint(copy.deepcopy(plain), x, budget=least + 16384, solver="storages")
    more = torch.randn(1024, 8)
    with pytest.warns(RekindleWarning, match="least memory"):
        assert equal(plain, planned, more)
    with silent():
        assert equal(plain, planned, more)


def test_later_plans_are_made_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle import api

    asked = []
    real = api.plan_graph

    def noted(*args: Any, **kwargs: Any) -> Any:
        asked.append({k: kwargs[k] for k in ("solver", "cost", "time_limit", "seed")} | {"goal": args[1]})
        return real(*args, **kwargs)

    monkeypatch.setattr(api, "plan_graph", noted)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rekindle.checkpoint(
        model, torch.randn(16, 8), budget=0.8, solver="storages", cost="flops", time_limit=3, seed=5, optimizer=optimizer,
        must_save=["head"],
    )  # fmt: skip
    step(model, torch.randn(20, 8))
    assert len(asked) == 2
    assert asked[0] == asked[1]
    options = [b.trace.options for b in model.forward.bounds]
    assert options[0] == options[1]
    assert options[0].optimizer is optimizer
    assert options[0].must_save == ("head",)


# -- other people's wrappers -----------------------------------------------------------------------------------------------
def test_a_wrapped_forward_is_not_traced_in_circles() -> None:
    """As Accelerate does under mixed precision."""
    plain, planned, x = pair()
    inner = planned.forward

    @functools.wraps(inner)
    def wrapped(*args: Any, **kwargs: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return inner(*args, **kwargs).float()

    planned.forward = wrapped
    own = plain.forward

    def wrapped_plain(*args: Any, **kwargs: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return own(*args, **kwargs).float()

    plain.forward = wrapped_plain
    for size in (16, 20, 20):
        assert equal(plain, planned, torch.randn(size, 8))
    assert len(list(inner.bounds)) == 3
    assert rekindle.verify(planned, x).ok
    rekindle.restore(planned)
    ran = inner.last
    inner.last = None
    assert equal(plain, planned, x)
    assert inner.last is None
    assert ran is not None


def test_a_plan_that_is_not_in_use_says_so_once() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x)

        def training_step(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).sum()

    outer, x = Outer(), torch.randn(3, 4)
    rekindle.checkpoint(outer, x, minimize="memory", solver="storages")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(6):
            outer.training_step(x).backward()
    assert ["plan of Outer is not in use" in str(w.message) for w in told] == [True]
    rekindle.checkpoint(outer, x, minimize="memory", solver="storages")
    with silent():
        outer(x).sum().backward()
        for _ in range(6):
            outer.training_step(x).backward()


def test_a_transform_of_functions_runs_plain_with_a_word() -> None:
    plain, planned, x = pair()
    planned.blocks.eval(), plain.blocks.eval(), planned.norm.eval(), plain.norm.eval()

    def loss(params: Any, model: nn.Module) -> torch.Tensor:
        return torch.func.functional_call(model, params, (x,)).square().sum()

    expected = torch.func.grad(loss)(dict(plain.named_parameters()), plain)
    with pytest.warns(RekindleWarning, match=r"torch\.func"):
        found = torch.func.grad(loss)(dict(planned.named_parameters()), planned)
    assert all(torch.equal(found[k], expected[k]) for k in expected)


def test_other_parameters_for_one_call() -> None:
    plain, planned, x = pair()
    params = {k: (v.detach() * 2).requires_grad_() for k, v in plain.named_parameters()}
    torch.manual_seed(1)
    expected = torch.func.functional_call(plain, params, (x,))
    torch.manual_seed(1)
    found = torch.func.functional_call(planned, params, (x,))
    assert torch.equal(found, expected)
    one, two = (torch.autograd.grad(y.sum(), list(params.values())) for y in (expected, found))
    assert all(map(torch.equal, one, two))


# -- numbers that change -----------------------------------------------------------------------------------------------------
def test_a_number_that_changes_at_every_call_is_an_input() -> None:
    plain, planned, x = pair()
    assert equal(plain, planned, x, weight=0.3)
    assert equal(plain, planned, x, weight=0.31)
    count = plans(planned)
    for k in range(12):
        with silent():
            assert equal(plain, planned, x, weight=0.32 + k / 7)
    assert plans(planned) == count


def test_an_attribute_that_changes_at_every_call_is_an_input() -> None:
    plain, planned, x = pair()
    for k in range(12):
        plain.scale = planned.scale = 1.3 + k / 7
        with silent():
            assert equal(plain, planned, x)
        if k == 1:
            count = plans(planned)
    assert plans(planned) == count
    plain.scale = planned.scale = 2  # an int is another graph
    assert equal(plain, planned, x)


class Counts(nn.Module):
    """What forward may do with a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, n: int = 1, t: float = 0.25, way: str = "arithmetic") -> torch.Tensor:
        h = self.linear(x)
        if way == "arithmetic":
            return h / n - (1 - t) * h.tanh().abs() ** t + torch.add(h, h, alpha=t * n) + n % 3
        if way == "branch":
            return h * t if t > 0.5 and n != 4 else h - t
        if way == "dropout":
            return nn.functional.dropout(h, t)
        if way == "loop":
            for _ in range(n):
                h = h.sin()
            return h
        if way == "size":
            return h[:n] * t
        if way == "math":
            import math

            return h * math.exp(t)
        if way == "tensor":
            return h * torch.tensor(t) + torch.full((4,), t)
        return h * float(t) + len(f"{t:.3f}")


@pytest.mark.parametrize("way", ["arithmetic", "branch", "dropout", "loop", "size", "math", "tensor", "text"])
def test_whatever_forward_does_with_a_number_the_bits_are_eagers(way: str) -> None:
    plain, x = Counts(), torch.randn(8, 4)
    planned = rekindle.checkpoint(copy.deepcopy(plain), (x, 1, 0.25, way), minimize="memory", solver="storages")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n, t in (
            (2, 0.3),
            (3, 0.4),
            (4, 0.6),
            (5, 0.7),
            (4, 0.8),
            (7, 0.5),
            (6, 0.0),
            (9, 0.9),
            (8, 0.2),
            (5, 0.65),
            (3, 0.1),
        ):
            assert equal(plain, planned, x, n, t, way)
    assert len(told) <= 1, [str(w.message) for w in told]
    if told:
        assert "differ from call to call" in str(told[0].message)
        assert "t" in str(told[0].message)
    else:
        assert way in ("arithmetic", "branch")


# -- calls that follow each other --------------------------------------------------------------------------------------------
class Indexed(nn.Module):
    """Makes position indices at its first call, of another shape than what stood there, and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("indices", torch.zeros(1, 1), persistent=False)
        self.state: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.indices.shape[0] != x.shape[0]:
            self.indices = torch.arange(x.shape[0], dtype=x.dtype)[:, None] / x.shape[0]
        h = torch.tanh(self.linear(x) + self.indices)
        h = h if self.state is None else h + 0.5 * self.state
        self.state = h.detach().mean(0)
        return h


def test_what_the_first_call_sets_up_is_planned_for_beforehand(capfd: pytest.CaptureFixture[str]) -> None:
    plain, x = Indexed(), torch.randn(6, 8)
    planned = rekindle.checkpoint(copy.deepcopy(plain), x, minimize="memory", solver="storages")
    assert planned.state is None
    assert planned.indices.shape == (1, 1)
    count = plans(planned)
    capfd.readouterr()
    with silent():
        for _ in range(3):
            assert equal(plain, planned, x)
            assert planned.forward.last is not None
    assert planned.forward.last.plan is planned.forward.plan
    assert plans(planned) == count
    assert capfd.readouterr().err == ""


def test_a_planned_forward_shows_the_signature_of_its_own() -> None:
    """By it Hugging Face's Trainer tells which columns of a batch the model takes."""
    plain, planned, _ = pair()
    assert inspect.signature(planned.forward) == inspect.signature(plain.forward)


def test_a_check_tells_nothing_of_its_own_calls() -> None:
    class Drawn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(nn.functional.dropout(self.linear(x)))

    with silent():
        rekindle.checkpoint(Drawn(), torch.randn(5, 4), minimize="memory", solver="storages")


def test_a_rate_that_changes_with_each_epoch_goes_on_being_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle.torch.run import plans as kept
    from rekindle.torch.run import refusals

    plain, planned, x = pair()
    monkeypatch.setattr(refusals, "MOST", 3)
    monkeypatch.setattr(kept, "MOST_KEPT", 4)
    with silent():
        for epoch in range(8):
            for m in (plain, planned):
                m.rates[1] = 0.9 - epoch / 10
            for _ in range(3):
                assert equal(plain, planned, x)
    assert planned.forward.last is not None
    assert plans(planned) == 4
    for k in range(4):  # and one that changes with each call does not
        for m in (plain, planned):
            m.rates[1] = 3.0 + k
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert equal(plain, planned, x)
    assert ["rates" in str(w.message) for w in told] == [True]


@pytest.mark.parametrize("p", [0.04, 0.09, 0.1, 0.15, 0.3, 0.5])
def test_dropout_at_any_rate(p: float) -> None:
    """1 / (1 - p) in single precision is not always what double precision rounds to."""
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Dropout(p), nn.Linear(64, 32))
    x = torch.randn(64, 32)
    assert rekindle.verify(model, x, rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="storages")).ok


def test_a_hook_that_is_there_before_planning_is_named() -> None:
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), []
    model[0].register_forward_hook(lambda m, args, out: seen.append(1))
    with pytest.warns(RekindleWarning, match="forward hook"):
        rekindle.checkpoint(model, torch.randn(5, 4), minimize="memory", solver="storages")


def test_a_forward_that_was_given_back_may_take_over_again() -> None:
    _, planned, x = pair()
    forward = planned.forward
    rekindle.restore(planned)
    forward.take_over(planned)
    forward.last = None
    step(planned, x)
    assert forward.last is not None


def test_a_hook_that_was_named_at_planning_does_not_keep_a_new_shape_from_its_plan() -> None:
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), []
    model[0].register_forward_hook(lambda m, args, out: seen.append(1))
    with pytest.warns(RekindleWarning, match="forward hook"):
        rekindle.checkpoint(model, torch.randn(5, 4), minimize="memory", solver="storages")
    seen.clear()
    with silent():
        model(torch.randn(7, 4)).sum().backward()
    assert plans(model) == 2
    model[1].register_forward_hook(lambda m, args, out: seen.append(2))
    with pytest.warns(RekindleWarning, match="run plain"):
        model(torch.randn(7, 4)).sum().backward()
    assert seen == [1, 2]
