"""Traced ops carry the user's line, in short, and the line says nothing about the graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import rekindle
from rekindle.torch.situation.module_paths import short_file

FILE = Path(__file__).name  # a module of its own, in no package


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.sin(self.fc(x))
        return self.layers(h)


def line(part: str, of: Callable[..., object] | type = Block) -> str:
    """File and line of the first line of `of` that holds `part`."""
    lines, first = inspect.getsourcelines(of)
    return f"{FILE}:{first + next(i for i, text in enumerate(lines) if part in text)}"


def source_of(graph: rekindle.Graph, module: str, target: str) -> set[str]:
    return {op.source for op in graph.ops if op.module == module and f".{target}." in op.target}


def test_ops_of_forward_and_backward_carry_the_line_of_forward() -> None:
    graph = rekindle.trace(Block(), torch.randn(2, 8), target="h200").graph
    assert source_of(graph, "fc", "addmm") == {line("torch.sin")}
    assert source_of(graph, "", "sin") == source_of(graph, "", "cos") == {line("torch.sin")}
    assert source_of(graph, "layers.1", "relu") == {line("self.layers(h)")}
    assert source_of(graph, "layers.1", "threshold_backward") == {line("self.layers(h)")}
    assert not any(op.source for op in graph.ops if not op.target)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class Cubed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Cube.apply(x * self.weight)


def test_functions_of_the_users_own_have_their_own_lines() -> None:
    graph = rekindle.trace(Cubed(), torch.randn(4), target="h200").graph
    assert source_of(graph, "", "pow") == {line("return x**3", Cube)}


def test_the_line_changes_no_graph_and_no_file_of_an_old_version() -> None:
    trace = rekindle.trace(Block(), torch.randn(2, 8), target="h200")
    assert any(op.source for op in trace.graph.ops)
    plan = rekindle.plan(trace, 1.0, solver="none", cache=False)
    model = rekindle.apply(Block(), plan)
    model(torch.randn(2, 8)).sum().backward()  # PlanMismatch if it did


def test_files_are_named_without_the_folders_of_the_machine() -> None:
    assert short_file("/home/alice/net.py", "__main__") == short_file("/home/alice/net.py", "net") == "net.py"
    assert short_file("/home/alice/models/net.py", "models.net") == "models/net.py"
    assert short_file("/home/alice/site-packages/a/b/net.py", "a.b.net") == "b/net.py"
    assert short_file("/home/alice/models/__init__.py", "models") == "models/__init__.py"
    assert short_file(r"C:\Users\alice\train.py", "__main__") == "train.py"
    assert short_file("/tmp/ipykernel_4711/338.py", "__main__") == "338.py"
    assert short_file("/train.py", "__main__") == short_file("train.py", "pkg.train") == "train.py"
