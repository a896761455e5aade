"""Keys of arrays: NumPy's, Python's `array` and `bytearray`."""

from __future__ import annotations

import array
import sys
import zlib
from dataclasses import dataclass
from typing import Any

Key = Any


@dataclass(frozen=True)
class ArraySettings:
    """How much of an array its key holds. All are guesses.

    bytes_most : arrays up to this size are kept byte by byte; of larger ones the key holds a checksum.
    checksum_most_bytes : of arrays beyond this size the key holds only elements that are evenly spread.
    spread_elements : how many.
    """

    bytes_most: int = 2**12
    checksum_most_bytes: int = 2**26
    spread_elements: int = 2**12


SETTINGS = ArraySettings()


def is_array(x: Any) -> bool:
    """Whether x holds bytes that can be written to in place, or is a NumPy number."""
    numpy: Any = sys.modules.get("numpy")
    numpys = () if numpy is None else (numpy.ndarray, numpy.generic)
    return isinstance(x, bytearray | array.array) or isinstance(x, numpys) and not x.dtype.hasobject


def array_key(x: Any) -> Key:
    """A key of an array's content: its bytes, their checksum, or some of its elements."""
    head = (str(x.dtype), x.shape) if hasattr(x, "dtype") else (len(x),)
    size = x.nbytes if hasattr(x, "nbytes") else len(x) * getattr(x, "itemsize", 1)
    if size <= SETTINGS.bytes_most:
        return (*head, x.tobytes() if hasattr(x, "tobytes") else bytes(x))
    if size > SETTINGS.checksum_most_bytes:
        flat = getattr(x, "flat", x)
        some = flat[:: len(flat) // SETTINGS.spread_elements]
        return (*head, some.tobytes() if hasattr(some, "tobytes") else bytes(some))
    try:
        return (*head, zlib.crc32(x.T if hasattr(x, "T") and not x.flags.c_contiguous else x))
    except (BufferError, ValueError, TypeError):  # not contiguous, or a type that no buffer supports
        return (*head, zlib.crc32(x.tobytes()))
