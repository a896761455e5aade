"""`make test-for` finds the tests of a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]


def run(file: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "tools/tests_of.py", file], cwd=HOME, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("parts/division.py", "tests/property/test_division.py"),  # the test imports it
        ("parts/ways.py", "tests/property/test_division.py"),
        ("torch/parts/choices.py", "tests/torch/parts/test_compiled_parts.py"),  # through `dividing`, which imports it
    ],
)
def test_the_tests_of_a_file_are_found(file: str, test: str) -> None:
    assert test in run(f"src/rekindle/{file}").stdout.split()


def test_another_file_is_refused() -> None:
    found = run("tests/unit/test_tests_of.py")
    assert found.returncode
    assert not found.stdout
    assert "give a Python file below" in found.stderr
