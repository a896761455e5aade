"""Whether a planned step leaves what the plain one leaves, bit for bit, on the device at hand.

Bits that kernels themselves vary from run to run cannot be compared: algorithms are deterministic meanwhile, and cuBLAS
is given a fixed workspace (CUBLAS_WORKSPACE_CONFIG, which must be set before the process first uses the device).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import nn

from gpu.cases import with_gradients
from rekindle.torch.check.verify import same

Left = dict[str, torch.Tensor | None]


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Deterministic algorithms where there are any; elsewhere a warning."""
    on, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(on, warn_only=warn)


def differences(
    model: nn.Module, step: Callable[[], torch.Tensor], planned: Callable[[], AbstractContextManager[None]]
) -> list[str]:
    """What differs between one plain step and one within `planned()`: names of parameters, buffers, "loss", "rng".
    Gradients and buffers are left as zeros and as they were."""
    before = {name: b.detach().clone() for name, b in model.named_buffers()}
    with deterministic():
        plain = _left(model, step, contextlib.nullcontext, before)
        ours = _left(model, step, planned, before)
    with_gradients(model)
    return [name for name in plain if not same(plain[name], ours[name])]


def _left(
    model: nn.Module,
    step: Callable[[], torch.Tensor],
    way: Callable[[], AbstractContextManager[None]],
    before: dict[str, torch.Tensor],
) -> Left:
    with_gradients(model)
    torch.manual_seed(0)
    with way():
        loss = step()
    left: Left = {"loss": loss} | {name: p.grad for name, p in model.named_parameters()}
    left |= {name: b.detach().clone() for name, b in model.named_buffers()}
    left["rng"] = torch.cuda.get_rng_state() if loss.is_cuda else torch.get_rng_state()
    with torch.no_grad():
        for name, b in model.named_buffers():
            b.copy_(before[name])
    return left
