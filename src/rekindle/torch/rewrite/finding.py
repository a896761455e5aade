"""Finds the regions of a captured step that should run in slices: those around the op that sets the floor.

No schedule stays below the working set of the largest op. Around that op, a region is grown for each dimension along which the
op can be cut; the one after which the largest working set is smallest is taken, and the same is done for the op that is largest
then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import fx

from ...model.rewriting import SLICES, Rewrite
from ..capture.lowered import Lowered
from .cuts import Cut, cuts_of
from .estimate import WorkingSets
from .regions import Cuts, grown
from .slices import units

May = Callable[[fx.Node, Cut], bool]


@dataclass(frozen=True)
class FindingSettings:
    """How far regions reach. All are guesses that served on the benchmark's models.

    slices : of a region, where its tensors can be cut into so many.
    far, near : a region goes on along tensors that are larger than this share of the working set of the op that it grows from;
        far : where much recomputation is allowed, so that larger regions pay.
    alike : regions whose largest working sets are equal to within this share are alike: the one of fewer ops is taken.
    worth : a region is taken if it lowers the largest working set to this share or less,
    enough : and none is looked for where that is as small a share of the first one.
    rounds_most : regions of one step.
    """

    slices: int = 8
    far: tuple[float, ...] = (0.03, 0.05)
    near: tuple[float, ...] = (0.1, 0.3, 1.01)
    alike: float = 0.03
    worth: float = 0.97
    enough: float = 0.15
    rounds_most: int = 4


SETTINGS = FindingSettings()


def next_region(low: Lowered, may: May, small_bytes: int, reach: tuple[float, ...]) -> tuple[Rewrite, int, int] | None:
    """(the region that lowers the largest working set most, that working set before, and about what it is after).

    None : no region lowers it.

    may : whether an op may be cut in a way. small_bytes : size of tensors for which backward takes smaller saves.
    reach : shares as in `FindingSettings`.
    """
    sets = WorkingSets(low, small_bytes)
    if not len(sets.bytes):
        return None
    now = int(sets.bytes.max())
    seed = sets.nodes[int(sets.bytes.argmax())]
    if seed is None:
        return None
    best: tuple[float, int, Cuts, int] | None = None
    seen = set()
    for cut in cuts_of(seed):
        if not may(seed, cut):
            continue
        for share in reach:
            cuts = grown(seed, cut, int(share * now), may)
            slices = min(SETTINGS.slices, units(cuts))
            if slices < 2 or (key := frozenset(cuts.items())) in seen:  # noqa: PLR2004
                continue
            seen.add(key)
            after = int(sets.cut(cuts, slices).max())
            if best is None or (after < best[0] * (1 - SETTINGS.alike) or after <= best[0] * (1 + SETTINGS.alike) and len(cuts) < best[1]):
                best = (after, len(cuts), cuts, slices)
    if best is None or best[0] > SETTINGS.worth * now:
        return None
    return _rewrite(low, best[2], best[3]), now, int(best[0])


def _rewrite(low: Lowered, cuts: Cuts, slices: int) -> Rewrite:
    place = {n: i for i, n in enumerate(low.captured.nodes)}
    nodes = sorted(cuts, key=lambda n: place[n])
    return Rewrite(SLICES, tuple(place[n] for n in nodes), slices, tuple((cuts[n].ins, cuts[n].outs) for n in nodes))
