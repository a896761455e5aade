"""The published table: peak memory of 18 models, plain and under Optimal Gradient Checkpointing.

Feng, Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021.
MB is 2^20 bytes. `PROTOCOL` tells what was measured, and how.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ..errors import UsageError


@dataclass(frozen=True)
class Published:
    """One model of the table. The measured figures come from torch 2.13 under PROTOCOL; None: not measured.

    batch, image : images per step, and their side in pixels.
    regular_mb, ogc_mb : published peaks of the plain step, and of the published solver's plan.
    measured_regular_mb, measured_ogc_nonreentrant_mb : measured peaks of both; the plan ran with
        `torch.utils.checkpoint(use_reentrant=False)`.
    """

    model: str
    batch: int
    image: int
    regular_mb: int
    ogc_mb: int
    measured_regular_mb: float | None = None
    measured_ogc_nonreentrant_mb: float | None = None


@cache
def _document() -> dict:
    return json.loads(files(__package__).joinpath("seeds.json").read_text(encoding="utf-8"))


def published() -> list[Published]:
    """The rows of the table, in its order."""
    return [Published(**row) for row in _document()["rows"]]


def row(model: str) -> Published:
    """The row of one model.

    Raises
    ------
    UsageError : the table has no such model.
    """
    found = {r.model: r for r in ROWS}
    if model not in found:
        raise UsageError(f"the published table has no model {model!r}; it has: {', '.join(found)}")
    return found[model]


ROWS: list[Published] = published()
PROTOCOL: str = _document()["protocol"]
