"""ARRAYS"""

from __future__ import annotations

import array
import sys
import zlib
from typing import Any

Key = Any

EXACT = 2**12  # bytes of an array that are kept to be compared; of larger ones their checksum


LARGEST = 2**26  # bytes of an array; of larger ones elements spread evenly count


SPREAD = 2**12  # elements of those


def is_array(x: Any) -> bool:
    """Whether it holds bytes that can be written to in place; or is a number of NumPy's."""
    numpy: Any = sys.modules.get("numpy")
    numpys = () if numpy is None else (numpy.ndarray, numpy.generic)
    return isinstance(x, bytearray | array.array) or isinstance(x, numpys) and not x.dtype.hasobject


def array_key(x: Any) -> Key:
    """What an array holds: its bytes, their checksum, or some of them."""
    head = (str(x.dtype), x.shape) if hasattr(x, "dtype") else (len(x),)
    size = x.nbytes if hasattr(x, "nbytes") else len(x) * getattr(x, "itemsize", 1)
    if size <= EXACT:
        return (*head, x.tobytes() if hasattr(x, "tobytes") else bytes(x))
    if size > LARGEST:
        flat = getattr(x, "flat", x)
        some = flat[:: len(flat) // SPREAD]
        return (*head, some.tobytes() if hasattr(some, "tobytes") else bytes(some))
    try:
        return (*head, zlib.crc32(x.T if hasattr(x, "T") and not x.flags.c_contiguous else x))
    except (BufferError, ValueError, TypeError):  # not in one piece; a type that no buffer has
        return (*head, zlib.crc32(x.tobytes()))
