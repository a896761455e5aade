"""Random ops that run again must draw the same numbers, and leave the generator where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def state(device: str) -> Any:
    """State of the device's default generator. Kept as bytes: it is no device memory."""
    if torch._guards.detect_fake_mode() is not None:
        return None  # fake tensors hold no numbers, and the generator's state could not be read through the mode
    now = torch.cuda.get_rng_state(device) if device.startswith("cuda") else torch.get_rng_state()
    return now.numpy().tobytes()


def restore(saved: Any, device: str) -> None:
    """Put the device's default generator into a state that `state` returned."""
    if saved is None:
        return
    tensor = torch.frombuffer(bytearray(saved), dtype=torch.uint8)
    if device.startswith("cuda"):
        torch.cuda.set_rng_state(tensor, device)
    else:
        torch.set_rng_state(tensor)


def replay(saved: Any, device: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`call(*args, **kwargs)` with the generator in an earlier state; afterwards it is where it was."""
    before = state(device)
    restore(saved, device)
    try:
        return call(*args, **kwargs)
    finally:
        restore(before, device)


def cuda_indices(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Indices of the CUDA devices that tensors lie on."""
    return sorted({t.device.index or 0 for t in tensors if t.device.type == "cuda"})
