"""What a sequence of runs needs made before it."""

from __future__ import annotations

import numba as nb


@nb.njit(cache=True)
def missing(runs, wanted, in_ptr, in_ids, out_ptr, out_ids):
    """Turns `wanted` (bool [values], to be there after `runs`) into what must be there before them. In place."""
    for s in range(len(runs) - 1, -1, -1):
        o = runs[s]
        for j in range(out_ptr[o], out_ptr[o + 1]):
            wanted[out_ids[j]] = False
        for j in range(in_ptr[o], in_ptr[o + 1]):
            wanted[in_ids[j]] = True
