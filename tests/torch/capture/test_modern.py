"""The deep and the modern suite: a shrunken copy of each is planned at half its activations and gives the plain step's
bits; and what is written in the zoo itself computes what its paper says."""

from __future__ import annotations

import more_models
import pytest
import torch
from more_models import deep, lstm_steps, moe
from more_models.mamba import scan
from small_copies import small
from torch import Tensor, nn

import rekindle
from libraries import needs_torchvision
from marks import few, sweep
from rekindle.torch.costs.operator_calls import FlopCount

IMAGES = more_models.FILES["images"]  # tested in a file of their own
LIBRARIES = {name for file in ("deep", "language", "images") for name in more_models.FILES[file]}


def load(name, **options):
    if name in LIBRARIES:
        needs_torchvision()
    return more_models.load(name, **options)


def call(model: nn.Module, sample) -> Tensor:
    out = model(**sample) if isinstance(sample, dict) else model(sample)
    return out["loss"] if isinstance(out, dict) else out.square().mean()


def check_half_the_activations(name: str) -> None:
    """A plan for half the activations of the small copy runs ops again and gives the plain step's bits; and the plain
    step gives every parameter a gradient, so that there is something to compare."""
    model, sample = load(name, **small(name))
    # A named target: the steps are so small that the workspaces of the CPU's kernels, which a measured trace has in it,
    # would leave nothing to plan.
    trace = rekindle.trace(model, sample, target="cpu")
    plan = rekindle.plan(trace, budget=0.5, cost="flops", solver="storages", time_limit=0.5)
    assert len(plan.schedule.runs) > trace.graph.needed.sum()
    check = rekindle.verify(model, sample, plan)
    assert check.ok, check.differences
    assert check.loss_equal
    assert check.gradients_equal
    assert check.rng_equal
    call(model, sample).backward()
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        assert torch.isfinite(p.grad).all(), key
    moved = sum(bool(p.grad.any()) for p in model.parameters())
    assert moved > 0.8 * len(list(model.parameters()))


@pytest.mark.parametrize(
    "name",
    few(
        [n for n in (*more_models.SUITES["deep"], *more_models.SUITES["modern"]) if n not in IMAGES],
        ["unet3d", "moe"],
    ),
)
def test_half_the_activations_and_the_same_bits(name):
    check_half_the_activations(name)


# --- deep -------------------------------------------------------------------------------------------------------------


@sweep
def test_resnet1000_has_1000_convolutions():
    model, _ = load("resnet1000", fake=True)
    convolutions = [name for name, m in model.named_modules() if isinstance(m, nn.Conv2d)]
    assert len([n for n in convolutions if "downsample" not in n and not n.startswith("head")]) == 1000
    assert deep.units(1000) == (84, 83, 83, 83)
    assert 1 + 3 * sum(deep.units(25)) == 25


def matched_lstms(features: int, hidden: int, layers: int) -> tuple[lstm_steps.SteppedLSTM, nn.LSTM]:
    """The same weights in both."""
    stepped = lstm_steps.SteppedLSTM(features, hidden, 2, layers).double()
    fused = nn.LSTM(features, hidden, layers, batch_first=True).double()
    with torch.no_grad():
        for i, w in enumerate(lstm_steps._layers(stepped.weight, features, layers, hidden)):
            n = len(w) - hidden - 1
            getattr(fused, f"weight_ih_l{i}").copy_(w[:n].t())
            getattr(fused, f"weight_hh_l{i}").copy_(w[n:-1].t())
            getattr(fused, f"bias_ih_l{i}").copy_(w[-1])
            getattr(fused, f"bias_hh_l{i}").zero_()
    return stepped, fused


def test_lstm_of_steps_is_an_lstm():
    torch.manual_seed(0)
    features, hidden, layers = 5, 6, 3
    stepped, fused = matched_lstms(features, hidden, layers)
    x, y = (torch.rand(4, 7, features, dtype=torch.double).requires_grad_() for _ in range(2))
    y.data.copy_(x.data)
    a, b = stepped(x), stepped.head(fused(y)[0][:, -1])
    torch.testing.assert_close(a, b)
    head = torch.autograd.grad(b.square().sum(), [y, *fused.parameters()])
    a.square().sum().backward()
    torch.testing.assert_close(x.grad, head[0])
    found = lstm_steps._layers(stepped.weight.grad, features, layers, hidden)
    for i, w in enumerate(found):
        to_input, to_state, to_bias, _ = head[1 + 4 * i : 5 + 4 * i]
        torch.testing.assert_close(w, torch.cat([to_input.t(), to_state.t(), to_bias[None]]))


