"""Short patterns for paths of modules that differ in a number: `blocks.*`, `blocks.0-3`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NUMBERED = re.compile(r"(.*?)(\d{1,18})", re.DOTALL)  # Python does not read numbers of thousands of digits
LEVELS_MOST = 100  # of a path that are told apart; a tree of modules is gone through by recursion


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges; only the first and the last range where there are more than three.

    >>> ranges([0, 2, 3, 4, 9]), ranges([0, 2, 4, 6])
    ('0,2-4,9', '0,…,6')
    """
    found: list[list[int]] = []
    for n in sorted(set(numbers)):
        if found and n == found[-1][1] + 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    words = [f"{a}" if a == b else f"{a}-{b}" for a, b in found]
    return ",".join(words if len(words) <= 3 else [words[0], "…", words[-1]])


def paths_pattern(paths: Sequence[str], every: Sequence[str]) -> str:
    """One pattern for some of these paths, where they differ in one number; else the first path and how many more.

    >>> paths_pattern(["h.0", "h.1"], ["h.0", "h.1", "head"]), paths_pattern(["h.0", "h.1"], ["h.0", "h.1", "h.2"])
    ('h.*', 'h.0-1')
    >>> paths_pattern(["a", "b", "c"], ["a", "b", "c"])
    'a and 2 more'
    """
    distinct = list(dict.fromkeys(paths))
    if len(distinct) == 1:
        return distinct[0]
    split = [p.split(".") for p in distinct]
    length = len(split[0])
    different = [i for i in range(length) if len({s[i] for s in split if len(s) == length}) > 1]
    if all(len(s) == length for s in split) and len(different) == 1:
        at = different[0]
        numbered = [NUMBERED.fullmatch(s[at]) for s in split]
        stems = {m[1] for m in numbered if m}
        if all(numbered) and len(stems) == 1:
            stem = stems.pop()
            before, after = split[0][:at], split[0][at + 1 :]
            alike = {p for p in every if _fits(p.split("."), before, stem, after)}
            label = "*" if alike <= set(distinct) else ranges(int(m[2]) for m in numbered if m)
            return ".".join([*before, stem + label, *after])
    return f"{distinct[0]} and {len(distinct) - 1} more"


def _fits(path: list[str], before: list[str], stem: str, after: list[str]) -> bool:
    if len(path) != len(before) + 1 + len(after):
        return False
    at = len(before)
    numbered = NUMBERED.fullmatch(path[at])
    return path[:at] == before and path[at + 1 :] == after and numbered is not None and numbered[1] == stem
