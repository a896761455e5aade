"""The memory of a step at marks that code inside it sets: the level at each mark, and the peak since the mark before."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.profiler import record_function

from ..costs.allocations import cpu_allocations, peak_and_end, recording_is_safe
from .memory import Storages

PREFIX = "rekindle: "


@dataclass(frozen=True)
class Level:
    """The memory at one mark, in bytes above the level at the step's begin.

    name : of the mark; "" is the end of the step. level : bytes then. peak : the most since the mark before.
    """

    name: str
    level: int
    peak: int


class Levels:
    """Measures one step. Code inside calls `mark` with a name that it uses once.

    device : its allocator is read. known : None on real tensors; on fake ones the tensors whose storages never count, and the
        storages that operators make are followed.
    found : the levels at the marks, and at the end.
    """

    def __init__(self, device: torch.device, known: Iterable[torch.Tensor] | None = None):
        self.found: list[Level] = []
        self._device, self._known = device, known
        self._note: Callable[[str], None] | None = None

    def mark(self, name: str) -> None:
        """Note the memory now."""
        if self._note is not None:
            self._note(name)

    def measure(self, step: Callable[[], Any]) -> int:
        """Run the step; gives its peak in bytes above the level at its begin."""
        gc.collect()
        try:
            if self._known is not None:
                self._by_storages(step, self._known)
            elif self._device.type == "cuda":
                self._on_cuda(step)
            elif not recording_is_safe():
                self._by_storages(step, ())
            else:
                self._on_cpu(step)
        finally:
            self._note = None
        return max((x.peak for x in self.found), default=0)

    def _by_storages(self, step: Callable[[], Any], known: Iterable[torch.Tensor]) -> None:
        storages = Storages(known)

        def note(name: str) -> None:
            storages.refresh()
            self.found.append(Level(name, storages.live, max(storages.peak, storages.live)))
            storages.peak = storages.live

        self._note = note
        with storages:
            step()
        note("")

    def _on_cuda(self, step: Callable[[], Any]) -> None:
        device = self._device
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        start = torch.cuda.memory_allocated(device)

        def note(name: str) -> None:
            level = torch.cuda.memory_allocated(device) - start
            self.found.append(Level(name, level, torch.cuda.max_memory_allocated(device) - start))
            torch.cuda.reset_peak_memory_stats(device)

        self._note = note
        step()
        torch.cuda.synchronize(device)
        note("")

    def _on_cpu(self, step: Callable[[], Any]) -> None:
        def note(name: str) -> None:
            with record_function(PREFIX + name):
                pass

        self._note = note
        with cpu_allocations(PREFIX) as log:
            step()
        marks = sorted((begin, name.removeprefix(PREFIX)) for name, (begin, _) in log.marks.items())
        level, at = 0, 0
        for begin, name in [*marks, (None, "")]:
            until = at
            while until < len(log.events) and (begin is None or log.events[until][0] < begin):
                until += 1
            peak, end = peak_and_end(delta for _, delta in log.events[at:until])
            self.found.append(Level(name, level + end, level + peak))
            level, at = level + end, until
