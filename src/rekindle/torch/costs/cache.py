"""Measured costs on disk, so that an operator is measured once per machine and torch version.

One JSON file per environment (torch version, device, threads, …) under $REKINDLE_CACHE or ~/.cache/rekindle:

    {"format": "rekindle.costs/2", "environment": "…",
     "ops": {key: [seconds or null, spread, workspace bytes or null, roofline seconds, bytes moved]}}

A call that could not be run is stored too, with nulls: a later process then comes to the same costs. A damaged or foreign
file counts as empty, and an invalid entry as missing; one warning names them. If the folder cannot be written to, nothing is
stored. Processes that write at the same time wait for each other, and no entry is lost: of two measurements of one call the
first that was written stays, and both processes use it.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch

from ...errors import FormatError
from ...model.cache_folder import KeyedFile
from ...model.files import read_own
from ...model.formats import parse_json
from ...printed import name, value
from ...version import __version__
from ..tensors import precision

log = logging.getLogger("rekindle")

SPREAD_MOST = 1e3  # a greater spread says no more: the timing is worth nothing


@dataclass(frozen=True)
class Measurement:
    """Figures of one distinct operator call. A call that could not be run has one too, so that no later process tries it.

    seconds : the least time of a run; None: not timed.
    spread : how far the two least rounds are apart, as a share of the least, at most SPREAD_MOST; 0 where they agree.
    workspace : bytes that it needs beside inputs and outputs; None: not measured.
    roofline : estimated seconds. moved : bytes read and written.
    """

    seconds: float | None
    spread: float
    workspace: int | None
    roofline: float
    moved: int


def op_of(key: str) -> str:
    """The operator's name in the key of a call: "aten.mm.default" of "aten.mm.default(0:float32…)"."""
    return key.partition("(")[0]


# class -> parts of names, looked for in this order; the first that occurs decides.
_PARTS = {
    "convolution": ("conv",),
    "product": ("mm.", "bmm", "matmul", "linear", "dot_product", "attention", "einsum"),
    "normalisation": ("norm", "softmax"),
    "reduction": (
        "sum", "mean", "max", "min.", "amin", "argmin", "var", "std", "prod", "pool", "nll_loss", "logsumexp", "all.",
        "any.", "sort", "topk",
    ),
    "copy": (
        "clone", "copy", "cat.", "stack", "index", "gather", "scatter", "slice", "select", "pad", "embedding", "flip",
        "roll", "zeros", "ones", "full", "upsample", "tri", "repeat",
    ),
}  # fmt: skip
ELEMENT_WISE = "element-wise"


def op_class(op: str) -> str:
    """The class of an operator with this name, such as "aten.mm.default": operators of one class have like costs where nothing
    of their own is known."""
    name = op.lower()
    return next((kind for kind, parts in _PARTS.items() if any(p in name for p in parts)), ELEMENT_WISE)


FORMAT = "rekindle.costs/2"
MEASURING_VERSION = 3  # raise it whenever operators are run or timed differently: older entries are then not used
# Limits of the cache. All are guesses, far above what was seen.
FILE_MOST_BYTES = 64 * 2**20  # a larger file is not read; one operator takes about 200 bytes
# The seconds and the bytes of a valid entry: no operator is faster than the first number, or takes more than the others.
_ENTRY_S, _ENTRY_MOST_BYTES = (1e-10, 1e5), 2**44
LOCK_WAIT_S = 10.0  # for another process that writes; after it nothing is stored, and a later process measures again

_WARNED: set[Path] = set()  # files that a warning has named
# what a file held when it was in a state, so that a plan for a new shape does not wait for a large file to be read again
_READ: dict[Path, tuple[tuple[tuple[int, ...], str] | None, dict[str, Measurement]]] = {}


class CostCache(KeyedFile[Measurement]):
    """A measurement per operator key, for one environment. Reading and writing never raise."""

    def __init__(self, environment: str):
        super().__init__("costs", "measured costs", environment, LOCK_WAIT_S)

    @property
    def known(self) -> Mapping[str, Measurement]:
        """All that was read and put, by key."""
        return self._known

    def _document(self, entries: Mapping[str, Measurement]) -> dict[str, Any]:
        ops = {key: list(astuple(m)) for key, m in entries.items()}
        return {"format": FORMAT, "environment": self.environment, "ops": ops}

    def _read(self) -> dict[str, Measurement]:
        """The valid entries of the file."""
        if self.path is None:
            return {}
        now = _state(self.path)
        if now is not None and _READ.get(self.path, (None, {}))[0] == (now, self.environment):
            return dict(_READ[self.path][1])
        good = self._read_anew(self.path)
        if now is not None:
            _READ[self.path] = (now, self.environment), dict(good)
        return good

    def _read_anew(self, path: Path) -> dict[str, Measurement]:
        where = name(str(path))
        try:
            doc = parse_json(read_own(path, FILE_MOST_BYTES), where, constants=True)
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
            self._warn("the cache of measured costs is passed over and will be written anew: %s", e)
            return {}
        good = {key: m for key, entry in doc["ops"].items() if (m := _measurement(entry)) is not None}
        bad = [key for key in doc["ops"] if key not in good]
        if bad:
            self._warn(
                "%d of %d entries in %s are no measured costs and are passed over; the first belongs to %s: %s",
                len(bad), len(doc["ops"]), where, name(bad[0]), value(doc["ops"][bad[0]]),
            )  # fmt: skip
        return good

    def _warn(self, line: str, *args: Any) -> None:
        """Log a warning, once for each file."""
        assert self.path is not None
        if self.path not in _WARNED:
            _WARNED.add(self.path)
            log.warning(line, *args)


def _state(path: Path) -> tuple[int, ...] | None:
    """Numbers that change when a file is written; None: there is no file."""
    try:
        now = path.stat()
    except (OSError, ValueError):
        return None
    return now.st_mtime_ns, now.st_size, now.st_ino


def _measurement(entry: Any) -> Measurement | None:
    """The entry of a file as a measurement; None if it is none."""
    if not isinstance(entry, list) or len(entry) != 5:
        return None
    seconds, spread, workspace, roofline, moved = entry
    fine = (
        (seconds is None or _is_seconds(seconds))
        and _is_number(spread)
        and 0 <= spread <= SPREAD_MOST
        and (workspace is None or _is_bytes(workspace))
        and _is_seconds(roofline)
        and _is_bytes(moved)
    )
    if not fine:
        return None
    return Measurement(None if seconds is None else float(seconds), float(spread), workspace, float(roofline), moved)


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _is_seconds(x: Any) -> bool:
    # Comparisons with nan are false; comparisons of whole numbers of any size with floats are exact.
    return _is_number(x) and _ENTRY_S[0] <= x <= _ENTRY_S[1]


def _is_bytes(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < _ENTRY_MOST_BYTES


def environment(device: torch.device) -> str:
    """The versions, device, threads and numeric flags on which the cost of every operator depends, as text."""
    parts = [f"torch {torch.__version__}", f"rekindle {__version__}, measuring {MEASURING_VERSION}"]
    if device.type == "cuda":
        parts += [torch.cuda.get_device_name(device), f"cuda {torch.version.cuda}"]
        parts += [f"benchmark {torch.backends.cudnn.benchmark}", f"exact {torch.backends.cudnn.deterministic}"]
        parts += [f"float32 products {precision.of_products()}", f"convolutions {precision.of_convolutions()}"]
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
