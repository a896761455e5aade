"""Measures the ways to run a part that cannot be captured: steps of the part by itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ...errors import RekindleError
from ...parts.plan import SaveRule
from ...parts.ways import Figures, Way, best
from ..compiled.saving import Prices
from ..costs.flops import FlopCount
from ..tensors.instrument import Instrument
from ..tensors.loss import default_loss
from ..trace import plain_forward
from .again import AgainForward
from .finding import Unit
from .trial_steps import TrialSteps

TIMINGS = 3  # of the forward, and of each step; a guess
TIMINGS_MOST_S = 0.5  # after which it is not timed again; a guess
RULES_MOST = 6  # rules that are measured; a guess


def again_ways(unit: Unit, device: torch.device, cost: str) -> list[Way]:
    """The ways of a part that cannot be captured: left open; running again; and running again but for what a rule saves.

    Steps are timed or counted. Backward costs less than twice the forward where parameters are frozen, so no such estimate
    serves.
    """
    with _Trial(unit, device, cost).ready() as trial:
        plain = trial.cost(trial.plain_step)
        found = [Way(None, trial.figures(None, plain), again=True)]
        for rule in trial.rules():
            with contextlib.suppress(RekindleError, RuntimeError):  # it writes to a result that would be saved
                found.append(Way(None, trial.figures(rule, plain), again=True, rule=rule))
    return [Way(None, Figures(0, 0, 0, 0.0, plain)), *best(found)]


class _Trial(TrialSteps):
    """Steps of a part that is left open, or runs again in backward. unit_of_cost : "seconds", "flops" or "unit"."""

    def __init__(self, unit: Unit, device: torch.device, unit_of_cost: str):
        super().__init__(unit, device)
        self._unit = unit_of_cost

    def plain(self) -> Any:
        """The plain forward."""
        return plain_forward(self.module)(*self.args, **self.kwargs)

    def plain_step(self) -> None:
        """The plain forward and its backward."""
        default_loss(self.plain()).backward()

    def rules(self) -> list[SaveRule]:
        """Rules between saving all dear results and saving the dearest alone."""
        with torch.no_grad(), Prices() as seen:
            self.plain()
        prices = sorted(seen.found - {0.0})
        n = min(len(prices), RULES_MOST)
        return [SaveRule(prices[round(i * (len(prices) - 1) / max(1, n - 1))]) for i in range(n)]

    def figures(self, rule: SaveRule | None, plain: float) -> Figures:
        """What the part takes that runs again by this rule. plain : cost of the plain step."""
        forward = AgainForward(self.module, rule)

        def step(between: Callable[[Any], None]) -> None:
            result = forward(*self.args, **self.kwargs)
            between(result)
            default_loss(result).backward()

        sizes = self.sizes_of(step)
        extra = self.cost(self.plain) if rule is None else max(0.0, self.cost(lambda: step(lambda _: None)) - plain)
        return replace(sizes, extra=extra, plain=plain)

    def cost(self, run: Callable[[], Any]) -> float:
        """What the code costs: FLOPs, operators, or seconds of the fastest of a few runs."""
        if self._unit == "flops":
            with FlopCount() as count:
                run()
            return float(count.total)
        if self._unit == "unit":
            with _Ops() as ops:
                run()
            return float(ops.count)
        taken: list[float] = []
        while len(taken) < TIMINGS and sum(taken) < TIMINGS_MOST_S:
            self.wait()
            begin = time.perf_counter()
            run()
            self.wait()
            taken.append(time.perf_counter() - begin)
        return min(taken)


class _Ops(Instrument):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self.count += 1
