"""Autocast casts a trained leaf once in a block, other tensors at each use: so do planned calls, parts, samples and checks."""

from __future__ import annotations

import contextlib
import copy
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rekindle
from marks import every, few, sweep
from rekindle.torch.lowering.editing import Editor
from rekindle.torch.measure.as_before import same

Loss = torch.Tensor
LEAST: dict[str, Any] = {"minimize": "memory", "solver": "every", "progress": False}
PLANS = [{"budget": 1.0, "progress": False}, LEAST]


def bf16(**how: Any) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, **how)


def mean(x: torch.Tensor) -> Loss:
    return 10 * x.float().pow(2).mean()


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", rekindle.RekindleWarning)
        yield


def differing(way: Callable[[nn.Module], Any], *models: nn.Module) -> list[str]:
    """Names of the gradients in which the first model differs from the second, after the same steps."""
    found = []
    for m in models:
        m.zero_grad()
        torch.manual_seed(7)
        way(m)
        found.append({k: p.grad for k, p in m.named_parameters()} | {"rng": torch.get_rng_state()})
    assert any(g is not None for g in found[1].values())
    return [k for k, g in found[1].items() if not same(found[0][k], g)]


# -- leaves and other tensors ----------------------------------------------------------------------------------------------
class Cross(nn.Module):
    """Several layers read each input, as the layers of a decoder read what the encoder made."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        return self.out(F.scaled_dot_product_attention(self.q(x), self.k(e), self.v(e)) + self.k(x))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), Cross()


def step_of_two(x: torch.Tensor, leaf: bool) -> Callable[[Any], None]:
    def step(m: Any) -> None:
        with bf16():
            e = m.enc(x)
            given = e.detach().requires_grad_() if leaf else e
            loss = mean(m.dec(x, given))
        loss.backward()
        if leaf:
            e.backward(given.grad)

    return step


@pytest.mark.parametrize("sample_is_leaf", every(2, [True, False]))
def test_a_leaf_is_another_input_than_a_result(sample_is_leaf: bool) -> None:
    torch.manual_seed(0)
    model, x = Two(), torch.randn(2, 8, 16)
    plain = copy.deepcopy(model)
    with bf16():
        e = model.enc(x).float()
        sample = (x, e.detach().requires_grad_() if sample_is_leaf else e)
        rekindle.checkpoint(model.dec, sample, **LEAST)
    assert len([*model.dec.forward.bounds]) == 1
    for leaf in (sample_is_leaf, not sample_is_leaf):
        with no_warnings():
            assert differing(step_of_two(x, leaf), model, plain) == []
    assert len([*model.dec.forward.bounds]) == 2  # one for each


@sweep
def test_without_autocast_they_are_one() -> None:
    model, x = Cross(), torch.randn(2, 8, 16)
    rekindle.checkpoint(model, (x, x.clone().requires_grad_()), **LEAST)
    mean(model(x, x.clone().requires_grad_() * 2)).backward()
    with bf16(cache_enabled=False):
        for e in (x.clone().requires_grad_(), x.clone().requires_grad_() * 2):
            mean(model(x, e)).backward()
    assert len([*model.forward.bounds]) == 2


class Inside(Cross):
    def forward(self, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        with bf16():
            return super().forward(x, e)


def test_autocast_that_is_on_in_forward_alone() -> None:
    torch.manual_seed(0)
    model, x = Inside(), torch.randn(2, 8, 16)
    plain = copy.deepcopy(model)
    rekindle.checkpoint(model, (x, x.clone().requires_grad_()), **LEAST)
    for cut in (1, 0, 1):
        found = []
        for m in (model, plain):
            leaf = x.clone().requires_grad_()
            mean(m(x, leaf if cut else leaf * 1)).backward()
            found.append(leaf.grad)
        assert same(*found)
    assert len([*model.forward.bounds]) == 2


class Reads(nn.Module):
    """Only parts of it can be planned. Frozen weights are integers, as in QLoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(16, 16), nn.ModuleList(map(Lora, range(3)))

    def forward(self, x: torch.Tensor) -> Loss:
        h = self.first(x).float()
        for layer in self.layers:
            h = h + layer(F.layer_norm(h, (16,)))
        return mean(h) if h.sum().item() > -1e9 else mean(-h)


