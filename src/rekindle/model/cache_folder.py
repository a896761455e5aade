"""The folder in which measured costs, answers about bits and plans are kept between runs of a program.

All in it is believed: a false answer about bits makes a plan that is not bitwise. So a folder that another user owns, or may
write to, is not used. On Windows, where the user's folder is the user's own, nothing is looked at.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..printed import name
from ..saying import notices

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
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


def is_own(there: os.stat_result) -> bool:
    """Whether this user, or the system's administrator, owns it, and no other user may write to it."""
    return not hasattr(os, "geteuid") or there.st_uid in (0, os.geteuid()) and not there.st_mode & OTHERS_WRITE


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
