"""Fake tensors are laid out as what the CPU's kernels give, so that views stand where eager's do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import rekindle
from marks import every, sweep
from rekindle.torch.operators.eager_strides import eager_strides

STEPS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "batch norm": (lambda x: nn.BatchNorm1d(8)(x), (2, 8, 6)),
    "batch norm of images": (lambda x: nn.BatchNorm2d(8)(x), (2, 8, 6, 4)),
    "batch norm, evaluating": (lambda x: nn.BatchNorm2d(8).eval()(x), (2, 8, 6, 4)),
    "layer norm": (lambda x: nn.LayerNorm(x.shape[-2:])(x), (2, 8, 6, 4)),
    "log softmax": (lambda x: F.log_softmax(x, 1), (2, 8, 6)),
    "log sigmoid": (F.logsigmoid, (2, 8, 6)),
    "hardswish": (F.hardswish, (2, 8, 6)),
    "hardsigmoid": (F.hardsigmoid, (2, 8, 6)),
    "relu6": (F.relu6, (2, 8, 6)),
    "elu": (F.elu, (2, 8, 6)),
    "softplus": (F.softplus, (2, 8, 6)),
    "rrelu": (lambda x: F.rrelu(x, training=True), (2, 8, 6)),
    "rrelu, evaluating": (F.rrelu, (2, 8, 6)),
    "batch norm of one image": (lambda x: nn.BatchNorm2d(8)(x), (1, 8, 6, 4)),
    "glu": (lambda x: F.glu(x, 1), (2, 8, 6, 4)),
    "mse": (lambda x: F.mse_loss(x, torch.zeros(x.shape), reduction="none"), (2, 8, 6)),
    "smooth l1": (lambda x: F.smooth_l1_loss(x, torch.zeros(x.shape), reduction="none"), (2, 8, 6)),
    "huber": (lambda x: F.huber_loss(x, torch.zeros(x.shape), reduction="none"), (2, 8, 6)),
    "reflected": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), (2, 8, 6, 4)),
    "rolled": (lambda x: x.roll((1, 1), (2, 3)), (2, 8, 6, 4)),
    "shuffled": (lambda x: F.channel_shuffle(x, 2), (2, 8, 6, 4)),
}
OF_ONE_PIXEL: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x + torch.randn(x.shape),
    "sum with itself": lambda x: x + x * x,
    "sum with a number": lambda x: 1 - (x + 1) * 2.0,
    "scaled": lambda x: torch.randn(8, 1, 1) * x,
    "power": lambda x: x.pow(2) + x.pow(3),
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "leaky relu": F.leaky_relu,
    "elu": F.elu,
    "hardtanh": F.hardtanh,
    "sigmoid and tanh": lambda x: torch.sigmoid(x) * torch.tanh(x),
    "clamped": lambda x: x.clamp(-1, 1),
    "chosen": lambda x: torch.where(x > 0, x, 2 * x),
    "filled": lambda x: x.masked_fill(x > 0, 0.0),
    "divided": lambda x: x / (1 + x.abs().exp()).sqrt(),
    "softmax": lambda x: F.softmax(x, 1) + F.log_softmax(x, 1),
    "dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "batch norm": lambda x: nn.BatchNorm2d(8)(x),
    "convolution": nn.Conv2d(8, 8, 1),
}
for name, step in OF_ONE_PIXEL.items():
    STEPS |= {
        f"{name} of {list(shape)}": (step, shape) for shape in ((2, 8, 1, 1), (2, 8, 1, 3), (1, 8, 4, 3), (2, 8, 3, 3))
    }


def laid_out(shape: tuple[int, ...]) -> Iterator[Tensor]:
    """Tensors of a shape: contiguous, with dimensions exchanged, channels last, a part of a larger one."""
    yield torch.randn(shape)
    for a, b in ((1, -1), (0, -1)):
        yield torch.randn(torch.empty(shape).transpose(a, b).shape).transpose(a, b)
    if len(shape) == 4:
        yield torch.randn(shape).to(memory_format=torch.channels_last)
        yield torch.randn(1, *shape[1:]).to(memory_format=torch.channels_last).expand(shape)
    yield torch.randn([2 * n for n in shape])[tuple(slice(n) for n in shape)]


class Compare(TorchDispatchMode):
    """Runs each op on fake tensors too, and compares the strides of the results."""

    def __init__(self) -> None:
        super().__init__()
        self.differ: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func._schema.is_mutable:
            with FakeTensorMode() as mode, eager_strides(mode):
                fakes = tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs or {}))
                fake = func(*fakes[0], **fakes[1])
            for real, f in zip(tree_leaves(out), tree_leaves(fake), strict=True):
                if isinstance(real, Tensor) and real.numel() and real.stride() != f.stride():
                    self.differ.append(f"{func} {list(real.shape)}: {real.stride()}, not {f.stride()}")
        return out


@pytest.mark.parametrize("name", every(6, STEPS))
def test_strides_are_those_of_the_kernels(name: str) -> None:
    step, shape = STEPS[name]
    with Compare() as compare:
        for x in laid_out(shape):
            out = step(x.requires_grad_())
            for gradient in (*laid_out(tuple(out.shape)), torch.ones(()).expand(out.shape)):
                out.backward(gradient, retain_graph=True)
    assert not compare.differ, "\n".join(sorted(set(compare.differ)))


class Net(nn.Module):
    """A batch norm over the features of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.linear(x).transpose(1, 2)).transpose(1, 2)
        return self.linear(h.reshape(-1, 16)).square().mean()


def test_a_norm_over_transposed_inputs() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(8, 50, 16)
    trace = rekindle.trace(model, x)
    assert any("aten.clone." in op.name and not op.backward for op in trace.graph.ops)  # reshape copies, as in eager
    assert rekindle.verify(model, x, rekindle.plan(trace, minimize="memory", solver="storages")).ok


class OnePixel(nn.Module):
    """A sum of a contiguous tensor and one whose strides say something else only where there is one element."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.out = nn.Linear(32, 32), nn.BatchNorm2d(32), nn.Conv2d(32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.out(self.norm(x + 0.5 * y)).square().sum()


@sweep
def test_a_norm_of_one_pixel() -> None:
    torch.manual_seed(0)
    for seed in range(5):
        torch.manual_seed(seed)
        model, x = OnePixel(), torch.randn(2, 32, 1, 1)
        assert rekindle.verify(
            model, x, rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="storages")
        ).ok


def test_fake_and_real_tensors_give_the_same_graph() -> None:
    with FakeTensorMode():
        fake = rekindle.trace(Net(), torch.randn(8, 50, 16))
    with FakeTensorMode():
        Net()(torch.randn(8, 50, 16)).backward()  # leaves torch's own strides in its cache
    assert rekindle.trace(Net(), torch.randn(8, 50, 16)).graph.hash == fake.graph.hash
