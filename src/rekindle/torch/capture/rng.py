"""Saves and restores random states, so that a recomputed random op draws the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .private import fake_mode_of


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


def replay(saved: Any, device: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Return `call(*args, **kwargs)` with the generator in an earlier state, and put its present state back."""
    before = state(device)
    restore(saved, device)
    try:
        return call(*args, **kwargs)
    finally:
        restore(before, device)


def cuda_indices(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Sorted indices of the CUDA devices that the tensors are on."""
    return sorted({t.device.index or 0 for t in tensors if t.device.type == "cuda"})
