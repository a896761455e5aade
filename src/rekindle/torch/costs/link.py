"""The link between a device and the host's memory: measured, or a named device's."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial

import torch

from ...model.graph import Link
from . import devices

COPY_S = 10e-6  # that a copy takes beside its bytes: its launch and its events. A rough figure for CUDA
MEASURED_BYTES = 2**26
REPEATS = 5
DIGITS = 2  # of the measured rates, so that a GPU's plan is mostly recognised at the next start
BOTH_AT_ONCE_SHARE = (
    0.75  # of the time of two copies in turn, below which two that are asked for together run at once. A guess
)


def link_of(device: torch.device, target: str | None, fake: bool) -> Link:
    """The link of the device called `target`; without a target of the device at hand, measured where it is not fake."""
    if target is not None or fake or device.type == "cuda" and not torch.cuda.is_available():
        named = devices.closest(device) if target is None else devices.get(target)
        return Link(named.link_bytes_per_s, named.link_bytes_per_s, COPY_S)
    return _measured(device)


@cache
def _measured(device: torch.device) -> Link:
    """The link of a device at hand, from the fastest of a few copies of a large block."""
    cuda = device.type == "cuda"
    here, there = (torch.empty(MEASURED_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    host, other = (torch.empty(MEASURED_BYTES, dtype=torch.uint8, device="cpu", pin_memory=cuda) for _ in range(2))
    if not cuda:
        out = _seconds(lambda: host.copy_(here))
        return Link(_rate(out), _rate(out), COPY_S, both_at_once=False)
    with torch.cuda.device(device):
        streams = torch.cuda.Stream(), torch.cuda.Stream()

        def copy(out: bool, back: bool) -> None:
            for stream, wanted, to, source in ((streams[0], out, host, here), (streams[1], back, there, other)):
                if wanted:
                    with torch.cuda.stream(stream):
                        to.copy_(source, non_blocking=True)
            torch.cuda.synchronize(device)

        out, back, both = (_seconds(partial(copy, *ways)) for ways in ((True, False), (False, True), (True, True)))
    return Link(_rate(out), _rate(back), COPY_S, both < BOTH_AT_ONCE_SHARE * (out + back))


def _seconds(run: Callable[[], object]) -> float:
    found = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def _rate(seconds: float) -> float:
    return float(f"{MEASURED_BYTES / seconds:.{DIGITS}g}")
