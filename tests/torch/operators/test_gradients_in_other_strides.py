"""The loss may give gradients in other strides than those with which the graph was captured: the bits are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rekindle
from marks import every


class Last(nn.Module):
    """A linear layer, and after it what a test names."""

    def __init__(self, then: Callable[[Tensor], Tensor] | None = None, last: nn.Module | None = None):
        super().__init__()
        self.linear, self.last = nn.Linear(16, 16), last
        self.then = then or (lambda h: h)

    def forward(self, x: Tensor) -> Tensor:
        h = self.then(self.linear(x))
        return h if self.last is None else self.last(h)


def images(h: Tensor) -> Tensor:
    return h.view(2, 4, 8, 16)


def two_readers(h: Tensor) -> Tensor:
    """The gradient of the softmax is the sum of the loss's own, and of one that is transposed."""
    weights = h.view(2, 32, 2, 8).softmax(-1)
    return torch.stack([weights, weights.transpose(1, 2).contiguous().exp().sin().transpose(1, 2)])


CASES: dict[str, Callable[[], nn.Module]] = {
    "group norm": lambda: Last(images, nn.GroupNorm(2, 4)),
    "group norm, channels last": lambda: Last(
        lambda h: images(h).contiguous(memory_format=torch.channels_last), nn.GroupNorm(2, 4)
    ),
    "rms norm": lambda: Last(last=nn.RMSNorm(16)),
    "view as real": lambda: Last(lambda h: torch.view_as_real(torch.fft.rfft(h))),
    "softmax": lambda: Last(lambda h: h.view(2, 32, 2, 8).softmax(-1)),
    "softmax of two readers": lambda: Last(two_readers),
    "log softmax": lambda: Last(lambda h: h.view(2, 32, 2, 8).log_softmax(-1)),
    "where": lambda: Last(lambda h: torch.where(h > 0, h.exp(), h)),
}
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded": lambda r: r.sum(),
    "transposed": lambda r: (r.transpose(0, -1).square() * 0.3).sum(),
    "transposed inside": lambda r: (r.transpose(1, -1).contiguous() * r.transpose(1, -1).exp()).sum(),
}


@pytest.mark.parametrize("case", every(3, list(CASES)))
def test_gradients_are_eagers(case: str) -> None:
    torch.manual_seed(0)
    model, x = CASES[case]().train(), torch.randn(2, 32, 16)
    traced = rekindle.trace(model, (x,), progress=False)
    for goal in ({"max_overhead": 0.0}, {"minimize": "memory"}):
        plan = rekindle.plan(traced, **goal, solver="storages", time_limit=0.2, progress=False, cache=False)
        planned = rekindle.apply(copy.deepcopy(model), plan)
        for name, loss in LOSSES.items():
            for m in (model, planned):
                m.zero_grad()
                loss(m(x)).backward()
            wrong = [k for k, p in model.named_parameters() if not torch.equal(p.grad, planned.get_parameter(k).grad)]
            assert wrong == [], f"{name} gradient, {goal}"
