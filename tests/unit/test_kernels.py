"""Kernels: what is compiled when, and that compiled code never outlives a source that it may have been made from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rekindle
from marks import sweep
from rekindle.kernels import compiled, drop_stale

ASK = """
import numpy as np
from rekindle.kernels.compiled import to_compile
from rekindle.kernels.range_max import range_max
before = to_compile(range_max)
range_max(np.arange(4))
print(before, to_compile(range_max))
"""


def test_compiled_code_older_than_any_source_is_dropped(tmp_path: Path) -> None:
    cache = tmp_path / "__pycache__"
    cache.mkdir()
    for name, age in (("a.py", 100), ("b.py", 50)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    for name, age in (("a.x.nbi", 60), ("a.x.1.nbc", 60), ("b.y.nbi", 40), ("a.cpython.pyc", 60)):
        (cache / name).touch()
        os.utime(cache / name, (1000 - age, 1000 - age))
    drop_stale(tmp_path)
    assert sorted(f.name for f in cache.iterdir()) == ["a.cpython.pyc", "b.y.nbi"]
    drop_stale(tmp_path / "none")


@sweep
def test_what_has_yet_to_be_compiled_is_known(tmp_path: Path) -> None:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for expected in ("True False", "False False"):  # after an installation; in a later process
        run = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True, check=True)
        assert run.stdout.split() == expected.split()


def test_two_threads_that_compile_at_once_report_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other thread comes in between, while the first one looks at the disk."""
    lines: list[str] = []
    looks: list[Any] = []

    def to_compile(kernel: Any) -> bool:
        looks.append(kernel)
        if len(looks) == 1:
            compiled._report("of the other thread")
        return True

    monkeypatch.setattr(compiled, "to_compile", to_compile)
    with compiled.reported_to(lines.append):
        compiled._report("of this thread")
    assert looks == ["of this thread", "of the other thread"]
    assert len(lines) == 1


KEEPS = """
import numba as nb, numpy as np, rekindle
from rekindle.kernels import compiled
from rekindle.kernels.range_max import range_max
print(range_max(np.arange(4)).shape[0], compiled.KEPT, nb.config.CACHE_DIR)
"""


@pytest.mark.parametrize("has_temporary", [True, False])
def test_an_installation_that_nobody_can_write_to_works_without_a_home(tmp_path: Path, has_temporary: bool) -> None:
    """Files stand where numba would make folders, as that stops root too."""
    shutil.copytree(Path(rekindle.__file__).parent, tmp_path / "rekindle", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "rekindle" / "kernels" / "__pycache__").touch()
    (tmp_path / "temporary").mkdir()
    ask = KEEPS if has_temporary else f"import tempfile; tempfile.tempdir = {str(tmp_path / 'none')!r}\n{KEEPS}"
    env = {k: x for k, x in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    env |= {"HOME": os.devnull, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path / "temporary")}
    ran = subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, text=True, check=True, timeout=120)
    rows, kept, *folder = ran.stdout.split()
    assert (rows, kept) == ("4", str(has_temporary))
    assert [Path(f).parent for f in folder] == [tmp_path / "temporary"] * has_temporary
    assert not list((tmp_path / "temporary").iterdir())  # it went with the process
    assert ran.stderr.count("numba finds no folder") == 1
