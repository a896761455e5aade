"""A graph file, and a solver that must not be asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import step
from extra_solver import extra_solver
from rekindle.model import formats
from rekindle.model.schedule import Schedule
from rekindle.problem import Problem


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "graph.json"
    formats.write_json(path, formats.graph_to_json(step()))
    return path


@pytest.fixture
def never() -> Iterator[str]:
    """A solver that must not be asked."""

    def solve(problem: Problem) -> list[Schedule]:
        pytest.fail("planned before the files were looked at")

    with extra_solver("never", solve) as name:
        yield name
