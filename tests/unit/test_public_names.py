"""The package's public names, `python -m rekindle`, and which libraries an import brings."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import rekindle

IN_A_NEW_PROCESS = """
import sys
import rekindle
print("imported:", *sorted({"scipy.optimize", "torch", "typer", "rich", "matplotlib"} & set(sys.modules)))

sys.modules["torch"] = None  # an import of it fails from here on
from rekindle import Graph, Op, Value
values = tuple(Value(100) for _ in range(6))
ops = [Op("a", (), (0,), 1.0), Op("b", (0,), (1,), 1.0), Op("c", (1,), (2,), 1.0), Op("d", (1, 2), (3,), 1.0)]
graph = Graph(values, (*ops, Op("e", (0, 3), (4,), 1.0), Op("f", (4,), (5,), 1.0)), keep=(5,))
plan = rekindle.plan(graph, minimize="memory", solver="every")
plan.save(sys.argv[1])
assert rekindle.load(sys.argv[1]) == plan
assert rekindle.frontier(graph, solver="every")
assert rekindle.simulate(graph, plan.schedule).peak_bytes == plan.peak_bytes
"""


def run(*args: str) -> str:
    ran = subprocess.run([sys.executable, *args], check=True, timeout=300, capture_output=True, text=True)
    return ran.stdout


def test_dir_lists_every_public_name_also_before_it_is_imported() -> None:
    names = ast.literal_eval(run("-c", "import rekindle; print(dir(rekindle))"))
    assert set(rekindle.__all__) <= set(names)
    assert {n for n in names if not n.startswith("__")} == {n for n in rekindle.__all__ if not n.startswith("__")}
    assert dir(rekindle) == sorted(dir(rekindle))


def test_the_core_works_without_torch_and_imports_little(tmp_path: Path) -> None:
    out = run("-c", IN_A_NEW_PROCESS, str(tmp_path / "plan.json"))
    assert out == "imported:\n"


def test_the_package_runs_as_a_program() -> None:
    assert run("-m", "rekindle", "--version") == f"rekindle {rekindle.__version__}\n"
