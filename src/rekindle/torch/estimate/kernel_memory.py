"""The memory that kernels take while they run: measured by running those few that could set the peak, once each.

Shape rules know inputs and results alone. A convolution on the CPU also takes copies of its tensors in another layout, as
large as the tensors themselves. How much depends on the machine, so the kernels run here, on made-up tensors.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..costs.allocations import cpu_allocations, peak_and_end
from ..costs.made_up import made_up, new_bytes
from ..operators.rules import OVERSIZED, UNWRITTEN, draws_random
from ..private import OpOverload, disable_modes, profiler_is_running, tree_map_only
from ..tensors.op_tensors import storage_of, tensors_in

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Like:
    """The shape, strides and type of a tensor. number : of the tensor in its call, the same wherever the tensor is passed."""

    number: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    layout = torch.strided
    device = torch.device("cpu")

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the elements, each counted once however often it lies in memory."""
        return self.numel() * self.dtype.itemsize


@dataclass(frozen=True)
class KernelCall:
    """A call whose kernel may take memory of its own while it runs.

    target : the operator. args, kwargs : with a `Like` in place of each tensor. tensors : these. roofline_s : seconds that it
    takes at least. most : bytes that its kernel takes at most, by all calls that were measured; see `SHARES`. plain : it is a
    convolution of images, of stride 1, neither grouped nor dilated, of 16 channels and more.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: tuple[Like, ...]
    roofline_s: float
    most: int
    plain: bool

    @property
    def key(self) -> str:
        """Text that equal calls share."""
        return f"{self.target}{self.args}{self.kwargs}"

    @property
    def usual(self) -> int:
        """Bytes that its kernel usually takes, where it cannot be run."""
        shares = _shares(self.target)
        return int(shares.usual * sum(t.bytes for t in self.tensors)) + _copied(self.target, self.args)


@dataclass(frozen=True)
class Shares:
    """The memory that kernels of one kind take beside inputs and results, as a share of the bytes of both.

    usual : the median over the calls that were measured. most : above every call that was measured.
    plain : the same for convolutions of images, of stride 1, that are neither grouped nor dilated, of 16 channels and more.
    weights : for grouped convolutions, bytes per byte of weights on top.
    """

    usual: float
    most: float
    plain: float | None = None
    weights: float = 0.0


# Measured by `benchmarks/kernel_memory.py` on one machine (AMD EPYC, two cores, torch 2.13), rounded up. Convolutions bring
# tensors into another layout.
SHARES = {
    "convolution_backward": Shares(0.54, 6.0, 1.0, 256.0),
    "convolution": Shares(0.8, 8.0, 1.2),
    "mkldnn_rnn_layer_backward": Shares(1.0, 4.0),
    "mkldnn_rnn_layer": Shares(1.5, 4.0),
    "native_batch_norm_backward": Shares(0.33, 1.0),
    "native_batch_norm": Shares(0.0, 0.1),
    "mm": Shares(0.0, 0.02),
    "addmm": Shares(0.0, 0.02),
    "bmm": Shares(0.0, 0.02),
    "baddbmm": Shares(0.0, 0.02),
}
OTHERS = Shares(0.0, 1.0)
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
# Kernels that copy, index or compute by element take nothing, but for a few of each.
_TAKE_NOTHING = {"copy_", "clone", "cat", "stack", "add_", "fill_", "zero_", "ones_like", "zeros_like", "_to_copy", "embedding",
                 "bernoulli_", "native_dropout", "index_select", "sum", "mean"}  # fmt: skip


@functools.cache
def _shares(op: Any) -> Shares:
    return SHARES.get(_name(op), OTHERS)


def _name(op: Any) -> str:
    return str(op._schema.name).split("::")[-1]


@functools.cache
def may_take_memory(op: Any) -> bool:
    """Whether kernels of the operator may take memory of their own."""
    if not isinstance(op, OpOverload) or op.namespace not in ("aten", "mkldnn") or op._overloadpacket in UNWRITTEN:
        return False
    by_element = torch.Tag.pointwise in op.tags
    view = bool(op._schema.returns) and all(r.alias_info is not None for r in op._schema.returns)
    return not by_element and not view and not draws_random(op) and _name(op) not in _TAKE_NOTHING


def kernel_call(
    op: Any, args: Any, kwargs: Any, out: Any, bytes_of: Callable[[Any], int | None], roofline_s: float
) -> KernelCall | None:
    """The description of a call; None: its arguments are more than tensors and plain values.

    bytes_of : the size of a storage that its tensor does not tell.
    """
    seen: dict[int, Like] = {}

    def like(t: torch.Tensor) -> Like:
        if id(t) not in seen:
            storage = storage_of(t)
            learned = None if storage is None else bytes_of(storage)
            shape, strides = tuple(map(int, t.shape)), tuple(map(int, t.stride()))
            if learned is not None:
                shape, strides = (learned // t.dtype.itemsize,), (1,)
            seen[id(t)] = Like(len(seen), shape, strides, t.dtype)
        return seen[id(t)]

    def described(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if x.layout is not torch.strided:
                raise TypeError
            return like(x)
        if isinstance(x, list | tuple):
            return type(x)(map(described, x)) if type(x) in (list, tuple) else x
        if isinstance(x, torch.Generator | torch.SymInt):
            raise TypeError
        return x

    try:
        given = tuple(map(described, args)), {k: described(x) for k, x in kwargs.items()}
        for t in tensors_in(out):
            described(t)
    except TypeError:
        return None
    tensors = tuple(seen.values())
    return KernelCall(op, *given, tensors, roofline_s, *_most(op, given[0], tensors))


CHANNELS_LEAST = 16  # of a plain convolution: kernels fill up fewer channels
# Position of (input, weights, stride) among the arguments, and of the tensors whose first dimension is the batch.
_CONVOLUTIONS = {"convolution": ((0, 1, 3), (0,)), "convolution_backward": ((1, 2, 4), (0, 1))}


def _copied(op: Any, args: tuple[Any, ...]) -> int:
    """Bytes of the matrices that a product copies first: they lie neither row by row nor column by column. The gradient of a
    sum is one of them: one number stands for all its elements."""
    if _name(op) not in _PRODUCTS:
        return 0
    copied = 0
    for t in (x for x in args[-2:] if isinstance(x, Like) and len(x.shape) > 1):
        (rows, columns), (down, right) = t.shape[-2:], t.strides[-2:]
        if not (right == 1 and down >= columns or down == 1 and right >= rows):
            copied += t.bytes
    return copied


def _most(op: Any, args: tuple[Any, ...], tensors: Sequence[Like]) -> tuple[int, bool]:
    """(bytes that the kernel takes at most, whether it is a plain convolution)."""
    shares, size = _shares(op), sum(t.bytes for t in tensors)
    if shares.plain is None:
        return int(shares.most * size) + _copied(op, args), False
    (x, w, stride), _ = _CONVOLUTIONS[_name(op)]
    strides, _, dilation, transposed = args[stride : stride + 4]
    grouped = args[stride + 5] != 1
    ones = len(strides) == 2 and all(n == 1 for n in (*strides, *dilation))
    if ones and not transposed and not grouped and min(args[x].shape[1], args[w].shape[0]) >= CHANNELS_LEAST:
        return int(shares.plain * size), True
    return int(shares.most * size + (shares.weights * args[w].bytes if grouped else 0)), False


def of_batch(call: KernelCall, batch: int) -> KernelCall | None:
    """The same convolution for a smaller batch; None: it is none, or its batch is not larger. The memory that a convolution
    takes is affine in its batch."""
    if _name(call.target) not in _CONVOLUTIONS:
        return None
    _, carriers = _CONVOLUTIONS[_name(call.target)]
    now = call.args[carriers[0]].shape[0]
    if now <= batch:
        return None
    args = list(call.args)
    for i in carriers:
        args[i] = replace(args[i], shape=(batch, *args[i].shape[1:]))
    size = call.roofline_s * batch / now
    return replace(call, args=tuple(args), tensors=tuple(x for x in args if isinstance(x, Like)), roofline_s=size)


def batch_of(call: KernelCall) -> int:
    """The batch of a convolution."""
    return int(call.args[_CONVOLUTIONS[_name(call.target)][1][0]].shape[0])


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
