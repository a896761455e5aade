"""What operators give on tensors without data is remembered, and is what they would give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import models
from rekindle.bench.remembered import Remembered
from rekindle.torch.costs.modelled import ModelledTime
from rekindle.torch.measure.memory import storage_peak
from rekindle.torch.operators.flops import FlopCount


def described(t: Any) -> Any:
    return t if not isinstance(t, torch.Tensor) else (type(t), t.shape, t.stride(), t.dtype, t.device, t.requires_grad)


def several(out: Any) -> Any:
    return out if isinstance(out, tuple | list) else (out,)


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "new": lambda x: x @ x,
    "several": lambda x: torch.ops.aten.native_layer_norm(x, [8], None, None, 1e-5),
    "integers": lambda x: x.max(1),
    "transposed": lambda x: x.t() + x.t(),
    "view": lambda x: x.view(64),
    "undeclared view": lambda x: torch.ops.aten._unsafe_view(x, [64]),
    "in place": lambda x: x.relu_(),
    "other memory": lambda x: x.set_(torch.empty(64)),
    "nothing to differentiate": lambda x: torch.ops.aten.convolution_backward(
        x.view(1, 1, 8, 8), x.view(1, 1, 8, 8), torch.empty(1, 1, 1, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
        [False, True, False],
    ),
    "a truth beside a number": lambda x: (x.sum(1, True), x.sum(1, False), x.sum((0, 1))),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_same_again(name: str) -> None:
    with FakeTensorMode() as fake:
        plain = CALLS[name](torch.empty(8, 8))
        with Remembered(fake) as remembered:
            for _ in range(3):
                x = torch.empty(8, 8)
                given = x.untyped_storage()
                out = CALLS[name](x)
                assert list(map(described, several(plain))) == list(map(described, several(out)))
                shares = [isinstance(t, FakeTensor) and t.untyped_storage() is given for t in several(out)]
                assert any(shares) == ("view" in name or name == "in place")
        assert remembered.known


STEPS = ["cnn", "unet", "inplace_cnn", "other_norms", "gpt", "lstm_unrolled", "attention"]
STEPS += ["views_of_views", "own_function", "writes_over_its_input", "many_functions", "results_are_arguments"]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_measures_the_same(name: str) -> None:
    with FakeTensorMode() as fake:
        model, sample = models.make(name)

        def step() -> None:
            models.loss_of(models.call(model, sample)).backward()  # type: ignore[no-untyped-call]

        def measured() -> tuple[Any, ...]:
            flops, time = FlopCount(), ModelledTime("h200")
            return storage_peak(step, model.parameters(), (flops, time)), flops.total, time.total

        step()  # the gradients exist from here on
        plain = measured()
        with Remembered(fake) as remembered:
            assert measured() == plain
            assert measured() == plain
        assert any(found is not None for found in remembered.known.values())
