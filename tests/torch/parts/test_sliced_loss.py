"""A language model's loss in slices of rows: its numbers, and where it must stay whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import rekindle
from rekindle.compiling import IN_SLICES, CompileOptions
from rekindle.errors import UsageError
from rekindle.torch.compiled import sliced_loss
from rekindle.torch.compiled.whole_graph import StagedForward

WIDTH, WORDS = 8, 24


class Language(nn.Module):
    """A product with a weight, steps on its rows, and a loss."""

    def __init__(self, loss: Callable[..., Any], bias: bool = False):
        super().__init__()
        self.norm, self.head, self.loss = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=bias), loss

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.norm(x))
        return {"loss": self.loss(logits, labels), "logits": logits}


def flat(logits: torch.Tensor, labels: torch.Tensor, **how: Any) -> torch.Tensor:
    return F.cross_entropy(logits.view(-1, WORDS), labels.view(-1), **how)


def shifted(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """As GPT-2 had it for years."""
    return flat(logits.float()[..., :-1, :].contiguous(), labels[..., 1:].contiguous())


def shifted_by_slices(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if labels.shape[0] % 2:
        return flat(logits[:, :-1, :].contiguous(), labels[:, 1:].contiguous())
    return flat(logits[:, :-1].contiguous(), labels[:, 1:].contiguous())


def capped(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """As in Gemma 2."""
    return flat(torch.tanh(logits / 3.0) * 3.0, labels, reduction="sum")


def smooth(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return flat(logits, labels, label_smoothing=0.1, ignore_index=3)


LOSSES = {"flat": flat, "shifted": shifted, "by slices": shifted_by_slices, "capped": capped, "smooth": smooth}


def stage(model: nn.Module, *inputs: torch.Tensor, unused: tuple[str, ...] = ("logits",)) -> tuple[Any, list[Any]]:
    """(the only stage of the model's forward, the tensors that it is called with)."""
    staged, seen = StagedForward(model, CompileOptions(), None, unused), []
    staged.raises = True

    def noted(found: Any, *tensors: torch.Tensor) -> Any:
        seen.append((found, [*tensors]))
        return type(found).forward(found, *tensors)

    with staged.calls_noted(noted):
        staged(*inputs)
    ((found, tensors),) = seen
    return found, tensors


def outcome(graph: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    given = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    result = graph(*given)
    loss = result[0] if isinstance(result, tuple | list) else result
    (3.0 * loss).backward()
    return [loss.detach(), *(t.grad for t in given if t.requires_grad)]


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(LOSSES)), bias=st.booleans(), batch=st.integers(1, 3), length=st.integers(2, 20),
    most=st.integers(1, 20), ignored=st.integers(0, 3), way=st.sampled_from(IN_SLICES), seed=st.integers(0, 99),
)  # fmt: skip
def test_slices_have_the_numbers_of_the_whole_loss(
    name: str, bias: bool, batch: int, length: int, most: int, ignored: int, way: str, seed: int
) -> None:
    torch.manual_seed(seed)
    torch._dynamo.reset()
    x, labels = torch.randn(batch, length, WIDTH, requires_grad=True), torch.randint(0, WORDS, (batch, length))
    labels[torch.rand(labels.shape) < ignored / 4] = -100 if name != "smooth" else 3
    found, tensors = stage(Language(LOSSES[name], bias), x, labels)
    before = sliced_loss.SLICES_MOST
    sliced_loss.SLICES_MOST = most
    try:
        assert found.has_slices(way)
        made = found.body(way)
    finally:
        sliced_loss.SLICES_MOST = before
    for ours, theirs in zip(outcome(made, tensors), outcome(found, tensors), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("way", IN_SLICES)
def test_gradients_of_half_precision_slices_are_added_up_exactly(way: str) -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(2, 256, WIDTH, dtype=torch.bfloat16, requires_grad=True), torch.randint(0, WORDS, (2, 256))
    model = Language(lambda logits, labels: flat(logits.float(), labels)).bfloat16()
    found, tensors = stage(model, x, labels)
    ours, theirs = (outcome(graph, tensors) for graph in (found.body(way), found))
    exact = outcome(found, [t.double() if t.is_floating_point() else t for t in tensors])
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert a.dtype == b.dtype
        if a.shape != (WORDS, WIDTH):  # the head's weight, to whose gradient each slice adds
            continue
        assert (a - c).abs().mean() <= 1.5 * (b - c).abs().mean() + 1e-6


@pytest.mark.parametrize(
    ("loss", "unused", "dtype", "ways"),
    [
        (flat, (), torch.float32, set()),  # the caller reads the logits
        (lambda z, y: flat(z, y, weight=torch.ones(WORDS)), ("logits",), torch.float32, set()),
        (lambda z, y: flat(z, y, reduction="none").sum(), ("logits",), torch.float32, set()),
        (lambda z, y: flat(z, y) + z.square().mean(), ("logits",), torch.float32, set()),  # a loss beside it
        (lambda z, y: flat(z.softmax(1), y), ("logits",), torch.float32, set()),  # mixes rows
        (lambda z, y: F.cross_entropy(z.transpose(1, 2), y), ("logits",), torch.float32, set()),
        (lambda z, y: flat(z * y.unsqueeze(-1), y), ("logits",), torch.float32, set()),
        (lambda z, y: flat(z.view(torch.int32).view(torch.float32), y), ("logits",), torch.float32, set()),
        (lambda z, y: F.cross_entropy(z[0, 0], y[0, 0].float().expand(WORDS)), ("logits",), torch.float32, set()),
        (lambda z, y: (torch.zeros(1).add_(1), flat(z, y))[1], ("logits",), torch.float32, set()),  # writes in between
        (flat, ("logits",), torch.float16, {"slices"}),  # gradients without the loss's scale would be zeros
        (flat, ("logits",), torch.float32, {*IN_SLICES}),
    ],
)
def test_other_losses_stay_whole(loss: Any, unused: tuple[str, ...], dtype: torch.dtype, ways: set[str]) -> None:
    x, labels = torch.randn(2, 5, WIDTH, dtype=dtype, requires_grad=True), torch.randint(0, WORDS, (2, 5))
    found, _ = stage(Language(loss).to(dtype), x, labels, unused=unused)
    assert {way for way in IN_SLICES if found.has_slices(way)} == ways


def test_a_product_does_not_move_out_of_its_surroundings() -> None:
    class Frozen(Language):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            with torch.no_grad():
                logits = self.head(x)
            return {"loss": flat(logits, labels) + x.sum(), "logits": logits}

    class Halves(Language):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            with torch.autocast("cpu", torch.bfloat16):
                logits = self.head(x)
            return {"loss": flat(logits.float(), labels), "logits": logits}

    for kind in (Frozen, Halves):
        x, labels = torch.randn(2, 5, WIDTH, requires_grad=True), torch.randint(0, WORDS, (2, 5))
        found, _ = stage(kind(flat), x, labels)
        assert not any(found.has_slices(way) for way in IN_SLICES)


def test_losses_of_what_is_no_product_stay_whole() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p, self.head = nn.Parameter(torch.randn(6, WORDS)), nn.Linear(WIDTH, WORDS)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            a, b = self.head(x).chunk(2, 0)
            return F.cross_entropy(self.p, labels) + F.cross_entropy(a.reshape(-1, WORDS), labels[:3]) + b.sum()

    found, _ = stage(Two(), torch.randn(6, WIDTH), torch.randint(0, WORDS, (6,)), unused=())
    assert not any(found.has_slices(way) for way in IN_SLICES)


def test_two_losses_and_a_double_precision_one() -> None:
    class Both(Language):
        def __init__(self) -> None:
            super().__init__(flat)
            self.other = nn.Linear(WIDTH, WORDS)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            z, logits = self.head(self.norm(x)), self.other(x)
            return {"loss": flat(z, labels, reduction="sum") + flat(logits, labels), "logits": [z, logits]}

    x, labels = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True), torch.randint(0, WORDS, (2, 5))
    found, tensors = stage(Both().double(), x, labels)
    for way in IN_SLICES:
        assert len([n for n in found.body(way).graph.nodes if n.op == "call_module"]) == 2
        for ours, theirs in zip(outcome(found.body(way), tensors), outcome(found, tensors), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


class Chain(nn.Module):
    """Blocks with a head, whose logits are large."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3))
        self.head = nn.Linear(32, 2048, bias=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        for b in self.blocks:
            x = x + b(x)
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.view(-1, 2048), labels.view(-1)), "logits": logits}


def test_unused_logits_are_never_whole() -> None:
    torch.manual_seed(0)
    model, sample = Chain(), {"x": torch.randn(4, 128, 32), "labels": torch.randint(0, 2048, (4, 128))}
    logits_bytes = 4 * 128 * 2048 * 4
    rekindle.checkpoint(model, sample, 0.1, or_least=True, compile=True, unused=["logits"], progress=False)
    plan = model.forward.plan  # type: ignore[union-attr]
    assert plan.parts[-1].compiled.saves in IN_SLICES
    assert plan.activation_peak_bytes < logits_bytes / 2
    assert model(**sample)["logits"] is None
    checked = rekindle.verify(model, sample)
    assert checked.ok, checked
    assert abs(checked.peak_error) < 0.01
    with torch.no_grad():  # which runs as it is
        assert model(**sample)["logits"].shape == (4, 128, 2048)


def test_an_input_among_unused_results_stays_an_input() -> None:
    class Returns(Chain):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {**super().forward(x, labels), "x": x}

    model, sample = Returns(), {"x": torch.randn(4, 64, 32), "labels": torch.randint(0, 2048, (4, 64))}
    rekindle.checkpoint(
        model, sample, 0.1, or_least=True, compile=True, unused=["logits", "x"], effort="quick", progress=False
    )
    result = model(**sample)
    assert result["logits"] is None
    assert result["x"] is None or result["x"] is sample["x"]
    assert rekindle.verify(model, sample).ok


class Keeps(Chain):
    """The model keeps its logits."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = super().forward(x, labels)
        self.last = found["logits"]
        return found


class Plain:
    def __init__(self, logits: torch.Tensor):
        self.logits = logits


class Wraps(Chain):
    """The logits stand at two places, one of which torch.compile's graph does not tell of."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        found = super().forward(x, labels)
        return {**found, "also": Plain(found["logits"])}


class Hides(Chain):
    """The graph does not tell of the logits' place."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        found = super().forward(x, labels)
        return {"loss": found["loss"], "also": Plain(found["logits"])}


@pytest.mark.parametrize(
    ("kind", "unused", "words"),
    [
        (Chain, "logit", "logits"),
        (Chain, "loss", "backward starts"),
        (Keeps, "logits", "keeps one of them"),
        (Wraps, "logits", "cannot leave"),
        (Hides, "also.logits", "cannot leave"),
    ],
)
def test_what_cannot_be_left_out_is_told(kind: type[Chain], unused: str, words: str) -> None:
    sample = {"x": torch.randn(1, 2, 32), "labels": torch.randint(0, 2048, (1, 2))}
    with pytest.raises(UsageError, match=words):
        rekindle.checkpoint(kind(), sample, 0.5, compile=True, unused=[unused], progress=False)


class Result(NamedTuple):
    loss: torch.Tensor
    aux: dict[str, torch.Tensor]


class Nested(Language):
    """Unused results in a named tuple, and one that only another unused one reads."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Result:  # type: ignore[override]
        logits = self.head(self.norm(x))
        return Result(flat(logits, labels), {"logits": logits, "probs": logits.softmax(-1)})


class Asserts(Language):
    """An assertion, whose result nobody reads."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        torch._assert_async(labels.max() < WORDS - 1)
        return super().forward(x, labels)


def test_what_nobody_reads_runs_still() -> None:
    x, labels = torch.randn(2, 5, WIDTH, requires_grad=True), torch.randint(0, WORDS - 1, (2, 5))
    model = Asserts(flat)
    staged = StagedForward(model, CompileOptions(), None, ("logits",))
    staged.raises = True
    assert staged(x, labels)["logits"] is None
    with pytest.raises(RuntimeError, match="Expected|assert"):
        staged(x, labels.clamp(min=WORDS - 1))


def test_results_that_only_unused_ones_read_are_not_made() -> None:
    x, labels = torch.randn(2, 5, WIDTH, requires_grad=True), torch.randint(0, WORDS, (2, 5))
    found, _ = stage(Nested(flat), x, labels, unused=("aux.logits", "1.probs"))
    assert found.has_slices("slices")
    model = Nested(flat)
    staged = StagedForward(model, CompileOptions(), None, ("aux",))
    assert staged(x, labels).aux == {"logits": None, "probs": None}
