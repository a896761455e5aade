"""Where results go, and what they say of the machine and the versions they were measured with."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import rekindle
from rekindle.torch.cost_cache import cpu_model

RESULTS = Path(__file__).parent / "results"


def provenance() -> dict[str, Any]:
    """Date, hardware, command and versions; to be called when the run begins."""
    return {
        "date": datetime.date.today().isoformat(),
        "hardware": f"{cpu_model()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "command": " ".join(["python", *sys.argv]),
        "versions": {
            "rekindle": _source(), "torch": torch.__version__, "python": platform.python_version(),
        },
    }  # fmt: skip


def path_of(name: str) -> Path:
    """A file of today's results."""
    RESULTS.mkdir(exist_ok=True)
    return RESULTS / f"{datetime.date.today().isoformat()}-{name}"


def _source() -> str:
    """Version, and the commit where this is a checkout, with a + if its source was changed since."""
    git = ["git", "-C", str(Path(__file__).parent.parent)]
    try:
        found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src"], capture_output=True).returncode
    except (OSError, subprocess.CalledProcessError):
        return rekindle.__version__
    return f"{rekindle.__version__} ({found.stdout.strip()}{'+' if changed else ''})"