def test_lstm_step_is_a_proper_op():
    m = lstm_steps.SteppedLSTM(3, 4, 2, 2)
    state = torch.rand(2, 2, 4)
    torch.library.opcheck(lstm_steps.lstm_step, (torch.rand(2, 3), state, state.clone(), m.weight))


@sweep
def test_lstm_under_autocast_gives_the_same_bits():
    model, sample = more_models.load("lstm_deep", **small("lstm_deep"))
    with torch.autocast("cpu", torch.bfloat16):
        trace = rekindle.trace(model, sample, target="h200")
        plan = rekindle.plan(trace, minimize="memory", cost="unit", solver="chen-sqrt")
        assert plan.overhead > 0
        assert rekindle.verify(model, sample, plan).ok


def test_lstm_flops_are_those_of_its_products():
    stepped, fused = (m.float() for m in matched_lstms(3, 4, 2))
    x = torch.rand(2, 5, 3, requires_grad=True)
    with FlopCount() as ours:
        stepped(x).sum().backward()
    with FlopCount() as forward:
        stepped(x)
    head = 2 * 2 * 4 * 2  # batch, hidden, classes
    step = 2 * 2 * (3 * 16 + 3 * 4 * 16)
    assert forward.total == 5 * step + head
    assert ours.total == 3 * 5 * step + 3 * head


def test_lstm_has_three_ops_a_step():
    def ops(length):
        model, sample = more_models.load("lstm_deep", batch=2, length=length, features=3, hidden=4, fake=True)
        return len(rekindle.trace(model, sample).graph.ops)

    assert ops(20) - ops(12) == 3 * 8


# --- written here -----------------------------------------------------------------------------------------------------


def test_scan_is_the_recurrence():
    torch.manual_seed(0)
    batch, length, heads, p, n = 2, 12, 3, 4, 5
    x, a = torch.randn(batch, length, heads, p), -torch.rand(batch, length, heads)
    b, c = torch.randn(batch, length, n), torch.randn(batch, length, n)
    state, rows = torch.zeros(batch, heads, n, p), []
    for t in range(length):
        state = a[:, t, :, None, None].exp() * state + b[:, t, None, :, None] * x[:, t, :, None, :]
        rows.append(torch.einsum("bn,bhnp->bhp", c[:, t], state))
    for chunk in (3, 4, 12):
        torch.testing.assert_close(scan(x, a, b, c, chunk), torch.stack(rows, 1), rtol=1e-4, atol=1e-5)


def test_experts_are_the_two_most_probable():
    torch.manual_seed(0)
    d, experts = 8, 4
    layer = moe.Experts(d, 16, experts, capacity=experts / 2)  # a place for every token, so that none is passed over
    x = torch.randn(2, 6, d)
    shares = layer.router(x).softmax(-1)
    top, chosen = shares.topk(2, dim=-1)
    every = torch.stack([nn.functional.gelu(x @ layer.wide[e]) @ layer.narrow[e] for e in range(experts)], 2)
    picked = every.gather(2, chosen[..., None].expand(-1, -1, -1, d))
    expected = (picked * (top / top.sum(-1, keepdim=True)).unsqueeze(-1)).sum(2)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_full_expert_passes_over_what_comes_later():
    layer = moe.Experts(4, 8, 4, capacity=0.5)  # two places each for eight tokens
    with torch.no_grad():
        layer.router.weight.copy_(torch.eye(4))
    combine, _ = layer._route(torch.tensor([4.0, 3.0, 0.0, 0.0]).expand(1, 8, 4))  # all want experts 0 and 1
    assert ((combine > 0).sum((2, 3))[0] == torch.tensor([2, 2, 0, 0, 0, 0, 0, 0])).all()
    assert (combine > 0).sum(1).max() == 1  # one token per place


def test_dit_puts_its_patches_back():
    model, sample = more_models.load("dit", **small("dit"))
    with torch.no_grad():
        model.head.bias.copy_(torch.arange(16.0))  # patch of 2x2 pixels, 4 channels each
        model.head.weight.zero_()
        noise = model(**sample)["noise"]
    assert noise.shape == sample["latents"].shape
    patch = torch.arange(16.0).reshape(2, 2, 4).permute(2, 0, 1)
    assert torch.equal(noise[0], patch.repeat(1, 4, 4))
