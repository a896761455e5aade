"""The device and the versions with which all rows were measured."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

from common import provenance

from gpu.devices import get


def run(kind: str, emit: Callable[[dict[str, Any]], None]) -> None:
    """Emit one record."""
    found = provenance()
    found["versions"] |= {name: _version(name) for name in ("numpy", "numba", "torchvision", "transformers")}
    emit(
        {"part": "facts", "name": "facts", "status": "ok", "processor": found.pop("hardware"), **found}
        | get(kind).facts()
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
