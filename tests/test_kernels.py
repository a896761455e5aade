"""Compiled code never outlives a source that it may have been made from."""

from __future__ import annotations

import os
from pathlib import Path

from rekindle.kernels import drop_stale


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
