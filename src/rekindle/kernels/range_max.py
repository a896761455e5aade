"""The largest number of any range of an array: linear time and memory to prepare, constant time to ask."""

from __future__ import annotations

import numpy as np

from .compiled import entry

# At least the logarithm of any length: then what is known of blocks in a row is no longer than the numbers.
BLOCK = 32


@entry
def range_max(x):
    """What `largest` asks, of x, int64 [n]. O(n).

    int64 [4, n rounded up to whole blocks]: the numbers; the largest of its block up to each; from each on; and, for k
    blocks in a row, k = 1, 2, 4, ..., the largest of those from each block on, one such list behind the other.
    """
    n = len(x)
    count = max(1, (n + BLOCK - 1) // BLOCK)
    known = np.zeros((4, count * BLOCK), np.int64)
    known[:3, :n] = x
    for i in range(1, n):
        if i % BLOCK:
            known[1, i] = max(known[1, i], known[1, i - 1])
    for i in range(n - 2, -1, -1):
        if (i + 1) % BLOCK:
            known[2, i] = max(known[2, i], known[2, i + 1])
    for b in range(count):
        known[3, b] = known[2, b * BLOCK]
    at, span = count, 1
    while 2 * span <= count:
        for b in range(count):
            known[3, at + b] = max(known[3, at - count + b], known[3, at - count + min(b + span, count - 1)])
        at += count
        span *= 2
    return known


@entry
def largest(known, low, high):
    """The largest of x[low:high], where known = range_max(x) and no number is below 0; 0 where that is nothing."""
    if high <= low:
        return 0
    begin, end = low // BLOCK, (high - 1) // BLOCK
    if begin == end:
        found = 0
        for i in range(low, high):
            found = max(found, known[0, i])
        return found
    found = max(known[2, low], known[1, high - 1])
    between = end - begin - 1
    if between > 0:
        count, at, span = known.shape[1] // BLOCK, 0, 1
        while 2 * span <= between:
            at += count
            span *= 2
        found = max(found, known[3, at + begin + 1], known[3, at + end - span])
    return found
