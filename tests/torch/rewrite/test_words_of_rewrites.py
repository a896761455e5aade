"""A rewrite that is found says in words which modules it is about, and along which dimension they are cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn

import rekindle
from rekindle.model.judge import plain_activation_bytes
from rekindle.model.rewriting import CONVOLUTIONS, SAVES, SLICES, Rewrite
from rekindle.torch.capture.captured import Captured
from rekindle.torch.operators.table import by_overload
from rekindle.torch.rewrite import unsliced
from rekindle.torch.rewrite.candidates import Rewrites
from rekindle.torch.rewrite.cuts import cuts_of
from rekindle.torch.rewrite.finding import Allowed
from rekindle.torch.rewrite.wording import span_of, told


def layers() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(), nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(288, 16),
    )  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = layers()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.features(x)


def captured(model: nn.Module, x: torch.Tensor) -> Captured:
    found: Captured = rekindle.trace(model, x, target="h200").lowered.captured
    return found


def cut(c: Captured, dim: int, which: Callable[[fx.Node], bool]) -> Rewrite:
    """The ops that `which` chooses and that can be cut along this dimension of their results."""
    ways = {i: [k for k in cuts_of(n) if k.outs[0] == dim] for i, n in enumerate(c.nodes) if which(n)}
    known = {i: (k[0].ins, k[0].outs) for i, k in ways.items() if k}
    return Rewrite(SLICES, tuple(known), 2, tuple(known.values()))


def rewrites() -> Rewrites:
    trace = rekindle.trace(Net(), torch.randn(8, 3, 16, 16), target="h200")
    return Rewrites(trace.lowered, plain_activation_bytes(trace.graph))


def test_smaller_saves_are_counted_by_layer() -> None:
    steps = rewrites().smaller_saves()
    words = {s.kind: s.where for s in steps}
    assert words[CONVOLUTIONS] == "features.4"  # the first one gives no gradient of its input
    assert set(words[SAVES].split(", ")) == {"signs of 2 ReLUs", "offsets of 1 pool", "masks of 1 dropout"}


def test_regions_that_are_found_have_words() -> None:
    found = rewrites()
    sliced = [s for s in found.in_slices(Allowed(lambda n, k: True, None)) if s.kind == SLICES]
    assert sliced
    for s in sliced:
        assert s.where.startswith("features.")
        assert s.where.split(", ")[1] in ("along the batch", "along the channels", "along the rows")


@pytest.mark.parametrize(("dim", "words"), [(0, "the batch"), (1, "the channels"), (2, "dimension 2")])
def test_a_dimension_has_the_name_that_users_give_it(dim: int, words: str) -> None:
    c = captured(Net(), torch.randn(8, 3, 16, 16))
    step = cut(c, dim, lambda n: n.target is torch.ops.aten.relu.default)
    assert told(c, step).where == f"features.1-5, along {words}"
    assert told(c, step) == step, "words are no part of what a rewrite is"


def test_dimensions_of_matrices_and_of_attention() -> None:
    c = captured(nn.Sequential(nn.Linear(16, 32), nn.GELU()), torch.randn(8, 16))
    gelu = torch.ops.aten.gelu.default
    assert told(c, cut(c, 0, lambda n: n.target is gelu)).where == "1, along the rows"
    assert told(c, cut(c, 1, lambda n: n.target is gelu)).where == "1, along dimension 1"

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).view(2, 8, 3, 4, 4).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(q, k, v)

    c = captured(Attention(), torch.randn(2, 8, 16))
    made = cut(c, 1, lambda n: "attention" in str(n.target) and "backward" not in str(n.target))
    assert told(c, made).where == "along the heads"  # an op of the model itself is in no module


def test_the_first_and_the_last_module_name_a_region() -> None:
    assert span_of(["features.9", "features.10"]) == "features.9-10"
    assert span_of(["h.1", "h.0"]) == "h.1 to h.0"
    assert span_of(["h.0.fc", "h.0.act"]) == "h.0.fc to h.0.act"
    assert span_of(["0", "3"]) == "0-3"


def test_words_are_printable_and_short() -> None:
    model = nn.Module()
    model.add_module("a\x1b" * 150, layers())
    model.forward = lambda x: next(model.children())(x)  # type: ignore[assignment,method-assign]
    c = captured(model, torch.randn(8, 3, 16, 16))
    where = told(c, cut(c, 0, lambda n: n.target is torch.ops.aten.relu.default)).where
    assert where.isprintable()
    assert len(where) == 200


def test_every_op_that_reads_a_smaller_save_has_words_for_it() -> None:
    assert set(unsliced.SMALLER) == set(by_overload("saved"))
