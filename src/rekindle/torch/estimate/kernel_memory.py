"""The memory that kernels take while they run: measured by running those few that could set the peak, once each.

Shape rules know inputs and results alone. A convolution on the CPU also takes copies of its tensors in another layout, as
large as the tensors themselves. How much depends on the machine, so the kernels run here, on made-up tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from ..costs.allocations import cpu_allocations, peak_and_end
from ..costs.made_up import made_up, new_bytes
from ..operators.rules import OVERSIZED
from ..private import disable_modes, profiler_is_running, tree_map_only
from ..tensors.op_tensors import tensors_in
from .kernel_calls import KernelCall, Like, batch_of, of_batch

log = logging.getLogger(__name__)


# A kernel runs, to see its memory, if it keeps all three limits. The numbers are guesses.
RUN_MOST_BYTES = 2**30  # of the tensors of one call and the memory that such a call usually takes
CALL_MOST_S = 1.0  # seconds of one call, by its roofline
ALL_MOST_S = 4.0  # seconds of all calls that run for one step, by their rooflines
# A plain convolution runs for these batches first: its memory was affine in the batch in all of 8 that were compared for
# batches up to 24. Kernels hardly exceed that line times the factor.
SMALL_BATCHES = (2, 4)
ABOVE_LINE = 1.3


class KernelMemory:
    """Knows the bytes that kernels of the CPU take beside inputs and results.

    counts : whether the step is for a CPU. Else no kernel is run, and `StepWatch` notes no call to ask about.
    """

    def __init__(self, counts: bool = True) -> None:
        self.counts, self._left_s = counts, 0.0
        self._known: dict[str, int | None] = {}

    def again(self, seconds: float = ALL_MOST_S) -> None:
        """Begin with another step: kernels may run for as long again."""
        self._left_s = seconds if self.counts and not profiler_is_running() else 0.0

    def likely(self, call: KernelCall) -> int:
        """Bytes that the kernel hardly exceeds. Plain convolutions run for two small batches."""
        line = self._by_small_batches(call) if call.plain else None
        return call.most if line is None else int(ABOVE_LINE * line)

    def of(self, call: KernelCall) -> int:
        """Bytes that the kernel takes while it runs, beside its inputs and results."""
        found = self._ran(call)
        if found is None:
            found = self._by_small_batches(call)
        return call.usual if found is None else found

    def guess(self, call: KernelCall) -> int:
        """Bytes that the kernel takes, as far as they are known without running it."""
        found = self._known.get(call.key)
        return min(call.usual, call.most) if found is None else found

    def _by_small_batches(self, call: KernelCall) -> int | None:
        """Bytes of a convolution by the line through two small batches of it; None: it is none, or is as small."""
        a, b = SMALL_BATCHES
        small = [of_batch(call, n) for n in (a, b)]
        sizes = [None if c is None else self._ran(c) for c in small]
        if sizes[0] is None or sizes[1] is None:
            return None
        return sizes[0] + (sizes[1] - sizes[0]) * (batch_of(call) - a) // (b - a)

    def _ran(self, call: KernelCall) -> int | None:
        if call.key not in self._known:
            ran = self.run(call)
            self._known[call.key] = None if ran is None else max(0, ran[1])
        return self._known[call.key]

    def run(self, call: KernelCall) -> tuple[Any, int] | None:
        """(the results of the call on made-up tensors, bytes that its kernel took beside them); None: it is not run."""
        size = sum(t.bytes for t in call.tensors)
        seconds = max(call.roofline_s, 1e-4)
        if size + call.usual > RUN_MOST_BYTES or seconds > min(CALL_MOST_S, self._left_s):
            return None
        self._left_s -= seconds
        try:
            return _run(call)
        except (RuntimeError, ValueError, TypeError, IndexError) as e:  # of kernels; others are mistakes of our own
            log.debug("memory of %s is not known: %s", call.target, e)
            return None


def _run(call: KernelCall) -> tuple[Any, int]:
    with ExitStack() as stack:
        stack.enter_context(disable_modes())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(
            torch.enable_grad()
        )  # a recurrent kernel then returns what backward needs; no tensor requires grad
        stack.enter_context(torch.autocast("cpu", enabled=False))
        made: dict[int, torch.Tensor] = {}
        make: Callable[[Any], Any] = made_up

        def real(t: Like) -> torch.Tensor:
            if t.number not in made:
                made[t.number] = make(t)
            return made[t.number]

        args, kwargs = tree_map_only(Like, real, (call.args, call.kwargs))
        with cpu_allocations() as events:
            out = call.target(*args, **kwargs)
        peak, _ = peak_and_end(delta for _, delta in events.events)
        return out, peak - new_bytes(out, (args, kwargs))


def sizes_unknown(op: Any, out: Any) -> bool:
    """Whether shape rules do not know the storages of all results: of the workspaces that recurrent kernels save, and of
    losses that kernels compute in the memory of a whole batch."""
    return op in OVERSIZED or any(t.dtype == torch.uint8 and not t.numel() for t in tensors_in(out))


def result_sizes(memory: KernelMemory, call: KernelCall) -> list[int] | None:
    """Bytes of the storages of the results; None: the kernel is not run, and nothing is known."""
    ran = memory.run(call)
    if ran is not None:
        return _sizes(ran[0])
    return [call.tensors[0].bytes] if call.target in OVERSIZED else None


def _sizes(out: Any) -> list[int]:
    return [t.untyped_storage().nbytes() for t in tensors_in(out)]
