"""Calls that vary along two or three sizes: eager's bits, few captures, and planning that takes a bounded part of the run."""

from __future__ import annotations

import copy
import itertools
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import every, sweep
from rekindle import PlanMismatch, RekindleWarning, allowance
from rekindle.torch.capture import capture as capturing
from rekindle.torch.serve.said_once import NewShapes

GOAL: dict[str, Any] = {"minimize": "memory", "solver": "storages", "effort": "quick"}
SHAPES = [(5, 7, 4), (12, 9, 4), (17, 30, 4), (30, 11, 4), (9, 25, 4), (25, 6, 4), (14, 19, 4), (8, 8, 4), (21, 40, 4)]


class Translator(nn.Module):
    """An encoder and a decoder with masks, positions, dropout, BatchNorm and a loss: sizes of source, target and batch enter
    its constants and shapes in every way."""

    def __init__(self, change: Callable[[torch.Tensor, int, int], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.embed, self.positions, self.norm = nn.Embedding(50, 16), nn.Embedding(64, 16), nn.BatchNorm1d(16)
        self.own, self.cross = (nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True) for _ in range(2))
        self.drop, self.up, self.head, self.change = nn.Dropout(0.1), nn.Linear(16, 16), nn.Linear(16, 50), change

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        s, t = source.shape[1], target.shape[1]
        memory = self.embed(source) + self.positions(torch.arange(s))
        memory = self.drop(self.norm(memory.transpose(1, 2)).transpose(1, 2))
        h = self.embed(target) + self.positions(torch.arange(t))
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        h = h + self.own(h, h, h, attn_mask=mask, need_weights=False)[0]
        h = self.drop(h + self.cross(h, memory, memory, need_weights=False)[0])
        both = torch.cat([memory, h], 1).mean(1, keepdim=True) * (s + t) ** 0
        h = h + self.up(h.relu()) + both / t
        if self.change is not None:
            h = self.change(h, s, t)
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1), target.flatten())


def tokens(source: int, target: int, batch: int) -> tuple[torch.Tensor, ...]:
    return torch.randint(0, 50, (batch, source)), torch.randint(0, 50, (batch, target))


def pair(model: nn.Module, *, sample: Any = None, **how: Any) -> tuple[Any, Any]:
    goal = GOAL if how.keys().isdisjoint({"budget", "minimize"}) else {}
    return model, rekindle.checkpoint(copy.deepcopy(model), sample or tokens(20, 15, 4), **goal, **how)


def equal(plain: nn.Module, planned: nn.Module, given: Any) -> bool:
    """Whether one step of each gives the same loss, gradients and buffers."""
    found = []
    for m in (plain, planned):
        m.zero_grad()
        torch.manual_seed(1)
        made = m(**given) if isinstance(given, dict) else m(*given)
        loss = made if isinstance(made, torch.Tensor) else made.loss
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in m.parameters() if p.grad is not None), *m.buffers()])
    return len(found[0]) == len(found[1]) and all(map(torch.equal, *found))


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning may take as long as it does on a busy machine."""
    limit(monkeypatch, 1e9, 1.0)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each capture."""
    made: list[int] = []
    capture = capturing._capture
    monkeypatch.setattr(capturing, "_capture", lambda *a: (made.append(1), capture(*a))[1])
    return made


@pytest.mark.parametrize("seed", every(5, range(5)))
def test_two_sizes_are_learnt_in_any_order(seed: int, captures: list[int]) -> None:
    plain, planned = pair(Translator())
    captures.clear()
    for shape in random.Random(seed).sample(SHAPES, len(SHAPES)):
        assert equal(plain, planned, tokens(*shape))
        assert planned.forward.last.trace.key[0][0][0][1] == shape[0]
    assert len(captures) <= 4


@pytest.mark.parametrize("seed", every(4, range(4)))
def test_three_sizes_are_learnt_in_any_order(seed: int, captures: list[int]) -> None:
    chosen = random.Random(seed)
    plain, planned = pair(Translator())
    for _ in range(6):
        assert equal(plain, planned, tokens(chosen.randint(2, 40), chosen.randint(2, 40), chosen.randint(2, 9)))
    captures.clear()
    for _ in range(8):
        assert equal(plain, planned, tokens(chosen.randint(2, 40), chosen.randint(2, 40), chosen.randint(2, 9)))
    assert len(captures) <= 2


