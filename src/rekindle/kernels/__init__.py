"""Compiled inner loops (numba). Each file holds the loops of one idea; callers pass `Graph.arrays`."""

from __future__ import annotations

import contextlib
from pathlib import Path


def drop_stale(folder: Path) -> None:
    """Remove compiled code in `folder`/__pycache__ that is older than any source in `folder`.

    numba keeps compiled functions on disk and looks only at a function's own file: where a kernel that it calls has
    changed, it would go on with the old one.
    """
    with contextlib.suppress(OSError):  # an installation that cannot be written to does not change either
        newest = max((f.stat().st_mtime for f in folder.glob("*.py")), default=0.0)
        for compiled in (folder / "__pycache__").glob("*.nb[ic]"):
            if compiled.stat().st_mtime < newest:
                compiled.unlink(missing_ok=True)


drop_stale(Path(__file__).parent)
