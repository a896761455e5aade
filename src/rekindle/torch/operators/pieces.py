"""How large the pieces are in which an operator works, so that its temporaries stay small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PieceSettings:
    """The most bytes of temporaries: `least_bytes`, or one part in `share` of the tensor if that is more.

    The values are guesses: temporaries hardly count beside the tensor, and a GPU runs few kernels per tensor.
    """

    least_bytes: int = 4 * 2**20
    share: int = 64


SETTINGS = PieceSettings()


def most_bytes(tensor_bytes: int) -> int:
    """Bytes of temporaries that a call may make while it works on a tensor of this size."""
    return max(SETTINGS.least_bytes, tensor_bytes // SETTINGS.share)


@dataclass(frozen=True)
class Planes:
    """The planes of a batch of images, and the bytes of temporaries that one plane needs.

    shape : (images, channels). whole : bytes per plane while whole images are worked on. split : while single channels are.
    most : bytes that the temporaries may take; one plane may need more.
    """

    shape: tuple[int, int]
    whole: int
    split: int
    most: int

    @property
    def step(self) -> tuple[int, int]:
        """(images, channels) of a piece: whole images, or some channels of one image."""
        images, channels = self.shape
        fitting = self.most // max(1, channels * self.whole)
        if fitting or channels < 2:
            return max(1, min(images, fitting)), channels
        return 1, max(1, min(channels, self.most // self.split))

    @property
    def bytes(self) -> int:
        """Bytes of the temporaries of the largest piece."""
        images, channels = self.step
        return images * channels * (self.whole if channels == self.shape[1] else self.split)

    def __iter__(self) -> Iterator[tuple[slice, slice]]:
        images, channels = self.step
        for i in range(0, self.shape[0], images):
            for j in range(0, self.shape[1], max(1, channels)):
                yield slice(i, min(i + images, self.shape[0])), slice(j, min(j + channels, self.shape[1]))


@dataclass(frozen=True)
class Piece:
    """Elements that one bit of some bytes stands for, a run of them in each of some rows.

    bit : its number, 0 to 7. packed : where the bytes are in the rows of bytes. elements : where the elements are in the rows
    of elements; as many as there are bytes.
    """

    bit: int
    packed: tuple[slice, slice, slice]
    elements: tuple[slice, slice, slice]


def packed_bytes(elements: int) -> int:
    """Bytes that hold one bit for each element."""
    return -(-elements // 8)


@dataclass(frozen=True)
class Eighths:
    """All elements in pieces of at most `most`.

    shape : (planes, rows of a plane, elements of a row).

    Bit k of byte i of a row stands for element k * (bytes of a row) + i of the row: each bit has a contiguous eighth of the
    elements, so that kernels read and write without strides. The pieces for bit 0 of some bytes come before the pieces for
    their other bits.
    """

    shape: tuple[int, int, int]
    most: int

    @property
    def step(self) -> int:
        """Bytes of a row in a piece."""
        return max(1, min(packed_bytes(self.shape[2]), self.most))

    @property
    def _rows(self) -> Planes:
        return Planes(self.shape[:2], whole=self.step, split=self.step, most=self.most)

    @property
    def largest(self) -> int:
        """Elements of the largest piece."""
        return self._rows.bytes if 0 not in self.shape else 0

    def __iter__(self) -> Iterator[Piece]:
        elements, step = self.shape[2], self.step
        size = packed_bytes(elements)
        for rows in self._rows:
            for i in range(0, size, step):
                for bit in range(8):
                    begin = bit * size + i
                    length = min(step, size - i, elements - begin)
                    if length > 0:
                        yield Piece(bit, (*rows, slice(i, i + length)), (*rows, slice(begin, begin + length)))


def tensor_bytes(t: torch.Tensor) -> int:
    """Bytes of the elements of a tensor."""
    return int(t.numel()) * t.element_size()