def test_a_last_batch_of_each_epoch_is_learnt_too(captures: list[int]) -> None:
    plain, planned = pair(Translator())
    for shape in SHAPES[:5]:
        assert equal(plain, planned, tokens(*shape))
    assert equal(plain, planned, tokens(13, 22, 3))
    captures.clear()
    for shape in [*SHAPES[5:7], (18, 31, 3), (27, 10, 3), (10, 27, 2)]:
        assert equal(plain, planned, tokens(*shape))
    assert not captures


@sweep
def test_lengths_of_one_and_equal_lengths_give_the_same_bits() -> None:
    plain, planned = pair(Translator(), sample=tokens(9, 9, 4))
    for source, target in itertools.product((1, 4, 9, 16), repeat=2):
        assert equal(plain, planned, tokens(source, target, 4))
        assert planned.forward.last.trace.key[0][0][0] == (4, source)
    assert equal(plain, planned, tokens(6, 3, 1))


def longer_source(h: torch.Tensor, s: int, t: int) -> torch.Tensor:
    return h.clamp(max=1e6) if s > t else h  # another op, and the same bits


def other_constant(h: torch.Tensor, s: int, t: int) -> torch.Tensor:
    return h * (1.0 + (s > t) * 2.0**-40)  # another constant, and the same bits


@pytest.mark.parametrize("change", every(2, [longer_source, other_constant]))
def test_two_ways_through_forward_are_each_learnt(change: Any, captures: list[int]) -> None:
    plain, planned = pair(Translator(change))
    for shape in SHAPES:
        assert equal(plain, planned, tokens(*shape))
    captures.clear()
    for shape in [(11, 33, 4), (33, 11, 4), (6, 29, 4), (31, 16, 4)]:
        assert equal(plain, planned, tokens(*shape))
        followed = planned.forward.last.trace.graph.hash
        assert followed == rekindle.trace(plain, tokens(*shape), target="h200").graph.hash
        captures.pop()
    assert not captures


def t5(source: int, target: int, padded: int) -> dict[str, torch.Tensor]:
    ids, labels = torch.randint(2, 64, (3, source)), torch.randint(2, 64, (3, target))
    mask = torch.ones_like(ids)
    mask[1, source - padded :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@sweep
def test_a_t5_is_learnt(captures: list[int]) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=64,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        dropout_rate=0.1,
    )
    plain, planned = pair(transformers.T5ForConditionalGeneration(config).train(), sample=t5(20, 15, 5))
    captures.clear()
    for source, target, _ in SHAPES * 2:
        assert equal(plain, planned, t5(source + len(captures), target, source // 2))
    assert len(captures) <= 5


# -- the time that planning takes ------------------------------------------------------------------------------------------
def warned(steps: Callable[[], None]) -> list[str]:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", RekindleWarning)
        steps()
    return [str(w.message) for w in given if w.category is RekindleWarning]


def limit(monkeypatch: pytest.MonkeyPatch, seconds: float, share: float) -> None:
    given = replace(allowance.SETTINGS, mid_run_least_s=seconds, mid_run_share=share)
    monkeypatch.setattr(allowance, "SETTINGS", given)


def test_where_planning_takes_too_long_new_shapes_run_plain_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, captures: list[int]
) -> None:
    plain, planned = pair(Translator())
    assert equal(plain, planned, tokens(12, 9, 4))
    captures.clear()
    limit(monkeypatch, 0.0, 0.0)

    def steps() -> None:
        for shape in SHAPES:
            assert equal(plain, planned, tokens(*shape))

    (warning,) = warned(steps)
    assert not captures
    for words in ("pad lengths to a multiple", "its first plan included", "run plain"):
        assert words in warning
    assert len(list(planned.forward.bounds)) == 2
    limit(monkeypatch, 0.0, 1.0)
    assert warned(steps) == []
    assert captures
    assert len(list(planned.forward.bounds)) == 1 + len(SHAPES)


def test_a_change_for_which_planning_takes_too_long_is_named_and_is_no_new_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.ones(1, 4)
    plain, planned = pair(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)), sample=(x,))
    limit(monkeypatch, 0.0, 0.0)

    def steps() -> None:
        for p in 0.0, 0.25:
            plain[1].p = planned[1].p = p
            assert equal(plain, planned, (x,))

    (warning,) = warned(steps)
    assert "no plan, 1.p having changed. Plans for new calls took" in warning
    assert "pad lengths" not in warning


