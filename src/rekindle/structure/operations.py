"""Operations on the stages of a chain, as papers on chains write their schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..kernels.rotor import BACKWARD, FORGET, KEEP_ALL, KEEP_INPUT

__all__ = ["BACKWARD", "FORGET", "KEEP_ALL", "KEEP_INPUT", "Operation", "segmented"]

# (kind, stage). FORGET, KEEP_INPUT and KEEP_ALL run the stage forward and save nothing, its input, or all that backward
# reads of it; BACKWARD runs its backward.
Operation = tuple[int, int]


def segmented(turn: int, cuts: Sequence[int], last_again: bool = False) -> Iterator[Operation]:
    """The operations that save the inputs of the stages `cuts` and run each segment between two of them forward again once.

    turn : the last stage. last_again : run the last segment, with which backward begins, forward again too.
    """
    kept = {0, *cuts} - {turn} if last_again else {0, *cuts}
    begins = sorted(kept)
    ends = [*begins[1:], turn if last_again else turn + 1]
    kept_from = turn if last_again else begins[-1]
    for stage in range(turn + 1):
        yield (KEEP_ALL if stage >= kept_from else KEEP_INPUT if stage in kept else FORGET), stage
    if last_again:
        yield BACKWARD, turn
    for begin, end in zip(reversed(begins), reversed(ends), strict=True):
        if begin < kept_from:
            yield from ((KEEP_ALL, stage) for stage in range(begin, end))
        yield from ((BACKWARD, stage) for stage in range(end - 1, begin - 1, -1))
