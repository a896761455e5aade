"""torchvision beside a torch it was not compiled for.

The registry's wheel is compiled for CUDA. Beside a CPU-only torch its compiled ops do not load, and the import then
fails because it describes the op `torchvision::nms`, which nobody defined. The models need none of those ops: a
schema without a kernel is enough for the import.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import PathFinder
from types import ModuleType

import torch

from ..errors import RekindleError

# an op lives as long as the Library that defined it
_library: torch.library.Library | None = None


def import_torchvision() -> ModuleType:
    """torchvision, with the schemas it misses defined first.

    Raises
    ------
    RekindleError : torchvision, or a package it imports, is not installed.
    """
    try:
        _define_missing()
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as e:
        raise RekindleError(
            f"this needs the package {e.name!r}, which is not installed; install torch first, then run: "
            "pip install --no-deps torchvision pillow"
        ) from e


def _define_missing() -> None:
    """Defines `torchvision::nms` and `qnms` where torchvision is installed but its compiled ops do not load."""
    global _library
    found = importlib.util.find_spec("torchvision") if "torchvision" not in sys.modules else None
    if found is None or hasattr(torch.ops.torchvision, "nms"):
        return
    compiled = PathFinder.find_spec("_C", list(found.submodule_search_locations or ()))
    if compiled is not None and compiled.origin is not None:
        try:
            torch.ops.load_library(compiled.origin)
            return
        except OSError:
            pass
    _library = torch.library.Library("torchvision", "DEF")
    for op in ("nms", "qnms"):
        _library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
