"""Measured costs on disk, so that an operator is measured once per machine and torch version.

One JSON file per environment (torch version, device, threads, …) under $REKINDLE_CACHE or ~/.cache/rekindle:

    {"format": "rekindle.costs/1", "environment": "…", "ops": {key: [seconds, workspace bytes]}}

A file that is damaged or foreign counts as empty, an entry that is no cost counts as missing; one warning names them. A
folder that cannot be written to is passed over. Processes that write at once wait for each other, and keep all entries.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from pathlib import Path
from typing import Any

import torch

from ...errors import FormatError, RekindleError
from ...model.files import locked, read_text
from ...model.formats import parse_json, write_json
from ...printed import name, value
from ...version import __version__

log = logging.getLogger("rekindle")

FORMAT = "rekindle.costs/1"
MEASURING = 2  # to be raised where operators come to be run or measured otherwise: older figures are then not used
MOST_FILE = 64 * 2**20  # bytes; an operator takes about 200
MOST_SECONDS, MOST_BYTES = 1e5, 2**44  # of one run of one operator: no device takes or holds more
WAIT_S = 10.0  # for other processes that write; then the figures are measured again some time
_COMPLAINED: set[Path] = set()


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
            digest = hashlib.sha256(environment.encode()).hexdigest()[:16]
            self.path = cache_folder() / f"costs-{digest}.json"
        except RuntimeError as e:
            log.debug("no cache of measured costs: %s", e)
        self._known = self._read()
        self._fresh: dict[str, tuple[float, int]] = {}

    def get(self, key: str) -> tuple[float, int] | None:
        return self._known.get(key)

    def put(self, key: str, seconds: float, workspace: int) -> None:
        self._known[key] = self._fresh[key] = (seconds, workspace)

    def save(self) -> None:
        """Write what was put since the last save; what other processes wrote meanwhile stays."""
        if not self._fresh or self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path.parent, WAIT_S):
                ops = self._read() | self._fresh
                write_json(self.path, {"format": FORMAT, "environment": self.environment, "ops": ops})
            self._fresh = {}
        except (OSError, ValueError, RekindleError) as e:
            log.debug("measured costs not kept: %s", e)

    def _read(self) -> dict[str, tuple[float, int]]:
        """The entries that are costs."""
        if self.path is None:
            return {}
        where = name(str(self.path))
        try:
            doc = parse_json(read_text(self.path, MOST_FILE, regular=True), where, constants=True)
            if not isinstance(doc, dict) or doc.get("format") != FORMAT or not isinstance(doc.get("ops"), dict):
                raise FormatError(f"{where} is no file of the format {FORMAT}")
            if doc.get("environment") != self.environment:
                raise FormatError(f"{where} was measured elsewhere: in {value(doc.get('environment'))}")
        except FileNotFoundError:
            return {}
        except OSError as e:
            log.debug("cache of measured costs passed over: %s: %s", where, e)
            return {}
        except FormatError as e:
            self._complain("the cache of measured costs is passed over and will be written anew: %s", e)
            return {}
        good = {key: (float(entry[0]), entry[1]) for key, entry in doc["ops"].items() if _is_cost(entry)}
        bad = [key for key in doc["ops"] if key not in good]
        if bad:
            self._complain(
                "%d of %d entries in %s are no measured costs and are passed over; the first belongs to %s: %s",
                len(bad), len(doc["ops"]), where, name(bad[0]), value(doc["ops"][bad[0]]),
            )  # fmt: skip
        return good

    def _complain(self, line: str, *args: Any) -> None:
        """Once for each file."""
        assert self.path is not None
        if self.path not in _COMPLAINED:
            _COMPLAINED.add(self.path)
            log.warning(line, *args)


def _is_cost(entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) != 2:
        return False
    seconds, workspace = entry
    if isinstance(seconds, bool) or isinstance(workspace, bool) or not isinstance(workspace, int):
        return False
    # Every comparison with nan is false; those of whole numbers of any size with floats are exact.
    return isinstance(seconds, int | float) and 0 <= seconds <= MOST_SECONDS and 0 <= workspace < MOST_BYTES


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
