"""The memory that a device takes beside the bytes of storages: rounding by its allocator, and the framework's own."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20
BLOCK_BYTES = 512  # CUDA's allocator rounds every size up to it
LARGE_BYTES = 10 * MIB  # a larger storage gets a segment of its own, in whole units of SEGMENT_BYTES
SEGMENT_BYTES = 2 * MIB


@dataclass(frozen=True)
class Framework:
    """Bytes that a process takes on a GPU before its first tensor, and for libraries. Guesses: none was measured.

    context : the driver's context with the kernels that PyTorch loads. products : the workspace that PyTorch gives to cuBLAS
    by default; products_hopper : on GPUs of compute capability 9.
    """

    context: int = 600 * MIB
    products: int = 8 * MIB + 128 * 1024
    products_hopper: int = 32 * MIB


FRAMEWORK = Framework()
HOPPER = (9, 0)


def rounded_on_gpu(size: int) -> int:
    """Bytes that CUDA's allocator takes for a storage of `size` bytes.

    >>> [rounded_on_gpu(n) for n in (0, 1, 512, 513, 10 * 2**20 + 1)]
    [0, 512, 512, 1024, 12582912]
    """
    unit = SEGMENT_BYTES if size > LARGE_BYTES else BLOCK_BYTES
    return -(-size // unit) * unit


def as_it_is(size: int) -> int:
    """Bytes that the CPU's allocator takes for a storage of `size` bytes."""
    return size


def overhead(capability: tuple[int, int] | None) -> int:
    """Bytes of the framework on a GPU of this compute capability; 0 on the CPU."""
    return 0 if capability is None else FRAMEWORK.context


def products_workspace(capability: tuple[int, int] | None) -> int:
    """Bytes of the workspace that matrix products have on a GPU of this compute capability; 0 on the CPU."""
    if capability is None:
        return 0
    return FRAMEWORK.products_hopper if capability >= HOPPER else FRAMEWORK.products
