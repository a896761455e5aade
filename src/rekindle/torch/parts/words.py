"""The line that says which parts of a model are planned and what runs plain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from .finding import Unit

PLAIN_MOST = 3  # reasons that are told


@dataclass(frozen=True)
class Covered:
    """The units that do not run plain, and the share of the plain step's bytes between forward and backward that they hold."""

    units: Sequence[Unit]
    share: float


def covered(model: nn.Module, found: Covered, plain: Sequence[str], searches: int) -> str:
    """The line, such as "planned: 24 of 24 OPTDecoderLayer (96 % of activation bytes, one search); plain: OPTDecoder
    (train.py:88 reads a tensor)"."""
    every = Counter(type(m).__name__ for m in model.modules())
    number = {1: "one search", 2: "two searches", 3: "three searches"}.get(searches, f"{searches} searches")

    def kinds(again: bool) -> str:
        modules = {u.path: u.module for u in found.units if (u.trace is None) == again}
        counts = Counter(type(m).__name__ for m in modules.values())
        return " and ".join(f"{n} of {every[k]} {k}" for k, n in counts.items())

    text = "planned: " + (kinds(False) or "nothing")
    if again := kinds(True):
        text += f", run again in backward: {again}"
    text += f" ({round(100 * found.share)} % of activation bytes, {number})"
    reasons = list(dict.fromkeys(plain))
    if reasons:
        more = f" and {len(reasons) - PLAIN_MOST} more" if len(reasons) > PLAIN_MOST else ""
        text += f"; plain: {', '.join(reasons[:PLAIN_MOST])}{more}"
    return text
