"""Watches one step on fake tensors: after each operator, the bytes that live, and who made them."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...model.op_names import operator_name
from ..costs import devices
from ..costs.operator_calls import op_seconds
from ..measure.measured_step import at_each_gradient
from ..measure.memory import Storages
from ..operators.node_tensors import describe
from ..private import OpOverload, backward_node_number, sequence_number
from ..tensors.op_tensors import storage_of, storages_of, tensors_in
from .kernel_memory import KernelCall, KernelMemory, kernel_call, may_take_memory, result_sizes, sizes_unknown

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer step"


@dataclass(frozen=True)
class Moment:
    """The memory right after an operator ran.

    live : bytes of the storages that the step made, as the device's allocator counts them. rounding : the part of them that is
        rounding. gradients : the part of live that is gradients of parameters, without rounding.
    working : bytes of the operator's own inputs and results that the step made.
    call : of its kernel; None: the kernel takes no memory of its own that is known.
    """

    phase: str
    module: str
    op: str
    shape: str
    live: int
    rounding: int
    gradients: int
    working: int
    seconds: float
    call: KernelCall | None

    @property
    def words(self) -> str:
        """The operator as a reader knows it: "layer1.0.conv1 (convolution, f32[8,64,56,56])"."""
        what = ", ".join(x for x in (operator_name(self.op), self.shape) if x)
        return f"{self.module} ({what})" if self.module else what


class StepWatch(Storages):
    """Follows the storages of a step, on fake tensors.

    known : tensors that are older than the step. rounded : bytes of a storage -> bytes that the allocator takes for it.
    device : its roofline gives the seconds. moments : one for each operator that ran.
    """

    def __init__(
        self, known: Iterable[torch.Tensor], rounded: Callable[[int], int], device: devices.Device, memory: KernelMemory
    ) -> None:
        self._rounded, self._device, self._memory = rounded, device, memory
        self._learned: dict[int, int] = {}  # id of a storage whose size its tensor does not tell -> bytes
        self._exact: dict[int, int] = {}  # id of a storage -> bytes without rounding
        self.rounding = 0
        self.makers: dict[int, str] = {}  # id of a storage -> path of the module that made it
        self.moments: list[Moment] = []
        self.phase, self.gradients, self.paths = FORWARD, 0, Paths()
        super().__init__(known)

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        super().after(func, args, kwargs, out)
        if not isinstance(func, OpOverload) or func.namespace in ("prim", "profiler"):
            return
        seconds = op_seconds(func, args, kwargs, out, self._device)
        call = None
        if may_take_memory(func):
            call = kernel_call(func, args, kwargs, out, lambda s: self._learned.get(id(s)), seconds)
            if call is not None and sizes_unknown(func, out):
                self._learn(call, out)
        module = self.paths.now(self.phase)
        made = tensors_in(out)
        for t in made:
            self.makers.setdefault(id(t.untyped_storage()), module) if t.layout is torch.strided else None
        touched = storages_of([*tensors_in((args, kwargs)), *made])
        working = sum(self._size(key) for key in touched if key in self.made)
        shape = describe(made[0]) if made else ""
        known = call if self._memory.counts else None
        self.moments.append(
            Moment(
                self.phase, module, str(func), shape, self.live, self.rounding, self.gradients, working, seconds, known
            )
        )

    def _learn(self, call: KernelCall, out: Any) -> None:
        sizes = result_sizes(self._memory, call)
        for t, size in zip(tensors_in(out), sizes or (), strict=False):
            storage = t.untyped_storage()
            if size > storage.nbytes() and id(storage) in self.made:
                self._learned[id(storage)] = size
                self._resize(id(storage), storage)

    def _size(self, key: int) -> int:
        return self.made[key][1]

    def _resize(self, key: int, storage: Any) -> None:
        ref, old = self.made[key]
        exact = self._learned.get(key, int(storage.nbytes()))
        if exact == self._exact.get(key, 0):
            return
        size = self._rounded(exact)
        self.rounding += size - exact - (old - self._exact.get(key, 0))
        self._exact[key] = exact
        self.made[key] = (ref, size)
        self.live += size - old

    def _gone(self, key: int) -> None:
        _, size = self.made.get(key, (None, 0))
        self.rounding -= size - self._exact.pop(key, size)
        self._learned.pop(key, None)
        self.makers.pop(key, None)
        super()._gone(key)

    def held_by(self) -> dict[str, int]:
        """Bytes of the storages that live now, by path of the module that made them."""
        found: dict[str, int] = {}
        for key, (_, size) in self.made.items():
            path = self.makers.get(key, "")
            found[path] = found.get(path, 0) + size
        return found

    def gradients_counted(self, parameters: Iterable[nn.Parameter]) -> AbstractContextManager[None]:
        """Inside, gradients of these parameters count as soon as backward has handed them over, each once."""
        seen: set[int] = set()

        def count(p: torch.Tensor) -> None:
            if id(p) not in seen and p.grad is not None:
                seen.add(id(p))
                self.gradients += self._exact.get(id(storage_of(p.grad)), 0)

        return at_each_gradient(parameters, count)


class Paths:
    """The module that an operator belongs to: the innermost one that runs, and in backward the one that ran forward."""

    def __init__(self) -> None:
        self._now = ""
        self._from: list[int] = []  # numbers of autograd nodes, rising
        self._paths: list[str] = []  # the module of the nodes from each number on

    def note(self, path: str) -> None:
        """Note that the module with this path runs now."""
        self._now = path
        self._from.append(sequence_number())
        self._paths.append(path)

    def now(self, phase: str) -> str:
        """The path of the module to which the operator belongs that runs now."""
        if phase == FORWARD:
            return self._now
        number = backward_node_number() if phase == BACKWARD else -1
        at = bisect.bisect_right(self._from, number) - 1
        return self._paths[at] if number >= 0 and at >= 0 else ""
