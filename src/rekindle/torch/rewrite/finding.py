"""Finds the regions of a captured step that should run in slices: those around the op that sets the floor.

No schedule stays below the working set of the largest op. Around that op, a region is grown for each dimension along which the
op can be cut; the one after which the largest working set is smallest is taken, and the same is done for the op that is largest
then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from torch import fx

from ...model.rewriting import SLICES, Rewrite
from ..costs.operator_calls import call_of
from ..lowering.lowered import Lowered
from ..operators.node_tensors import is_view, storage_bytes, tensors_of
from .cuts import SUM, Cut
from .estimate import WorkingSets
from .probe import Bits
from .region import May, Region, grown, handed_over_whole, is_slice, units, whole_views

# How far regions reach. All are guesses that served on the benchmark's models.
SLICES_USUAL = 8  # of a region, where its tensors can be cut into so many
SLICES_OF_FEW, FEW_OPS = 16, 3  # slices of a region of at most so many ops
# A region goes on along tensors that are larger than this share of the largest working set. The far ones are for where much
# recomputation is allowed, so that larger regions pay.
NEAR_SHARES, FAR_SHARES = (0.1, 0.3, 1.01), (0.03, 0.05)
# Regions whose largest working sets are equal to within this share are alike: the one of fewer ops is taken.
ALIKE_SHARE = 0.03
REGION_WORTH_SHARE = 0.97  # a region is taken if it lowers the largest working set to this share or less
SMALL_SHARE = 0.05  # of the largest working set: the results of an op that gives the gradient of a weight take no more
TRIES_MOST = 6  # of a region, where slices of some ops turn out to give other bits


@dataclass(frozen=True)
class Allowed:
    """The regions that may run in slices.

    may : whether an op may be cut in a way. bits : proves of ops that their slices give the same bits; None: they need not.
    far : whether much recomputation is allowed: of regions that are alike, the one that puts the fewest bytes together is
        taken.
    """

    may: May
    bits: Bits | None
    far: bool = False

    @property
    def reach(self) -> tuple[float, ...]:
        """The shares of the largest working set from which regions go on along a tensor."""
        return (*FAR_SHARES, *NEAR_SHARES) if self.far else NEAR_SHARES

    def differing(self, region: Region) -> set[tuple[fx.Node, Cut]]:
        """The ops of a region, with their cuts, whose slices are not proven to give the same bits."""
        if self.bits is None:
            return set()
        size = units(region.cuts)
        return {(n, c) for n, c in region.cuts.items() if not self.bits.same(n, c, region.slices, size)}


def next_region(sets: WorkingSets, allowed: Allowed) -> Rewrite | None:
    """The region that lowers the largest working set most, or the number of ops whose working sets come near it; None: no
    region does."""
    differing: set[tuple[fx.Node, Cut]] = set()
    whole = handed_over_whole(sets.low.captured)

    def may(n: fx.Node, cut: Cut) -> bool:
        return n not in whole and allowed.may(n, cut) and (n, cut) not in differing

    for _ in range(TRIES_MOST):
        region = _next_region(sets, replace(allowed, may=may))
        if region is None:
            return None
        found = allowed.differing(region)
        if not found:
            return _rewrite(sets.low, region)
        differing |= found
    return None


def _next_region(sets: WorkingSets, allowed: Allowed) -> Region | None:
    """The best region of ops that may be cut."""
    now = sets.largest
    before = _Worth.of(sets.bytes, now, -1)
    for i in np.flatnonzero(sets.bytes > REGION_WORTH_SHARE * now):
        n = sets.nodes[i]
        region = None if n is None or not _gives_little(n, now) else _made_again(sets, n, allowed)
        if region is not None and _Worth.of(sets.cut(region), now, len(region.cuts)).better(before):
            return region
    seed = sets.nodes[int(sets.bytes.argmax())] if now else None
    if seed is None:
        return None
    best: tuple[_Worth, Region] | None = None
    for region in _grown(sets, seed, allowed):
        worth = _Worth.of(sets.cut(region), now, sets.together(region) if allowed.far else len(region.cuts))
        if best is None or worth.better(best[0]):
            best = (worth, region)
    return best[1] if best is not None and best[0].better(before) else None


def _grown(sets: WorkingSets, seed: fx.Node, allowed: Allowed) -> Iterator[Region]:
    """The regions around an op, each once: those that go on from backward into forward, and those that do not."""
    seen, late, may = set(), sets.late, allowed.may

    def in_phase(n: fx.Node, cut: Cut) -> bool:
        return may(n, cut) and (n in late) == (seed in late)

    for cut in sets.cuts_of(seed):
        if is_slice(seed) or not may(seed, cut):
            continue
        for share in allowed.reach:
            for goes_on in (may, in_phase):
                cuts = grown(seed, cut, int(share * sets.largest), goes_on, sets.cuts_of)
                few = sum(not is_view(n) for n in cuts) <= FEW_OPS
                slices = min(SLICES_OF_FEW if few else SLICES_USUAL, units(cuts))
                if slices >= 2 and (key := frozenset(cuts.items())) not in seen:
                    seen.add(key)
                    yield Region(cuts, slices, whole_views(cuts, sets.low.captured))


def _gives_little(n: fx.Node, now: int) -> bool:
    """Whether the op's results take next to nothing of its working set: the gradient of a weight."""
    return sum(storage_bytes(t) for _, t in tensors_of(n)) <= SMALL_SHARE * now


def _made_again(sets: WorkingSets, seed: fx.Node, allowed: Allowed) -> Region | None:
    """A region that gives the gradient of a weight, and makes the gradient that it reads slice by slice for itself alone: the
    ops before it run whole too, for their other readers. None: the slices may be added up, or no op before it can be cut.

    A whole weight gradient needs the input and the gradient of the result at the same time, both whole.
    """
    if any(SUM in c.outs and allowed.may(seed, c) for c in sets.cuts_of(seed)):
        return None

    def free(n: fx.Node, cut: Cut) -> bool:
        return allowed.may(n, cut) and (n is seed or n in sets.late and not _flops(n))

    for region in _grown(sets, seed, replace(allowed, may=free)):
        kept = frozenset(region.cuts) - {seed}
        if kept:
            return Region(region.cuts, region.slices, kept)
    return None


@dataclass(frozen=True)
class _Worth:
    """How good a region is.

    bytes : the largest working set. near : ops that come near the largest one of before. price : ops of the region, or bytes
        that it puts together: among regions that are alike, the lowest is best.
    """

    bytes: int
    near: int
    price: int

    @classmethod
    def of(cls, sets: np.ndarray, before: int, price: int) -> _Worth:
        return cls(int(sets.max()), int((sets > REGION_WORTH_SHARE * before).sum()), price)

    def better(self, other: _Worth) -> bool:
        """Whether this region is to be taken in place of the other."""
        if self.near != other.near:
            return self.near < other.near
        if self.near or abs(self.bytes - other.bytes) <= ALIKE_SHARE * other.bytes:
            return self.price < other.price
        return self.bytes < other.bytes


def _flops(n: fx.Node) -> int:
    call = call_of(n, None)
    return 0 if call is None else call.flops


def _rewrite(low: Lowered, region: Region) -> Rewrite:
    place = {n: i for i, n in enumerate(low.captured.nodes)}
    cuts = region.cuts
    nodes = sorted(cuts, key=lambda n: place[n])
    dims = tuple((cuts[n].ins, cuts[n].outs) for n in nodes)
    return Rewrite(
        SLICES, tuple(place[n] for n in nodes), region.slices, dims, tuple(sorted(place[n] for n in region.kept))
    )