class Lora(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        numbers = torch.Generator().manual_seed(seed)
        self.base = nn.Parameter(
            torch.randint(0, 255, (64, 16), dtype=torch.uint8, generator=numbers), requires_grad=False
        )
        self.a, self.b = nn.Linear(16, 4, bias=False), nn.Linear(4, 64, bias=False)
        self.down = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up = F.linear(x, (self.base.float() - 127) / 512) + self.b(self.a(F.dropout(x, 0.1, self.training)))
        return self.down(F.gelu(up))


@sweep
def test_parts_know_whether_their_inputs_are_leaves() -> None:
    torch.manual_seed(0)
    model, x = Reads(), torch.randn(8, 16)
    plain = copy.deepcopy(model)
    with bf16():
        rekindle.checkpoint(model, x, **LEAST)
    assert model.forward.plan.parts
    assert differing(lambda m: step_of(m, x), model, plain) == []


def step_of(m: nn.Module, *given: Any) -> None:
    with bf16():
        loss = m(*given)
    loss.backward()


class Routed(nn.Module):
    """The part that routes cannot be captured; its input is read elsewhere too, as in LongCat-Flash."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.experts = nn.Linear(16, 16), nn.LayerNorm(16), Experts()
        self.dense = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 16))

    def forward(self, x: torch.Tensor) -> Loss:
        first = self.first(x)
        h = self.norm(first)
        routed = self.experts(h)
        return mean(first + self.dense(h) + routed)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, index = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            at = torch.nonzero(index == k)[:, 0]
            out = out.index_add(0, at, expert(x[at]) * weight[at, None])
        return out


@sweep
def test_marks_around_open_parts_leave_the_order_of_additions() -> None:
    torch.manual_seed(0)
    model, x = Routed(), torch.randn(32, 16)
    plain = copy.deepcopy(model)
    rekindle.checkpoint(model, x, budget=0.9, progress=False)
    assert differing(lambda m: m(x).backward(), model, plain) == []


# -- casts that calls share ------------------------------------------------------------------------------------------------
class Tied(nn.Module):
    """The table is read as it is and cast, and autograd adds up both gradients in the order in which they arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.norm = nn.Parameter(torch.randn(24, 16) * 0.3), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, ids: torch.Tensor, e: torch.Tensor | None = None) -> torch.Tensor:
        h = F.embedding(ids, self.table)
        h = self.norm(h + self.inner(h if e is None else h + e[..., :16]))
        return F.linear(F.dropout(h, 0.1), self.table)


IDS = torch.arange(24).view(4, 6)


def separately(m: nn.Module) -> None:
    with bf16():
        one, two = mean(m(IDS)), mean(m(IDS.flip(0)))
    two.backward()
    one.backward()


def first_in_first_out(m: nn.Module) -> None:
    with bf16():
        one, two = mean(m(IDS)), mean(m(IDS.flip(0)))
    one.backward()
    two.backward()


def together(m: nn.Module) -> None:
    with bf16():
        one, two, three = mean(m(IDS)), mean(m(IDS.flip(0))), mean(m(IDS.flip(1)))
    (one + 2 * two + three).backward()


def some_twice(m: nn.Module) -> None:
    with bf16():
        one, two, three = mean(m(IDS)), mean(m(IDS.flip(0))), mean(m(IDS.flip(1)))
    (2 * two + three).backward(retain_graph=True)
    (one + three).backward()


def accumulated_in_one_block(m: nn.Module) -> None:
    with bf16():
        for k in range(3):
            mean(m(IDS.roll(k))).backward()


def in_two_blocks(m: nn.Module) -> None:
    with bf16():
        one = mean(m(IDS))
    with bf16():
        two = mean(m(IDS.flip(0)))
    (one + two).backward()


def after_plain_code(m: Any) -> None:
    with bf16():
        plain = mean(F.linear(torch.ones(3, 16), m.table)) + mean(F.linear(torch.ones(3, 16), m.inner.weight))
        one, two = mean(m(IDS)), mean(m(IDS.flip(0)))
    (one + two + plain).backward()


def of_some(m: nn.Module) -> None:
    with bf16():
        one, two = mean(m(IDS)), mean(m(IDS.flip(0)))
    parameters = [*m.parameters()]
    for p, g in zip(parameters, torch.autograd.grad(one + two, parameters), strict=True):
        p.grad = g


def without_cache(m: nn.Module) -> None:
    with bf16(cache_enabled=False):
        one, two = mean(m(IDS)), mean(m(IDS.flip(0)))
    (one + two).backward()


WAYS = [separately, first_in_first_out, together, some_twice, accumulated_in_one_block, in_two_blocks, after_plain_code,
        of_some, without_cache]  # fmt: skip


