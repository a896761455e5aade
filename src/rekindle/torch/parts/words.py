"""The line that says which parts of a model are planned and what runs plain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ..compiled.stage import Stage
from ..tensors.sharded import class_name
from .finding import Unit

PLAIN_MOST = 3  # reasons in the line; the line says how many more there are


@dataclass(frozen=True)
class Covered:
    """The reach of the plans of a model's parts.

    units : those that do not run plain. share : of the plain step's bytes between forward and backward that they hold.
    searches : graphs for which plans were searched. compiled : whether they are compiled. of_eager : the time of
        a step of all compiled parts, as a share of that without the compiler.
    """

    units: Sequence[Unit]
    share: float
    searches: int
    compiled: bool = False
    of_eager: float = 0.0


def covered(model: nn.Module, found: Covered, plain: Sequence[str]) -> str:
    """The line, such as "planned: 24 of 24 OPTDecoderLayer (96 % of activation bytes, one search); plain: OPTDecoder
    (train.py:88 reads a tensor)"."""
    every = Counter(class_name(m) for m in model.modules())
    number = {1: "one search", 2: "two searches", 3: "three searches"}.get(
        found.searches, f"{found.searches or 'no'} searches"
    )

    def kinds(again: bool) -> str:
        modules = {u.path: u.module for u in found.units if (u.trace is None) == again}
        counts = Counter(class_name(m) for m in modules.values())
        return " and ".join(f"{n} of {every[k]} {k}" for k, n in counts.items())

    if found.compiled:
        stages = [u for u in found.units if isinstance(u.module, Stage)]
        which = f"{len(stages)} stages of {class_name(model)}" if stages else kinds(True) or "nothing"
        text = f"compiled: {which} ({round(100 * found.share)} % of activation bytes"
        text += f", {found.of_eager:.2f} of their uncompiled time)" if found.of_eager else ")"
    else:
        text = "planned: " + (kinds(False) or "nothing")
        if again := kinds(True):
            text += f", run again in backward: {again}"
        text += f" ({round(100 * found.share)} % of activation bytes, {number})"
    reasons = list(dict.fromkeys(plain))
    if reasons:
        more = f" and {len(reasons) - PLAIN_MOST} more" if len(reasons) > PLAIN_MOST else ""
        text += f"; plain: {', '.join(reasons[:PLAIN_MOST])}{more}"
    return text
