"""Entries by key in one JSON file of the cache folder, for one environment; several processes may write it."""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from ..errors import RekindleError
from .cache_folder import cache_folder, make_private
from .files import locked, write_own
from .formats import as_text

log = logging.getLogger("rekindle")
T = TypeVar("T")


class KeyedFile(ABC, Generic[T]):
    """The entries of one file, read when the object is made. Reading and writing never raise.

    kind : the file is called "<kind>-<digest of the environment>.json". what : the entries in words, for log lines.
    environment : versions, devices and settings for which the entries hold. path : None where there is no private cache folder.
    lock_wait_s : how long to wait for another process that writes; after it, nothing is stored.
    """

    def __init__(self, kind: str, what: str, environment: str, lock_wait_s: float):
        self.environment, self._what, self._lock_wait_s = environment, what, lock_wait_s
        digest, folder = hashlib.sha256(environment.encode()).hexdigest()[:16], cache_folder()
        self.path = None if folder is None else folder / f"{kind}-{digest}.json"
        self._known = self._read()
        self._fresh: dict[str, T] = {}

    def get(self, key: str) -> T | None:
        return self._known.get(key)

    def put(self, key: str, entry: T) -> None:
        self._known[key] = self._fresh[key] = entry

    def save(self) -> None:
        """Write the new entries since the last save. Entries that other processes wrote meanwhile stay, and count here too."""
        if not self._fresh or self.path is None:
            return
        try:
            make_private(self.path.parent)
            with locked(self.path.parent, self._lock_wait_s):
                entries = self._fresh | self._read()
                write_own(self.path, as_text(self._document(entries)))
            self._known |= entries
            self._fresh = {}
        except (OSError, ValueError, RekindleError) as e:
            log.debug("%s not kept: %s", self._what, e)

    @abstractmethod
    def _read(self) -> dict[str, T]:
        """The valid entries of the file; {} where there is none."""

    @abstractmethod
    def _document(self, entries: Mapping[str, T]) -> dict[str, Any]:
        """The JSON object that the file holds with these entries."""
