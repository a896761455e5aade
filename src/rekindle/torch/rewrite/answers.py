"""The probe's answers, in this process and on disk, so that an op is probed once per machine and torch version.

One JSON file per environment under the folder of `model.cache_folder`:

    {"format": "rekindle.bits/1", "environment": "…", "same": {question: true or false}}

A damaged or foreign file counts as empty, and an entry that is no bool as missing. If the folder cannot be written to, nothing
is stored.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import torch

from ...errors import FormatError, RekindleError
from ...model.cache_folder import cache_folder
from ...model.files import locked, read_text
from ...model.formats import parse_json, write_json
from ..capture import precision
from ..costs.cache import SETTINGS
from ..costs.cache import environment as environment_of_costs

log = logging.getLogger(__name__)

FORMAT = "rekindle.bits/1"
PROBE_VERSION = 1  # raise it whenever ops are probed in another way: older answers are then not used
_SESSION: dict[str, dict[str, bool]] = {}  # environment -> the answers that this process has read or found


class Answers:
    """Question -> whether the bits are the same, for one environment. Reading and writing never raise."""

    def __init__(self, environment: str):
        self.environment = environment
        self.path: Path | None = None
        try:
            digest = hashlib.sha256(environment.encode()).hexdigest()[:16]
            self.path = cache_folder() / f"bits-{digest}.json"
        except RuntimeError as e:
            log.debug("no cache of the bits of slices: %s", e)
        self._known = _SESSION.setdefault(environment, {})
        self._known |= self._read()
        self._fresh: dict[str, bool] = {}

    def get(self, question: str) -> bool | None:
        return self._known.get(question)

    def put(self, question: str, same: bool) -> None:
        self._known[question] = self._fresh[question] = same

    def save(self) -> None:
        """Write the new answers since the last save. Those that other processes wrote meanwhile stay."""
        if not self._fresh or self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path.parent, SETTINGS.lock_wait_s):
                same = self._fresh | self._read()
                write_json(self.path, {"format": FORMAT, "environment": self.environment, "same": same})
            self._known |= same
            self._fresh = {}
        except (OSError, ValueError, RekindleError) as e:
            log.debug("answers about the bits of slices not kept: %s", e)

    def _read(self) -> dict[str, bool]:
        """The valid entries of the file."""
        if self.path is None:
            return {}
        try:
            doc = parse_json(read_text(self.path, SETTINGS.file_most_bytes, regular=True), str(self.path))
        except (OSError, FormatError) as e:
            log.debug("cache of the bits of slices passed over: %s", e)
            return {}
        fits = isinstance(doc, dict) and doc.get("format") == FORMAT and doc.get("environment") == self.environment
        same = doc.get("same") if fits else None
        return {k: x for k, x in same.items() if isinstance(x, bool)} if isinstance(same, dict) else {}


def environment(device: torch.device) -> str:
    """The versions, device, threads and numeric flags on which the bits of every operator depend, as text."""
    return (
        f"{environment_of_costs(device)}; bits {PROBE_VERSION}; products {precision.of_products()}; "
        f"mkldnn {getattr(torch.backends.mkldnn, 'enabled', None)}"
    )
