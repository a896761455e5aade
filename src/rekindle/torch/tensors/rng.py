"""Saves and restores random states, so that a recomputed random op draws the same numbers."""

from __future__ import annotations

import ctypes
import threading
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...errors import RekindleError
from ..private import fake_mode_of, is_fake, tree_leaves


def state(device: str) -> Any:
    """State of the device's default generator, as bytes in host memory; None under fake tensors."""
    if fake_mode_of() is not None:
        return None  # fake tensors hold no numbers, and the generator's state could not be read through the mode
    now = torch.cuda.get_rng_state(device) if device.startswith("cuda") else torch.get_rng_state()
    return now.numpy().tobytes()


def restore(saved: Any, device: str) -> None:
    """Put the device's default generator into a state that `state` returned; None changes nothing."""
    if saved is None:
        return
    tensor = torch.frombuffer(bytearray(saved), dtype=torch.uint8)
    if device.startswith("cuda"):
        torch.cuda.set_rng_state(tensor, device)
    else:
        torch.set_rng_state(tensor)


_turn = threading.RLock()  # threads that train by plans draw in turns; others are noticed
# Random op -> states of the generator before and after its first run, its digest.
Kept = dict[Any, tuple[Any, Any, int]]


def draw(kept: Kept, op: int, device: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Return `call(*args, **kwargs)`, and keep for `replay` where the generator was."""
    with _turn:
        before = state(device)
        result = call(*args, **kwargs)
        kept[op] = before, state(device), _digest(result) if threading.active_count() > 1 else 0
    return result


def replay(kept: Kept, op: int, device: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Return `call(*args, **kwargs)` with the numbers that the op drew first, and put the generator's present state back.

    Raises
    ------
    RekindleError : another thread drew while the op ran, now or then: these would be other numbers.
    """
    with _turn:
        before, (begin, end, digest) = state(device), kept[op]
        restore(begin, device)
        try:
            result = call(*args, **kwargs)
            # Another thread may also have drawn right after the op, which does no harm.
            # With a digest it alone counts: another thread may have drawn as many numbers now as it did then.
            if digest != _digest(result) if digest else state(device) != end:
                raise RekindleError(
                    "a planned step cannot draw its random numbers again: another thread drew from torch's generator of "
                    f"{device} at the same moment, in forward or now, so gradients would be wrong. Let that thread draw "
                    "from a torch.Generator of its own, or plan with must_save= for the modules that draw"
                )
            return result
        finally:
            restore(before, device)


def _digest(result: Any) -> int:
    """A checksum of the bytes of all tensors in host memory; 0: there are none."""
    found = 0
    for t in tree_leaves(result):
        if isinstance(t, torch.Tensor) and t.device.type == "cpu" and not is_fake(t):
            raw = ctypes.c_char * t.untyped_storage().nbytes()
            found = zlib.crc32(raw.from_address(t.untyped_storage().data_ptr()), found) or 1
    return found


def cuda_indices(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Sorted indices of the CUDA devices that the tensors are on."""
    return sorted({t.device.index or 0 for t in tensors if t.device.type == "cuda"})
