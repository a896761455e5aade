"""Measured costs on disk, so that an operator is measured once per machine and torch version.

One JSON file per environment (torch version, device, threads, …) under $REKINDLE_CACHE or ~/.cache/rekindle:

    {"format": "rekindle.costs/1", "environment": "…", "ops": {key: [seconds, workspace bytes]}}

A file that is damaged, foreign or not readable counts as empty; a folder that cannot be written to is passed over.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
from pathlib import Path
from typing import Any

import torch

from ..formats import write_json
from ..version import __version__

log = logging.getLogger(__name__)

FORMAT = "rekindle.costs/1"
MEASURING = 2  # to be raised where operators come to be run or measured otherwise: older figures are then not used


def cache_folder() -> Path:
    """Where measured costs lie. RuntimeError where there is no home."""
    given = os.environ.get("REKINDLE_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "rekindle"


class CostCache:
    """(seconds, workspace bytes) by operator key, for one environment. Reading and writing never fail."""

    def __init__(self, environment: str):
        self.environment = environment
        self.path: Path | None = None
        try:
            name = hashlib.sha256(environment.encode()).hexdigest()[:16]
            self.path = cache_folder() / f"costs-{name}.json"
        except RuntimeError as e:
            log.debug("no cache of measured costs: %s", e)
        self._known = self._read()
        self._fresh: dict[str, tuple[float, int]] = {}

    def get(self, key: str) -> tuple[float, int] | None:
        return self._known.get(key)

    def put(self, key: str, seconds: float, workspace: int) -> None:
        self._known[key] = self._fresh[key] = (seconds, workspace)

    def save(self) -> None:
        """Write what was put since the last save; what another process wrote meanwhile stays."""
        if not self._fresh or self.path is None:
            return
        doc = {"format": FORMAT, "environment": self.environment, "ops": self._read() | self._fresh}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, doc)
            self._fresh = {}
        except (OSError, ValueError) as e:
            log.debug("measured costs not kept: %s", e)

    def _read(self) -> dict[str, tuple[float, int]]:
        if self.path is None:
            return {}
        try:
            doc = json.loads(self.path.read_text(encoding="utf-8"))
            if doc["format"] != FORMAT or doc["environment"] != self.environment:
                return {}
            return {key: _entry(*entry) for key, entry in doc["ops"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
            log.debug("cache of measured costs passed over: %s: %s", self.path, e)
            return {}


def _entry(seconds: Any, workspace: Any) -> tuple[float, int]:
    if not (isinstance(seconds, int | float) and math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{seconds!r} is no time")
    if not (isinstance(workspace, int) and workspace >= 0):
        raise ValueError(f"{workspace!r} is no size")
    return float(seconds), workspace


def environment(device: torch.device) -> str:
    """What the cost of an operator depends on, beside the operator: versions, the device, threads, numerics."""
    parts = [f"torch {torch.__version__}", f"rekindle {__version__}, measuring {MEASURING}"]
    if device.type == "cuda":
        parts += [torch.cuda.get_device_name(device), f"cuda {torch.version.cuda}"]
        parts += [f"benchmark {torch.backends.cudnn.benchmark}", f"exact {torch.backends.cudnn.deterministic}"]
        parts += [f"float32 products {torch.get_float32_matmul_precision()}"]
    else:
        parts += [device.type, cpu_model(), torch.backends.cpu.get_cpu_capability()]
        parts += [f"{torch.get_num_threads()} threads"]
    parts += [f"deterministic {torch.are_deterministic_algorithms_enabled()}"]
    return "; ".join(parts)


def cpu_model() -> str:
    """The name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor() or platform.machine()
