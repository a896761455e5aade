"""Samples for the measured check: copied with their ties, strides and hooks, and left as they were."""

from __future__ import annotations

import torch
from torch import nn

import rekindle
from checked_models import planned
from rekindle.torch.measure.memory import allocator_peak
from rekindle.torch.run.sample import Sample


class Keyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: list[torch.Tensor]) -> torch.Tensor:
        return torch.tanh(self.layer(a) + self.layer(b)) * c[0] + c[1]


def test_samples_keep_their_ties_strides_and_hooks() -> None:
    base = torch.arange(600.0).reshape(20, 30)[3:, 2:]
    leaf = torch.rand(4, 6).requires_grad_()
    called: list[int] = []
    leaf.register_hook(lambda g: called.append(1))
    given = {
        "a": base[:4, :6], "b": base[1:5, 1:7], "wide": torch.rand(1, 6).expand(4, 6), "t": torch.rand(6, 4).t(),
        "again": base[:4, :6], "leaf": leaf, "non_leaf": leaf * 2, "empty": torch.rand(0, 6), "bits": torch.rand(3) > 0.5,
        "conj": torch.rand(4, dtype=torch.complex64).conj(), "scalar": torch.tensor(3),
    }  # fmt: skip
    given["same"] = given["a"]
    sample = Sample(nn.Linear(1, 1), (), given, False)
    _, kwargs, _ = sample.fresh()
    for k, t in given.items():
        twin = kwargs[k]
        assert (twin.shape, twin.stride(), twin.dtype, twin.requires_grad) == (
            t.shape,
            t.stride(),
            t.dtype,
            t.requires_grad,
        )
        assert torch.equal(twin, t)
        assert twin.is_leaf == t.is_leaf
        if t.numel():
            assert twin.untyped_storage().data_ptr() != t.untyped_storage().data_ptr()
    assert kwargs["same"] is kwargs["a"]
    assert not kwargs["non_leaf"]._is_view()  # it may be written to
    kwargs["a"].zero_()
    assert (kwargs["b"] == 0).sum() == 15  # what they share they share still
    assert (kwargs["again"] == 0).all()
    assert base.min() > 0
    assert not called


def test_a_small_part_of_a_large_tensor_is_copied_alone() -> None:
    data = torch.rand(1000, 16)
    sample = Sample(nn.Linear(1, 1), (data[500:508],), {}, False)
    peak = allocator_peak(sample.fresh).peak_bytes
    assert peak <= 8 * 16 * 4 + 512


def test_a_parameter_given_as_sample_stays_the_parameter() -> None:
    layer = nn.Linear(4, 4)
    _, _, (twin,) = Sample(layer, (layer.weight,), {}, False).fresh()
    assert twin is layer.weight


def test_tied_and_expanded_samples_are_verified() -> None:
    model = Keyword()
    a = torch.rand(4, 6).requires_grad_()
    c = [torch.rand(1, 6).expand(4, 6), torch.rand(4, 6)]
    sample = {"a": a, "b": torch.rand(4, 6).requires_grad_(), "c": c}
    plan = planned(model, sample)
    for _ in range(2):  # nothing of the user's graph is used up
        assert rekindle.verify(model, sample, plan).ok
    assert a.grad is None
