"""The rewrites of a captured step that may pay, as lists of steps: smaller saves alone, and with regions in slices."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from torch import fx

from ...errors import PlanMismatch
from ...model.floor import single_op
from ...model.rewriting import CONVOLUTIONS, PICKED, SAVES, Rewrite
from ..capture.captured import Captured
from ..capture.lowered import Lowered
from ..capture.normalise import lower
from ..operators.node_tensors import storage_bytes
from .apply import after
from .convolutions import may_split
from .editing import without_aliases
from .estimate import WorkingSets
from .finding import SETTINGS as FINDING
from .finding import Allowed, next_region
from .picked import may_pick
from .saves import saves
from .wording import told

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CandidateSettings:
    """Sizes from which ops are rewritten. All are guesses that served on the benchmark's models.

    convolution_share : a convolution's backward becomes two calls where its input takes so much of the largest working set.
    save_share : a smaller save is offered for tensors that take so much of the plain step's activation peak.
    picked_share : a loss picks its log-probabilities first where they take so much of the largest working set.
    """

    convolution_share: float = 0.05
    save_share: float = 0.002
    picked_share: float = 0.1


SETTINGS = CandidateSettings()


class Rewrites:
    """The rewrites of one captured step.

    low : the step, lowered and costed. plain_bytes : its activation peak where each op runs once.
    with_saves : whether smaller saves are among them; packing takes time.
    floor_bytes : the working set of its largest op. small_bytes : size of tensors for which a smaller save is offered.
    """

    def __init__(self, low: Lowered, plain_bytes: int, with_saves: bool = True):
        self.low, self.plain_bytes, self.with_saves = low, plain_bytes, with_saves
        self.floor_bytes = single_op(low.graph).bytes - low.graph.resident_bytes
        self.small_bytes = max(1, int(SETTINGS.save_share * plain_bytes))
        self._prepared: tuple[tuple[Rewrite, ...], Captured] | None = None
        self._captured: dict[tuple[Rewrite, ...], Captured] = {}

    def smaller_saves(self) -> tuple[Rewrite, ...]:
        """Rewrites without slices; () where there is nothing to rewrite."""
        return self._base()[0]

    def in_slices(self, allowed: Allowed) -> tuple[Rewrite, ...]:
        """Rewrites with regions in slices; () where no region lowers the floor."""
        steps, base = self._base()
        captured, sets = base, self._working_sets(base)
        enough, found = FINDING.enough * sets.largest, list[Rewrite]()
        while len(found) < FINDING.rounds_most and (not found or sets.largest > enough):
            step = next_region(sets, allowed)
            if step is None:
                break
            step = told(captured, step)
            try:
                captured = after(captured, step, copy=captured is base)
            except PlanMismatch as e:
                log.debug("no more regions in slices: %s", e)
                captured = _all_after(base, found)
                break
            found.append(step)
            sets = self._working_sets(captured)
        if not found:
            return ()
        self._captured[(*steps, *found)] = captured
        return (*steps, *found)

    def has(self, steps: tuple[Rewrite, ...]) -> bool:
        """Whether this object gave these rewrites."""
        return steps in self._captured or steps == self._base()[0]

    def after(self, steps: tuple[Rewrite, ...]) -> Captured:
        """The step after rewrites that this object gave."""
        return self._base()[1] if steps == self._base()[0] else self._captured[steps]

    def _base(self) -> tuple[tuple[Rewrite, ...], Captured]:
        """(the rewrites that come before slices, the step after them)."""
        if self._prepared is None:
            captured, steps = without_aliases(self.low.captured), []
            for kind, ops in ((CONVOLUTIONS, self._convolutions), (PICKED, self._losses), (SAVES, self._saves)):
                at = tuple(i for i, n in enumerate(captured.nodes) if ops(n))
                if at:
                    steps.append(told(captured, Rewrite(kind, at)))
                    captured = after(captured, steps[-1], copy=False)
            self._prepared = tuple(steps), captured
        return self._prepared

    def _convolutions(self, n: fx.Node) -> bool:
        return may_split(n) and _bytes(n.args[1]) >= SETTINGS.convolution_share * self.floor_bytes

    def _losses(self, n: fx.Node) -> bool:
        return may_pick(n) and _bytes(n.args[0]) >= SETTINGS.picked_share * self.floor_bytes

    def _saves(self, n: fx.Node) -> bool:
        t = saves(n) if self.with_saves else None
        return t is not None and storage_bytes(t) >= self.small_bytes

    def _working_sets(self, captured: Captured) -> WorkingSets:
        return WorkingSets(lower(captured, self.low.graph.name, self.low.graph.resident_bytes))


def _all_after(captured: Captured, steps: list[Rewrite]) -> Captured:
    """The step after several rewrites. The given one stays as it is."""
    for k, step in enumerate(steps):
        captured = after(captured, step, copy=not k)
    return captured


def _bytes(n: object) -> int:
    assert isinstance(n, fx.Node)
    return storage_bytes(n.meta["val"])
