"""The wheel: built, installed in a clean environment, and used there, beside the torch that is here.

Nothing but the package index is asked, and that for the build backend alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import rekindle

pytestmark = pytest.mark.sweep  # half a minute
ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
import torch
from torch import nn
import rekindle

assert rekindle.__file__.startswith(sys.prefix), rekindle.__file__
model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4)))
x = torch.randn(64, 32)
model = rekindle.checkpoint(model, x, budget=0.7, solver="rotor")
model.forward.plan.save("plan.json")
assert rekindle.verify(model, x, rekindle.load("plan.json")).ok
assert "@" in rekindle.cite(model.forward.plan)
"""


def run(*command: object, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env={**os.environ, **env}, timeout=500, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    home = ROOT / "src"
    files = {p.relative_to(home).as_posix() for p in home.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    with zipfile.ZipFile(wheel) as z:
        names = set(z.namelist())
        metadata = z.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert files - names == set()
    assert {"rekindle/py.typed", "rekindle/solvers/papers.bib"} <= names
    assert not [n for n in names if n.startswith(("tests", "benchmarks", "docs"))]
    assert f"Version: {rekindle.__version__}" in metadata
    assert "License-Expression: Apache-2.0" in metadata


def test_the_wheel_works_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "clean"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    beside = {"PYTHONPATH": sysconfig.get_path("purelib"), "REKINDLE_CACHE": str(tmp_path / "cache")}
    assert run(home / "bin" / "rekindle", "--version", cwd=tmp_path, **beside) == f"rekindle {rekindle.__version__}\n"
    run(python, "-c", PROGRAM, cwd=tmp_path, **beside)
    assert "rotor" in run(home / "bin" / "rekindle", "solvers", "--json", cwd=tmp_path, **beside)
    asked = ("bench", "--suite", "smoke", "--models", "cnn", "--methods", "plain,none", "--json")
    assert '"method": "none"' in run(home / "bin" / "rekindle", *asked, cwd=tmp_path, **beside)
