"""Random ops in place draw the numbers of eager into the elements of eager, however the tensor lies in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

import rekindle
from marks import few
from rekindle.torch.operators.random_in_place import OUT_OF_PLACE
from rekindle.torch.operators.record import workspace_bytes
from rekindle.torch.operators.table import OVERWRITES

aten = torch.ops.aten

Step = Callable[[Tensor], Tensor]

# Tensors of zeros that a forward makes, of the shape and type of y.
LAYOUTS: dict[str, Step] = {
    "contiguous": lambda y: y.new_zeros(y.shape),
    "channels last": lambda y: y.new_zeros(y.shape).to(memory_format=torch.channels_last),
    "reversed": lambda y: y.new_zeros(y.shape[::-1]).permute(3, 2, 1, 0),
    "every other column": lambda y: y.new_zeros([*y.shape[:-1], 2 * y.shape[-1]])[..., ::2],
    "some channels, last": lambda y: y.new_zeros([2, 32, 6, 6]).to(memory_format=torch.channels_last)[:, 3:19],
    "reversed columns": lambda y: y.new_zeros([12, 6, 16, 2])[1::2].permute(3, 2, 1, 0),
}
DRAWS: dict[str, Step] = {
    "bernoulli_": lambda t: t.bernoulli_(0.3),
    "bernoulli_ of rates": lambda t: t.bernoulli_(torch.linspace(0, 1, t.numel()).reshape(t.shape)),
    "normal_": lambda t: t.normal_(1.0, 2.0),
    "uniform_": lambda t: t.uniform_(-1, 1),
    "exponential_": lambda t: t.exponential_(),
    "random_": lambda t: t.random_(7),
    "geometric_": lambda t: t.geometric_(0.3),
    "log_normal_": lambda t: t.log_normal_(),
    "cauchy_": lambda t: t.cauchy_(),
}
DROPOUTS: dict[str, Step] = {
    "dropout": lambda y: F.dropout(y, 0.3),
    "dropout of a rate whose scale rounds otherwise": lambda y: F.dropout(y, 0.1),
    "dropout in place": lambda y: F.dropout(y * 2, 0.3, inplace=True),
    "dropout of a transposed tensor": lambda y: F.dropout(y.transpose(1, 3), 0.3),
    "dropout of some channels": lambda y: F.dropout(y[:, ::2], 0.3),
    "dropout of channels": lambda y: F.dropout2d(y, 0.3),
    "alpha dropout": lambda y: F.alpha_dropout(y, 0.3, True),
}


class Noisy(nn.Module):
    """A convolution and one step on its result."""

    def __init__(self, step: Step, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.convolution, self.step = nn.Conv2d(3, 16, 3, dtype=dtype), step

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self.convolution(x))


def images(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, 3, 8, 8).to(dtype).to(memory_format=torch.channels_last)


def differences(step: Step, dtype: torch.dtype = torch.float32) -> list[str]:
    """How planned steps that draw again in backward differ from plain ones, over several seeds."""
    model, x = Noisy(step, dtype), images(dtype)
    rekindle.apply(model, rekindle.plan(rekindle.trace(model, x), minimize="memory", solver="every", cache=False))
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        found += rekindle.verify(model, x).differences
    return found


@pytest.mark.parametrize(
    "dtype", few([torch.bfloat16, torch.float32, torch.float16, torch.float64], [torch.bfloat16, torch.float32])
)
def test_planned_dropouts_of_images_with_channels_last_drop_what_eager_drops(dtype: torch.dtype) -> None:
    assert differences(lambda y: torch.cat([d(y).reshape(-1) for d in DROPOUTS.values()]), dtype) == []


@pytest.mark.parametrize("name", few(DRAWS, ["bernoulli_", "normal_", "uniform_"]))
def test_planned_draws_in_place_are_eagers_in_every_layout(name: str) -> None:
    assert differences(lambda y: torch.stack([y * DRAWS[name](make(y)) for make in LAYOUTS.values()])) == []


def test_a_draw_through_a_view_writes_into_its_base() -> None:
    def drawn(y: Tensor) -> Tensor:
        noise = y.new_zeros([12, 6, 16, 2]).permute(3, 2, 1, 0)
        noise[:, :8].permute(0, 2, 3, 1).bernoulli_(0.3)
        noise[..., 1::2].normal_()
        return y * noise[..., :6] * noise[..., 6:].exp()

    assert differences(drawn) == []


def test_a_draw_into_a_tensor_that_tracing_has_moved() -> None:
    """Captured, the result of `zero_` is a new tensor without gaps; eager's has gaps."""

    def drawn(y: Tensor) -> Tensor:
        noise = y.new_empty_strided(y.shape, [1152, 72, 12, 2]).zero_()
        other = y.new_empty_strided(y.shape, [1, 2, 64, 384]).zero_()
        return y * noise.normal_().clone() * noise.bernoulli_(0.3).clone() * other.bernoulli_(0.3)

    assert differences(drawn) == []


def test_torch_bernoulli_keeps_its_own_order() -> None:
    """The function, which torch runs on contiguous memory, is captured as it is."""
    assert differences(lambda y: y * torch.bernoulli(y.detach(), 0.3)) == []


@given(st.data())
def test_the_operators_draw_as_the_ops_in_place(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    steps = [data.draw(st.integers(1, 2)) for _ in shape]
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]))
    op = data.draw(st.sampled_from(list(OUT_OF_PLACE)))
    like, numbers = OUT_OF_PLACE[op], (0.3,) if op is aten.bernoulli_.float else (1.0, 2.0)

    def laid_out() -> Tensor:
        base = torch.zeros([shape[d] * steps[d] for d in order], dtype=dtype)
        t = base.permute([order.index(d) for d in range(len(shape))])
        return t[tuple(slice(None, None, s) for s in steps)]

    def run(call: Any, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        out: Tensor = call(x, *numbers)
        return out

    expected = run(op, laid_out())
    x = laid_out()
    kept, over = run(like, x), run(OVERWRITES[like][0], laid_out())
    assert torch.equal(kept, expected)
    assert torch.equal(over, expected)
    assert not x.any()
    assert kept.untyped_storage().nbytes() == x.numel() * x.element_size()
    with FakeTensorMode() as mode:
        assert like(mode.from_tensor(x), *numbers).stride() == kept.stride() == over.stride()
    dense = aten.is_non_overlapping_and_dense(x) or not x.numel()
    assert (workspace_bytes(like, (x, *numbers)) == 0) is bool(dense)
