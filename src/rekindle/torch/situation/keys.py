"""Keys of single objects: of arrays (NumPy's, Python's `array` and `bytearray`) by content, of any object by identity."""

from __future__ import annotations

import array
import functools
import sys
import weakref
import zlib
from collections.abc import Callable
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


class Same:
    """A key that equals only the key of the same object, and keeps it alive only where Python has no weak reference."""

    __slots__ = ("_hash", "_of")

    def __init__(self, x: Any):
        self._hash = id(x)
        self._of: Callable[[], Any]
        try:
            self._of = weakref.ref(x)
        except TypeError:
            self._of = functools.partial(_itself, x)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same):
            return NotImplemented
        mine = self._of()
        return mine is not None and mine is other._of()

    def __repr__(self) -> str:
        x = self._of()
        return getattr(x, "__qualname__", None) or f"a {type(x).__name__}"


def apart_from_identity(key: Any) -> Any:
    """The key without the identities in it: equal for keys that differ only in which objects they name."""
    if isinstance(key, tuple | frozenset):
        return type(key)(map(apart_from_identity, key)) if type(key) in (tuple, frozenset) else key
    return Same if isinstance(key, Same) else key


def _itself(x: Any) -> Any:
    return x
