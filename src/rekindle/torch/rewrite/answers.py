"""The probe's answers, in this process and on disk, so that an op is probed once per machine and torch version.

One JSON file per environment under the folder of `model.cache_folder`:

    {"format": "rekindle.bits/1", "environment": "…", "same": {question: true or false}}

A damaged or foreign file counts as empty, and an entry that is no bool as missing. If the folder cannot be written to, nothing
is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import FormatError
from ...model.files import read_own
from ...model.formats import parse_json
from ...model.keyed_file import KeyedFile
from ..costs.cache import FILE_MOST_BYTES, LOCK_WAIT_S
from ..costs.cache import environment as environment_of_costs
from ..tensors import precision

log = logging.getLogger(__name__)

FORMAT = "rekindle.bits/1"
PROBE_VERSION = 4  # raise it whenever ops are probed in another way: older answers are then not used
_SESSION: dict[str, dict[str, bool]] = {}  # environment -> the answers that this process has read or found


class Answers(KeyedFile[bool]):
    """Question -> whether the bits are the same, for one environment. Reading and writing never raise."""

    def __init__(self, environment: str):
        super().__init__("bits", "answers about the bits of slices", environment, LOCK_WAIT_S)
        read, self._known = self._known, _SESSION.setdefault(environment, {})
        self._known |= read

    def _document(self, entries: Mapping[str, bool]) -> dict[str, Any]:
        return {"format": FORMAT, "environment": self.environment, "same": dict(entries)}

    def _read(self) -> dict[str, bool]:
        """The valid entries of the file."""
        if self.path is None:
            return {}
        try:
            doc = parse_json(read_own(self.path, FILE_MOST_BYTES), str(self.path))
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
