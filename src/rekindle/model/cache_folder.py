"""The folder in which measured costs and remembered plans are kept between runs of a program."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$REKINDLE_CACHE, or ~/.cache/rekindle. It need not exist. Raises RuntimeError if the user has no home folder."""
    given = os.environ.get("REKINDLE_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "rekindle"
