"""The program that type checkers read uses every public name; `make types` checks it with mypy --strict and pyright."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rekindle
from marks import sweep

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "typed" / "public_names.py"


def test_the_program_uses_every_public_name() -> None:
    used = {
        n.attr for n in ast.walk(ast.parse(PROGRAM.read_text(encoding="utf-8")))
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "rekindle"
    }  # fmt: skip
    assert set(rekindle.__all__) - used == set()


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(rekindle.__file__).parent / "py.typed").is_file()


@sweep
@pytest.mark.parametrize("broken", [False, True])
def test_pyright_reads_the_program(broken: bool, tmp_path: Path) -> None:
    """A wrong argument is an error, so that no error means something."""
    pytest.importorskip("pyright")
    program = PROGRAM
    if broken:
        program = tmp_path / "program.py"
        program.write_text(PROGRAM.read_text(encoding="utf-8").replace("max_overhead=0.1", 'max_overhead="a tenth"'))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(program)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode != 0) == broken, done.stdout
    assert ("max_overhead" in done.stdout) == broken
