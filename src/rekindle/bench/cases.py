"""A model with its step and the instruments that measure it; the same for plain, comparators and plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..torch.costs.flops import FlopCount
from ..torch.costs.instrument import Instrument, Together
from ..torch.costs.modelled import ModelledTime
from .methods import TARGET

PeakOf = Callable[[Callable[[], None], Sequence[Instrument]], int]


@dataclass(frozen=True)
class Measured:
    """Of one step. peak : bytes above what is held before it and stays. flops, seconds : of every operator that ran;
    seconds are the roofline's."""

    peak: int
    flops: int
    seconds: float


@dataclass(frozen=True)
class Case:
    """A model and how one step of it is measured.

    mode : what its steps run under.
    step : one training step, forward and backward, by the model's present forward.
    peak_of : instrument: peak bytes of a step; further instruments see the same step.
    extra_bytes : what the instrument counts on top of a plan's activation peak.
    parity : whether the model's step gives the plain step's bits; None where it cannot be told.
    fake : steps run on tensors without data.
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

    def once(self) -> None:
        """One step, not measured."""
        with self.mode:
            self.step()

    def measure(self, target: str = TARGET) -> Measured:
        """Measure one step; on real tensors the peak on one step and the rest on another, since counting gets between
        the model and its kernels."""
        flops, time = FlopCount(), ModelledTime(target)
        with self.mode:
            if self.fake:
                peak = self.peak_of(self.step, (flops, time))
            else:
                peak = self.peak_of(self.step, ())
                with Together(flops, time):
                    self.step()
        return Measured(peak, flops.total, time.total)
