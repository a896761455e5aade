"""What `auto` takes from the exact search on graphs of a few dozen ops."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rekindle
from rekindle import Graph, Schedule, simulate
from rekindle.ask import Fraction, MaxOverhead, PlanOptions
from rekindle.exact import search as exact
from rekindle.planning.planner import plan_graph

pytestmark = pytest.mark.sweep  # seconds to half a minute each


class Block(nn.Module):
    """A transformer block: 56 ops with its backward."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, heads, batch_first=True)
        self.second_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.second_norm(x))


@pytest.fixture(scope="module")
def block() -> Graph:
    return rekindle.trace(Block(), torch.randn(8, 128, 64), target="rtx2080ti").graph


@pytest.mark.parametrize(("cost", "most"), [("flops", 0.17), ("unit", 0.19)])
def test_half_the_memory_of_a_block_is_certified(block: Graph, cost: str, most: float) -> None:
    assert len(block.ops) <= 60
    plan = plan_graph(block, PlanOptions(Fraction(0.5), cost=cost))
    assert plan.gap <= 0.05
    assert plan.overhead <= most  # searches alone end at 0.32 and 0.25


class Gated(nn.Module):
    """Half of a transformer block with a gate: 30 ops with its backward, whose products read what forward saved."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.c = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.c(nn.functional.silu(self.a(y)) * self.b(y))


@pytest.mark.parametrize("cost", ["seconds", "flops"])
def test_half_the_memory_of_gated_blocks_is_certified(cost: str) -> None:
    graph = rekindle.trace(nn.Sequential(Gated(), Gated()), torch.randn(8, 64, 64), target="rtx2080ti").graph
    assert plan_graph(graph, PlanOptions(Fraction(0.5), cost=cost)).gap <= 0.05


def test_small_values_do_not_stand_in_the_way_of_a_certificate() -> None:
    """On this narrow block biases and statistics are a few thousandths of all bytes: enough to hide the bound once."""
    graph = rekindle.trace(Block(32, 2), torch.randn(2, 32, 32), target="rtx2080ti").graph
    assert plan_graph(graph, PlanOptions(Fraction(0.5), cost="flops", effort="thorough")).gap <= 0.01


@pytest.mark.parametrize("fraction", [0.5, 0.6])
def test_a_round_fraction_is_answered_as_the_exact_search_does(block: Graph, fraction: float) -> None:
    plan = plan_graph(block, PlanOptions(Fraction(fraction), cost="unit"))
    plain = simulate(block, Schedule.baseline(block)).peak_bytes - block.resident_bytes
    limit = block.resident_bytes + int(fraction * plain)
    best = exact.solve(block, block.weights("unit"), limit, nodes=100_000, safe=True).schedule
    assert best is not None
    assert plan.overhead <= simulate(block, best, "unit").overhead + 1e-9


def test_more_overhead_is_never_larger_below_what_the_searches_reach(block: Graph) -> None:
    peaks = [plan_graph(block, PlanOptions(MaxOverhead(x), cost="flops")).peak_bytes for x in (0.15, 0.2, 0.4)]
    assert peaks == sorted(peaks, reverse=True)
    within = plan_graph(block, PlanOptions(Fraction(0.5), cost="flops"))
    assert plan_graph(block, PlanOptions(MaxOverhead(within.overhead), cost="flops")).peak_bytes <= within.peak_bytes
