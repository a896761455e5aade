"""Small nets, and plans of their steps with rewrites that a test chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from rekindle.ask import LeastMemory, PlanOptions, TraceOptions
from rekindle.model.plan import Plan
from rekindle.model.rewriting import SLICES, Rewrite, Rewriting
from rekindle.planning.own_terms import beside_captured, own_goal, plain_figures
from rekindle.planning.planner import plan_graph
from rekindle.torch import accept
from rekindle.torch.rewrite.closeness import sums
from rekindle.torch.rewrite.probe import Bits
from rekindle.torch.rewrite.region import Region
from rekindle.torch.rewrite.rewritten import with_rewrites
from rekindle.torch.run import stages
from rekindle.torch.serve.plan_trace import bookkeeping
from rekindle.torch.trace import Trace, trace_call

OPTIONS = PlanOptions(LeastMemory(), "storages", "flops", effort="quick", time_limit=0.1, cache=False)


def traced(model: nn.Module, sample: Any) -> Trace:
    """The captured step."""
    args, kwargs = accept.sample(sample)
    return trace_call(model, args, kwargs, TraceOptions())


def as_rewrite(nodes: Sequence[fx.Node], region: Region) -> Rewrite:
    """The rewrite by which the ops of a region run in slices. nodes : of the step, in order."""
    place = {n: i for i, n in enumerate(nodes)}
    ops = sorted(place[n] for n in region.cuts)
    dims = tuple((region.cuts[nodes[i]].ins, region.cuts[nodes[i]].outs) for i in ops)
    return Rewrite(SLICES, tuple(ops), region.slices, dims, tuple(sorted(place[n] for n in region.kept)))


def plan_of(plain: Trace, steps: Sequence[Rewrite], options: PlanOptions = OPTIONS) -> Plan | None:
    """A plan of the step with these rewrites, as `rekindle.plan` makes it; None: within the goal's overhead there is none.

    Raises
    ------
    PlanMismatch : the step cannot be rewritten so.
    """
    made = with_rewrites(plain, steps, Bits(run=not plain.fake)).costed()
    figures = plain_figures(plain.graph)
    goal = own_goal(options.goal, made.graph, figures, options.cost)
    if goal is None:
        return None
    found = plan_graph(
        made.graph, replace(options, goal=goal), finish=stages.finish(made.lowered), bookkeeping=bookkeeping(made)
    )
    rewriting = Rewriting(plain.graph.hash, figures, tuple(steps), sums(made.lowered.captured))
    return replace(beside_captured(found, rewriting, options), trace=made.with_graph(found.graph))


class Convolutions(nn.Module):
    """Two convolutions with batch norms and pools, and a residual connection."""

    def __init__(self, width: int, groups: int = 1) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, groups=groups)
        self.third, self.head = nn.Conv2d(width, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = F.relu(x + self.second(x))
        return F.cross_entropy(self.head(F.max_pool2d(F.relu(self.third(x)), 2).mean((2, 3))), y)


class Tokens(nn.Module):
    """An embedding, attention, an MLP, and a head whose weight is the embedding's or its own."""

    def __init__(self, vocabulary: int, width: int, heads: int, tied: bool, smoothing: float) -> None:
        super().__init__()
        self.heads, self.smoothing = heads, smoothing
        self.embedding = nn.Embedding(vocabulary, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.drop = nn.Dropout(0.25)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(ids)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.drop(self.down(F.gelu(self.up(self.after(x)))))
        logits = self.head(x).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), ignore_index=-1, label_smoothing=self.smoothing)


def convolutions(batch: int, width: int, side: int, groups: int = 1) -> tuple[nn.Module, Any]:
    """(a net, its sample)."""
    torch.manual_seed(0)
    model = Convolutions(width, groups)
    return model, (torch.randn(batch, 3, side, side), torch.randint(0, 5, (batch,)))


def tokens(
    batch: int, length: int, vocabulary: int, width: int, heads: int = 2, tied: bool = False, smoothing: float = 0.0
) -> tuple[nn.Module, Any]:
    """(a net, its sample); some targets are ignored."""
    torch.manual_seed(0)
    model = Tokens(vocabulary, width, heads, tied, smoothing)
    targets = torch.randint(-1, vocabulary, (batch, length))
    targets[0, :2] = -1
    return model, (torch.randint(0, vocabulary, (batch, length)), targets)
