"""The line that says which parts of a model are planned and what runs plain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

from ...parts.ways import Way
from .between import Between
from .finding import Unit

PLAIN_MOST = 3  # reasons that are told


def covered(
    model: nn.Module, units: Sequence[Unit], ways: Sequence[Sequence[Way]], step: Between, plain: Sequence[str], searches: int
) -> str:
    """"planned: 24 of 24 OPTDecoderLayer (96 % of activation bytes, one search); plain: OPTDecoder (train.py:88 reads a tensor)"."""
    planned = Counter(type(m).__name__ for m in {u.path: u.module for u in units}.values())
    every = Counter(type(m).__name__ for m in model.modules())
    kinds = " and ".join(f"{n} of {every[k]} {k}" for k, n in planned.items())
    within = sum(n * w[0].figures.held_bytes for w, n in zip(ways, step.calls, strict=True))
    share = within / max(1, within + step.at_end_bytes)
    number = {1: "one search", 2: "two searches", 3: "three searches"}.get(searches, f"{searches} searches")
    text = f"planned: {kinds} ({share:.0%} of activation bytes, {number})".replace("%", " %")
    reasons = list(dict.fromkeys(plain))
    if reasons:
        more = f" and {len(reasons) - PLAIN_MOST} more" if len(reasons) > PLAIN_MOST else ""
        text += f"; plain: {', '.join(reasons[:PLAIN_MOST])}{more}"
    return text
