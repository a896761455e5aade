"""Where and with which versions rows are measured."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ..version import __version__


def provenance() -> dict[str, Any]:
    """versions, commit, hardware, date."""
    return {
        "versions": _versions(), "commit": _commit(), "hardware": _hardware(),
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip


@cache
def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    import torch

    found = {"rekindle": __version__, "torch": torch.__version__, "python": platform.python_version()}
    for library in ("torchvision", "timm", "transformers"):
        with suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


@cache
def _commit() -> str | None:
    """The commit of the checkout that this runs from, with a + if its source or comparators were changed since; None outside a
    checkout."""
    source = str(Path(__file__).parent.parent)
    git, watched = (
        ["git", "-C", source],
        [source, ":/benchmarks/comparators", ":/benchmarks/zoo_suites.py", ":/benchmarks/more_models"],
    )
    try:
        found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *watched], capture_output=True).returncode
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{found.stdout.strip()}{'+' if changed else ''}"


@cache
def _hardware() -> str:
    import torch

    from ..torch.costs.cache import cpu_model

    gpu = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    return f"{gpu}{cpu_model()}, {os.cpu_count()} cores"
