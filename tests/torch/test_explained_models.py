"""Explanations of real models: repeated layers are one row, the screen fits, and the remedy is the right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import more_models
import pytest
import torch
from torch import nn

import rekindle
from marks import sweep
from rekindle import zoo
from rekindle.explain import Explanation
from rekindle.explain.screen import MIB
from rekindle.model.plan import Plan

COLUMNS, LINES = 80, 45


def planned(model: nn.Module, sample: Any, *, optimizer: str | None = None, **goal: Any) -> Plan:
    trace = rekindle.trace(model, sample, target="h100", optimizer=optimizer, progress=False)
    return rekindle.plan(trace, **(goal or {"budget": 1.0, "solver": "none"}), effort="quick", progress=False)


def column_of_mib(e: Explanation) -> list[float]:
    """The figures of the column "MiB saved", as they stand on the screen."""
    lines = str(e).split("\n")
    head = next(i for i, line in enumerate(lines) if line.startswith("module "))
    end = lines[head].index("MiB saved") + len("MiB saved")
    cells = [line[end - 12 : end].split()[-1] for line in lines[head + 2 : head + 2 + len(e.rows)]]
    return [0.0 if c == "-" else float(c.replace(",", "")) for c in cells]


LAYERS = 6


@pytest.fixture(scope="module")
def gpt() -> Plan:
    model, sample = zoo.load("gpt", n_layer=LAYERS, d=64, length=64, vocab=512, batch=2, fake=True)
    return planned(model, sample, minimize="memory", solver="every")


def check(plan: Plan, layers: str, count: int) -> None:
    """One screen, equal layers in one row, and the column of MiB adds up to the plan's saving."""
    e = plan.explain()
    lines = str(e).split("\n")
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    assert any(r.pattern.startswith(f"{layers}.*") and r.count == count for r in e.rows)
    assert not any(r.pattern.startswith(f"{layers}.0") for r in e.rows)
    assert e.saved_bytes == plan.baseline_peak_bytes - plan.peak_bytes > 0
    assert sum(r.saved_bytes for r in e.rows) == e.saved_bytes
    assert abs(sum(column_of_mib(e)) - e.saved_bytes / MIB) <= 0.01 * e.saved_bytes / MIB


def test_a_gpt_is_one_screen_that_adds_up(gpt: Plan) -> None:
    check(gpt, "blocks", LAYERS)


@sweep
def test_a_gpt_of_24_layers_is_one_screen_that_adds_up() -> None:
    check(planned(*more_models.load("gpt2_medium", batch=8, fake=True), budget=0.5), "transformer.h", 24)


def test_a_plan_from_a_file_explains_itself_the_same(gpt: Plan, tmp_path: Path) -> None:
    gpt.save(tmp_path / "plan.json")
    assert rekindle.load(tmp_path / "plan.json").explain() == gpt.explain()


def test_the_loss_is_named_with_its_remedy() -> None:
    model, sample = zoo.load("gpt", n_layer=2, d=32, length=64, vocab=20_000, batch=4, fake=True)
    said = str(planned(model, sample).explain())
    assert "The peak is the loss: logits 256×20000, 19.5 MiB" in " ".join(said.split())
    assert "chunked cross-entropy" in " ".join(said.split())


def test_attention_scores_are_named_with_their_remedy() -> None:
    model, sample = more_models.load("gpt_blocks", n_layer=2, d=32, length=256, batch=2, fake=True)
    said = " ".join(planned(model, sample).explain().remarks)
    assert "Attention scores 2×4×256×256" in said or "Attention scores 8×256×256" in said
    assert "scaled_dot_product_attention" in said


def test_a_model_that_calls_the_function_reads_why_it_holds_scores_all_the_same() -> None:
    model, sample = zoo.load("gpt", n_layer=2, d=32, length=512, vocab=64, batch=2, dropout=0.1, fake=True)
    trace = rekindle.trace(model, sample, target="cpu", progress=False)
    said = " ".join(rekindle.plan(trace, budget=1.0, solver="none", progress=False).explain().remarks)
    assert (
        "scaled_dot_product_attention runs its math kernel, which holds them: a CPU has no fused one with dropout"
        in said
    )
    assert "would not hold them" not in said


def test_parameters_and_the_optimizers_state_are_no_matter_of_a_plan() -> None:
    model, sample = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)), torch.rand(2, 1024)
    e = planned(model, sample, optimizer="adamw").explain()
    assert e.state_bytes == 8 * sum(p.numel() for p in model.parameters()) + 4 * len(list(model.parameters()))
    said = " ".join(e.remarks)
    assert "no plan for activations lowers them" in said
    assert "the optimizer's state 8.0 MiB" in said


class SameSizes(nn.Module):
    """As many classes as hidden units: the logits have the size of hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(2) for layer in (nn.Linear(128, 128), nn.GELU())))
        self.head = nn.Linear(128, 128)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.layers(x)), y)


def test_hidden_layers_of_the_size_of_the_logits_are_no_logits() -> None:
    plan = planned(SameSizes(), {"x": torch.randn(1024, 128), "y": torch.randint(128, (1024,))}, max_overhead=0.0)
    words = " ".join(str(plan.explain()).split())
    assert "logits 1024×128, 512.0 KiB, 2 times at once" in words