@pytest.mark.parametrize("goal", few(PLANS, [PLANS[1]]), ids=["saves all", "saves least"])
def test_calls_share_casts_as_eager_calls_do(goal: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Tied()
    plain = copy.deepcopy(model)
    with bf16():
        rekindle.checkpoint(model, IDS, **goal)  # which also checks two calls in one block
    for way in WAYS:
        with no_warnings():
            assert differing(way, model, plain) == [], way.__name__


class EncoderDecoder(nn.Module):
    """Two modules that have one table."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Tied(), Tied()
        self.decoder.table = self.encoder.table

    def forward(self, ids: torch.Tensor) -> Loss:
        return mean(self.decoder(ids.flip(0), self.encoder(ids)))


@pytest.mark.parametrize(
    "order",
    [("encoder", "decoder"), *(pytest.param(o, marks=sweep) for o in (("decoder", "encoder"), ("decoder",), ("",)))],
)
def test_encoder_and_decoder_with_one_table(order: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model = EncoderDecoder().train()
    plain = copy.deepcopy(model)
    with bf16():
        e = model.encoder(IDS)
        samples = {"": IDS, "encoder": IDS, "decoder": (IDS.flip(0), e)}
        for name in order:
            rekindle.checkpoint(model.get_submodule(name), samples[name], **LEAST)
    for _ in range(2):
        with no_warnings():
            assert differing(lambda m: step_of(m, IDS), model, plain) == []


class Repeats(nn.Module):
    """Several ops read one cast."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.table = nn.Linear(16, 16), nn.Parameter(torch.randn(24, 16) * 0.3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = F.embedding(ids, self.table)
        for _ in range(3):
            h = h + torch.tanh(self.inner(h))
        return F.linear(h, self.table) + F.linear(h + 1, self.table)


@pytest.mark.parametrize("goal", few(PLANS, [PLANS[1]]), ids=["saves all", "saves least"])
def test_calls_share_casts_that_several_ops_read(goal: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Repeats()
    plain = copy.deepcopy(model)
    with bf16():
        rekindle.checkpoint(model, IDS, **goal)
    for way in WAYS:
        with no_warnings():
            assert differing(way, model, plain) == [], way.__name__


# -- our own computations --------------------------------------------------------------------------------------------------
def test_weights_that_change_inside_a_block_are_told_once() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), torch.rand(2, 4)
    with bf16():
        rekindle.checkpoint(model, x, **LEAST)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        mean(model(x)).backward()
        optimizer.step()

    with no_warnings():
        for _ in range(2):
            with bf16():
                step()
    with warnings.catch_warnings(record=True) as said, bf16():
        warnings.simplefilter("always", rekindle.RekindleWarning)
        for _ in range(3):
            step()
    assert [str(w.message).rpartition(". ")[2] for w in said] == ["End the block before optimizer.step()"]


def test_ops_of_rewrites_are_not_cast() -> None:
    trace = rekindle.trace(nn.Linear(4, 4), torch.rand(2, 4))
    edit = Editor(trace.lowered.captured)
    n = next(n for n in edit.captured.nodes if "addmm" in str(n.target))
    with bf16(), edit.at_work():
        made = edit.call(torch.ops.aten.mm.default, n.args[1:], n, (0.5,))
    assert made.meta["val"].dtype == torch.float32


# -- errors say where steps part -------------------------------------------------------------------------------------------
@torch.library.custom_op("rekindle_tests::knows_where_it_runs", mutates_args=())
def knows_where_it_runs(x: torch.Tensor) -> torch.Tensor:
    frame: Any = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith("<rekindle plan"):
        frame = frame.f_back
    return x * (2 if frame is None else 3)


@knows_where_it_runs.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


knows_where_it_runs.register_autograd(lambda ctx, g: 2 * g)


@torch.library.custom_op("rekindle_tests::unlike_before", mutates_args=())
def unlike_before(x: torch.Tensor) -> torch.Tensor:
    return x * next(CALLS)


CALLS = itertools.count(1)
unlike_before.register_fake(torch.empty_like)
unlike_before.register_autograd(lambda ctx, g: 2 * g)


class Wrong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.act, self.after = nn.Linear(4, 64), Knows(), nn.Sequential(nn.GELU(), nn.Linear(64, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.act(self.before(x)))


class Knows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return knows_where_it_runs(x)


@pytest.mark.parametrize("under", [contextlib.nullcontext, bf16])
def test_a_difference_names_the_first_op(under: Callable[[], Any]) -> None:
    blocks = ", each in an autocast block of its own," if under is bf16 else ""
    text = (
        rf"loss is .*Two plain steps{blocks} agree.*act \(rekindle_tests\.knows_where_it_runs, .*\[2,64\]\) of Wrong\."
    )
    with under(), pytest.raises(rekindle.ParityError, match=text) as e:
        rekindle.checkpoint(Wrong(), torch.rand(2, 4), **LEAST)
    assert "not deterministic" not in str(e.value)


def test_a_difference_of_plain_steps_is_told() -> None:
    class Restless(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return unlike_before(super().forward(x))

    with pytest.raises(rekindle.ParityError, match="Nor do two plain steps of Restless agree.*not deterministic"):
        rekindle.checkpoint(Restless(4, 4), torch.rand(2, 4), **LEAST)
