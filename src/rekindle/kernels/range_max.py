"""The largest number of any range of an array: linear time and memory to prepare, constant time to ask."""

from __future__ import annotations

import numpy as np

from .compiled import entry

# At least the logarithm of any length: then what is known of blocks in a row is no longer than the numbers.
BLOCK = 32
NUMBER, UP_TO, FROM_ON, BLOCKS = 0, 1, 2, 3  # rows of what `range_max` gives; its docstring tells them


@entry
def range_max(x):
    """The table in which `largest` looks up ranges of x, int64 [n]. O(n).

    int64 [4, n rounded up to whole blocks]. Row NUMBER: the numbers. Rows UP_TO and FROM_ON: the largest of the number's
    block up to it, and from it on. Row BLOCKS: for k = 1, 2, 4, ... one list after the other of the largest number in the
    k blocks from each block on.
    """
    n = len(x)
    count = max(1, (n + BLOCK - 1) // BLOCK)
    known = np.zeros((4, count * BLOCK), np.int64)
    known[: FROM_ON + 1, :n] = x
    for i in range(1, n):
        if i % BLOCK:
            known[UP_TO, i] = max(known[UP_TO, i], known[UP_TO, i - 1])
    for i in range(n - 2, -1, -1):
        if (i + 1) % BLOCK:
            known[FROM_ON, i] = max(known[FROM_ON, i], known[FROM_ON, i + 1])
    for b in range(count):
        known[BLOCKS, b] = known[FROM_ON, b * BLOCK]
    at, span = count, 1
    while 2 * span <= count:
        for b in range(count):
            known[BLOCKS, at + b] = max(
                known[BLOCKS, at - count + b], known[BLOCKS, at - count + min(b + span, count - 1)]
            )
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
            found = max(found, known[NUMBER, i])
        return found
    found = max(known[FROM_ON, low], known[UP_TO, high - 1])
    between = end - begin - 1
    if between > 0:
        count, at, span = known.shape[1] // BLOCK, 0, 1
        while 2 * span <= between:
            at += count
            span *= 2
        found = max(found, known[BLOCKS, at + begin + 1], known[BLOCKS, at + end - span])
    return found
