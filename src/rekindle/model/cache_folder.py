"""The folder in which measured costs, answers about bits and plans are kept between runs of a program, and files by key in it.

All in it is believed: a false answer about bits makes a plan that is not bitwise. So a folder that another user owns, or may
write to, is not used. On Windows, where the user's folder is the user's own, nothing is looked at.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import RekindleError
from ..printed import name
from ..saying import notices
from .files import OTHERS_WRITE, locked, write_own
from .formats import as_text

log = logging.getLogger("rekindle")
T = TypeVar("T")

NOBODY = 65534  # in a container, the owner of what belongs to the administrator outside of it
_told: set[str] = set()


def cache_folder(*inside: str) -> Path | None:
    """$REKINDLE_CACHE or ~/.cache/rekindle, or a folder inside of it. It need not exist. None: there is none that is private,
    and a warning has said so."""
    given = os.environ.get("REKINDLE_CACHE")
    try:
        whole = Path(given) if given else Path.home() / ".cache" / "rekindle"
        folder = whole.joinpath(*inside)
        why = _not_private(folder)
    except (OSError, RuntimeError, ValueError):  # the user has no home folder, or it cannot be looked at
        return None
    if why and why not in _told:  # it is often the same for all folders inside
        _told.add(why)
        notices.warn(
            f"nothing is read from or kept in the cache folder {name(str(whole))}: {why}. Make it private (chmod go-w), or "
            "name another folder in REKINDLE_CACHE"
        )
    return None if why else folder


def make_private(folder: Path) -> None:
    """Make the folder, for this user alone, and those around it; does nothing if it exists."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _not_private(folder: Path) -> str:
    """Why others may change what is in the folder; "" if they may not."""
    if not hasattr(os, "geteuid"):
        return ""
    real = Path(os.path.realpath(folder))
    for i, at in enumerate((real, *real.parents)):
        try:
            there = at.stat()
        except FileNotFoundError:
            continue
        if there.st_uid not in (0, os.geteuid(), NOBODY if i else 0):
            return f"another user owns {name(str(at))}"
        # In a sticky folder, such as /tmp, nobody renames or removes what another user owns.
        others = OTHERS_WRITE if i == 0 else stat.S_IWOTH if not there.st_mode & stat.S_ISVTX else 0
        if there.st_mode & others:
            return f"other users may write to {name(str(at))}"
    return ""


class KeyedFile(ABC, Generic[T]):
    """Entries by key in one JSON file of the cache folder, for one environment; several processes may write it.

    The file is read when the object is made. Reading and writing never raise.

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
