"""A model with its training step and the instruments that measure it; plain steps, comparators and plans all use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..torch.costs.modelled import ModelledTime
from ..torch.operators.flops import FlopCount
from ..torch.tensors.instrument import Instrument, Together
from .methods import TARGET

PeakOf = Callable[[Callable[[], None], Sequence[Instrument]], int]


@dataclass(frozen=True)
class Measured:
    """Measurements of one step.

    peak : bytes above the memory that the step finds and leaves. flops, seconds : sums over every operator that ran;
    seconds follow from the target's roofline.
    """

    peak: int
    flops: int
    seconds: float


@dataclass(frozen=True)
class Case:
    """A model and how to measure one step of it.

    mode : context in which its steps run.
    step : one training step, forward and backward, by the model's present forward.
    peak_of : instrument for the peak bytes of a step; further instruments may watch the same step.
    extra_bytes : bytes that the instrument counts on top of a plan's activation peak.
    parity : whether the model's step gives the plain step's bits; None where that is unknown.
    fake : whether steps run on tensors without data.
    unused : results that the training loop does not read; see `rekindle.trace`.
    twin : makes the case of a small copy of the model on real tensors; None where there is none.
    """

    model: nn.Module
    sample: Any
    batch: int
    mode: AbstractContextManager[Any]
    step: Callable[[], None]
    peak_of: PeakOf
    extra_bytes: int
    parity: Callable[[], bool | None]
    fake: bool
    unused: tuple[str, ...] = ()
    twin: Callable[[], Case] | None = None

    def once(self) -> None:
        """Run one step without measuring it."""
        with self.mode:
            self.step()

    def measure(self, target: str = TARGET) -> Measured:
        """Measure one step.

        On real tensors, one step gives the peak and a second step the rest, because counting operators comes between the
        model and its kernels.
        """
        flops, time = FlopCount(), ModelledTime(target)
        with self.mode:
            if self.fake:
                peak = self.peak_of(self.step, (flops, time))
            else:
                peak = self.peak_of(self.step, ())
                with Together(flops, time):
                    self.step()
        return Measured(peak, flops.total, time.total)
