"""Bytes as people write them: "8GiB" to 8589934592 and back."""

from __future__ import annotations

import re
from fractions import Fraction

from ..errors import UsageError
from ..printed import value

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
MOST_BYTES = 2**62  # beyond any memory; what counts bytes counts no further


def parse_bytes(text: str) -> int:
    """Bytes in "8GiB", "8 GB", "512MiB", "1.5GiB" or "123456".

    Raises
    ------
    UsageError : the text is no size, is part of a byte, or is beyond any memory.
    """
    m = re.fullmatch(r"\s*([0-9]+)(\.[0-9]*)?\s*([a-zA-Z]*)\s*", text)
    if not m or m[3].upper() not in _UNITS or (m[2] and not m[3]):
        raise UsageError(f"{value(text)} is no size; write it like 8GiB, 8GB, 512MiB or as a number of bytes")
    unit = _UNITS[m[3].upper()]
    # Counted before it is read: reading takes time that grows with the square of the digits.
    if len(m[1].lstrip("0")) > 30 or int(m[1]) * unit > MOST_BYTES:
        raise UsageError(f"{value(text)} is beyond any memory; give at most {MOST_BYTES >> 60} EiB")
    return int(m[1]) * unit + int(Fraction("0" + (m[2] or ".")[:30] + "0") * unit)


def of_bytes(part: float, whole: float) -> str:
    """ "21.4 of 24.0 GiB"; each with its unit where they differ: "512.0 MiB of 1.0 GiB"."""
    one, two = format_bytes(part), format_bytes(whole)
    number, unit = one.split(" ")
    return f"{number if two.endswith(f' {unit}') else one} of {two}"


def format_bytes(n: float) -> str:
    """1536 -> "1.5 KiB"; one decimal, binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def exceeds(one: int, other: int | None, share: float = 0.001, least: int = 2**16) -> bool:
    """Whether one measured peak exceeds another one, if that is known, by more than a share of it and by more than so many
    bytes. By default it is more than blocks of allocators differ by; a guess."""
    return other is not None and one - other > max(share * other, least)
