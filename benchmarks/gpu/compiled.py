"""Compiled steps of one model: torch.compile in the usual ways, and Rekindle's compiled plans. See compiled_steps.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compiled_steps import measure

ROUNDS = 15


def run(name: str, kind: str, small: bool, emit: Callable[[dict[str, Any]], None]) -> None:
    """Emit one record per method."""
    for row in measure(name, kind, small, 3 if small else ROUNDS):
        emit({"part": "compiled", "name": f"compiled:{name}: {row['method']}", "status": "ok", "note": "", **row})
