"""Sets of values that are dear to recompute, which forward may save from its first pass on."""

from __future__ import annotations

import numpy as np

from .chain import Chain


def costly(chain: Chain, weights: np.ndarray, levels: int) -> list[np.ndarray]:
    """Sets of values, each bool [values], that are dear to recompute for the bytes they take: at most `levels` sets, the
    first with all values that cost anything, each further one a part of the one before."""
    lives, a = chain.lives, chain.graph.arrays
    movable = (lives.made >= 0) & (lives.made < chain.turn) & (lives.size > 0)
    ids = np.flatnonzero(movable)
    density = weights[a.producer[ids]] / lives.size[ids]
    ids, density = ids[density > 0], density[density > 0]
    order = np.lexsort((-ids, -density))
    ids = ids[order]
    total = np.cumsum(lives.size[ids])
    found = []
    for share in np.linspace(1, 0, levels + 1)[:-1]:
        mask = np.zeros(len(movable), np.bool_)
        mask[ids[: int(np.searchsorted(total, share * total[-1], side="right")) if len(ids) else 0]] = True
        found.append(mask)
    return list({mask.tobytes(): mask for mask in found if mask.any()}.values())
