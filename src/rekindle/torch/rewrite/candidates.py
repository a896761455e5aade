"""The rewrites of a captured step that may pay, as lists of steps: smaller saves alone, and with regions in slices."""

from __future__ import annotations

import logging

from torch import fx

from ...errors import PlanMismatch
from ...model.floor import single_op
from ...model.rewriting import CONVOLUTIONS, PICKED, SAVES, Rewrite
from ..capture.captured import Captured
from ..lowering.editing import without_aliases
from ..lowering.lowered import Lowered
from ..lowering.normalise import lower
from ..operators.node_tensors import storage_bytes
from .estimate import WorkingSets
from .finding import Allowed, next_region
from .rewritten import after, rewritten
from .unsliced import may_pick, may_split, saves
from .wording import told

log = logging.getLogger(__name__)

# Shares from which ops are rewritten, and how far regions go. All are guesses that served on the benchmark's models.
# A convolution's backward becomes two calls where its input takes this share of the largest working set.
CONVOLUTION_SHARE = 0.05
PICKED_SHARE = 0.1  # of the largest working set: a loss picks its log-probabilities first where they take as much
SAVE_SHARE = 0.002  # of the plain step's activation peak: a smaller save is offered for tensors that take as much
ENOUGH_SHARE = 0.5  # of the first largest working set: no further region is looked for where it is as small
REGIONS_MOST = 6  # of one step


class Rewrites:
    """The rewrites of one captured step.

    low : the step, lowered and costed. plain_bytes : its activation peak where each op runs once.
    with_saves : whether smaller saves are among them; packing takes time.
    floor_bytes : the working set of its largest op. small_bytes : size of tensors for which a smaller save is offered.
    """

    def __init__(self, low: Lowered, plain_bytes: int, with_saves: bool = True):
        self.low, self.plain_bytes, self.with_saves = low, plain_bytes, with_saves
        self.floor_bytes = low.graph.beside_resident(single_op(low.graph).bytes)
        self.small_bytes = max(1, int(SAVE_SHARE * plain_bytes))
        self._prepared: tuple[tuple[Rewrite, ...], Captured] | None = None
        self._captured: dict[tuple[Rewrite, ...], Captured] = {}

    def smaller_saves(self) -> tuple[Rewrite, ...]:
        """Rewrites without slices; () where there is nothing to rewrite."""
        return self._base()[0]

    def in_slices(self, allowed: Allowed) -> tuple[Rewrite, ...]:
        """Rewrites with regions in slices; () where no region lowers the floor."""
        steps, base = self._base()
        captured, sets = base, self._working_sets(base)
        enough, found = ENOUGH_SHARE * sets.largest, list[Rewrite]()
        while len(found) < REGIONS_MOST and (not found or sets.largest > enough):
            step = next_region(sets, allowed)
            if step is None:
                break
            step = told(captured, step)
            try:
                captured = after(captured, step, copy=captured is base)
            except PlanMismatch as e:
                log.debug("no more regions in slices: %s", e)
                captured = rewritten(base, found)
                break
            found.append(step)
            sets = self._working_sets(captured)
        if not found:
            return ()
        self._captured[(*steps, *found)] = captured
        return (*steps, *found)

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
        return may_split(n) and _bytes(n.args[1]) >= CONVOLUTION_SHARE * self.floor_bytes

    def _losses(self, n: fx.Node) -> bool:
        return may_pick(n) and _bytes(n.args[0]) >= PICKED_SHARE * self.floor_bytes

    def _saves(self, n: fx.Node) -> bool:
        t = saves(n) if self.with_saves else None
        return t is not None and storage_bytes(t) >= self.small_bytes

    def _working_sets(self, captured: Captured) -> WorkingSets:
        return WorkingSets(lower(captured, self.low.graph.name, self.low.graph.resident_bytes))


def _bytes(n: object) -> int:
    assert isinstance(n, fx.Node)
    return storage_bytes(n.meta["val"])
