"""Where results go, and the machine and versions that they state."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import torch

from rekindle.bench.row import provenance as measured_with

RESULTS = Path(__file__).parent / "results"


def provenance() -> dict[str, Any]:
    """Date, hardware, command and versions; call it when the run begins."""
    found = measured_with()
    rekindle = found["versions"]["rekindle"]
    commit = "" if found["commit"] is None else f" ({found['commit']})"
    return {
        "date": found["date"],
        "hardware": f"{found['hardware']}, {torch.get_num_threads()} threads",
        "command": " ".join(["python", *sys.argv]),
        "versions": found["versions"] | {"rekindle": f"{rekindle}{commit}"},
    }


def path_of(name: str) -> Path:
    """The path of a file of today's results."""
    RESULTS.mkdir(exist_ok=True)
    return RESULTS / f"{datetime.date.today().isoformat()}-{name}"
