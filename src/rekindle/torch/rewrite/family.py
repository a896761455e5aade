"""The graphs of one step, as `planning.variants` chooses among them: as it was captured, and with the rewrites that may pay."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from ...ask import PlanOptions
from ...model.graph import Graph
from ...model.judge import plain_activation_bytes
from ...model.plan import Plan
from ...planning.variants import CLOSE, Steps
from ..trace import Trace
from .candidates import Rewrites
from .closeness import sums
from .finding import Allowed
from .probe import Bits
from .region import adds_up
from .rewritten import with_captured, with_rewrites

Make = Callable[[Trace, PlanOptions], Plan]


class TraceFamily:
    """The variants of one trace. Its methods are those of `planning.variants.Family`. make : plans a trace, for options in its
    own terms."""

    def __init__(self, traced: Trace, options: PlanOptions, make: Make):
        self._make, self._report, self._close = make, options.report, options.parity == CLOSE
        self._captured = traced
        self._bits = Bits(table=traced.fake)
        self._traces: dict[Steps, Trace] = {(): traced}
        self._found_by: dict[Steps, Rewrites] = {}

    @cached_property
    def _packed(self) -> Rewrites:
        return Rewrites(self._captured.lowered, plain_activation_bytes(self._captured.graph))

    @cached_property
    def _unpacked(self) -> Rewrites:
        return Rewrites(self._packed.low, self._packed.plain_bytes, with_saves=False)

    def _noted(self, steps: Steps, by: Rewrites) -> Steps:
        self._found_by[steps] = by
        return steps

    def smaller_saves(self, packed: bool = True) -> Steps:
        rewrites = self._packed if packed else self._unpacked
        return self._noted(rewrites.smaller_saves(), rewrites)

    def in_slices(self, far: bool, rounding: bool, packed: bool = True) -> Steps:
        rewrites = self._packed if packed else self._unpacked
        if rounding:
            return self._noted(rewrites.in_slices(Allowed(lambda n, cut: True, None, far)), rewrites)
        found = rewrites.in_slices(Allowed(lambda n, cut: not adds_up(cut), self._bits, far))
        self._bits.save()
        return self._noted(found, rewrites)

    def graph(self, steps: Steps) -> Graph:
        if steps not in self._traces:
            self._traces[steps] = self._rewritten(steps)
        return self._traces[steps].graph

    def _rewritten(self, steps: Steps) -> Trace:
        traced = self._traces[()]
        if not self._close:
            by = self._found_by.get(steps)  # None: another process found them
            return with_rewrites(traced, steps) if by is None else with_captured(traced, by.after(steps))
        # Slices that round are marked, so that the plan names the parameters whose gradients may differ.
        made = with_rewrites(traced, steps, self._bits)
        self._bits.save()
        return made

    def costed(self, steps: Steps) -> Graph:
        target = self._traces[()].options.target
        made = self._traces[steps] = self._traces[steps].costed(target, self._report)
        return made.graph

    def sums(self, steps: Steps) -> tuple[str, ...]:
        return sums(self._traces[steps].lowered.captured)

    def plan(self, steps: Steps, options: PlanOptions) -> Plan:
        return self._make(self._traces[steps], options)

    def leave_out_guesses(self) -> None:
        self._traces[()] = self._traces[()].without_guesses()