def test_the_first_plan_is_a_part_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 0.0, 0.1)
    for first_s, late in ((0.0, True), (100.0, False)):
        shapes = NewShapes(first_s)
        shapes.begin()
        with shapes.timed():
            sum(range(10**5))
        assert bool(shapes.take_too_long("")) is late


class TwoBlocks(nn.Module):
    """Two parts of different kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        self.two = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x)).square().mean()


def in_parts(**goal: Any) -> Any:
    model, x = TwoBlocks(), torch.randn(256, 32)
    return rekindle.checkpoint(model, x, parts=["one", "two"], **({"effort": "quick"} | goal))


def test_parts_share_the_time_of_planning_and_their_lines(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    planned = in_parts(minimize="memory")
    capfd.readouterr()
    planned(torch.randn(200, 32)).backward()
    assert capfd.readouterr().err.count("was called with inputs") == 1
    limit(monkeypatch, 0.0, 0.0)
    (warning,) = warned(lambda: planned(torch.randn(100, 32)).backward())
    assert "run plain" in warning
    assert rekindle.status(planned).plain[0].calls == 2


def test_a_part_runs_plain_only_where_the_whole_plain_step_keeps_the_budget(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = in_parts(minimize="memory").forward.plan.baseline_peak_bytes
    limit(monkeypatch, 0.0, 0.0)
    for budget, plain_calls in ((int(0.9 * plain), 0), (2 * plain, 3)):  # the first call of a part is planned
        planned = in_parts(budget=budget, max_overhead=None)
        capfd.readouterr()
        for n in (200, 100):
            planned(torch.randn(n, 32)).backward()
        assert sum(x.calls for x in rekindle.status(planned).plain) == plain_calls
        assert capfd.readouterr().err.count("planned at once") == (not plain_calls)


def test_calls_without_a_plan_are_errors_however_long_planning_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    _, planned = pair(Translator(), on_new_shape="error")
    limit(monkeypatch, 0.0, 0.0)
    with pytest.raises(PlanMismatch, match="no plan"):
        planned(*tokens(*SHAPES[0]))


def test_a_budget_in_bytes_is_kept_however_long_planning_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call runs plain only if a larger one would keep the budget."""
    plain, planned = pair(Translator(), sample=tokens(30, 30, 4), budget="260KiB", solver="storages", effort="quick")
    assert planned.forward.plan.baseline_peak_bytes > 260 * 2**10
    assert equal(plain, planned, tokens(12, 12, 4))
    assert planned.forward.last.plan.baseline_peak_bytes < 260 * 2**10
    limit(monkeypatch, 0.0, 0.0)
    assert equal(plain, planned, tokens(33, 31, 4))
    assert planned.forward.last.trace.key[0][0][0] == (4, 33)
    (warning,) = warned(lambda: planned(*tokens(11, 5, 4)).backward())
    assert "run plain" in warning
    assert planned.forward.last.trace.key[0][0][0] == (4, 33)


def test_one_line_for_the_first_new_shape_and_one_summary(capfd: pytest.CaptureFixture[str]) -> None:
    _, planned = pair(nn.Linear(4, 4), sample=(torch.randn(8, 4),), minimize="memory", solver="none")
    capfd.readouterr()
    for batch in range(1, 12):
        planned(torch.randn(batch, 4)).sum().backward()
    first, summary = capfd.readouterr().err.splitlines()
    assert "Linear was called with inputs [1, 4]: " in first
    assert "4 new shapes so far" in summary
    assert "pad lengths to a multiple" in summary
