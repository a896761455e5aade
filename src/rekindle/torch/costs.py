"""What each operator of a captured graph costs: seconds, FLOPs and workspace.

Measured, where the operators' device is at hand: every distinct call runs on made-up tensors of the right shape, first
under a memory recording, then under a clock. Elsewhere by roofline (`devices`), with no workspace.
"""

from __future__ import annotations

import logging
import math
import operator
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.autograd.profiler import record_function
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from . import devices
from .cost_cache import CostCache, environment
from .flops import op_flops
from .measure import cpu_allocations, peak_and_end, storage_of
from .rules import UNWRITTEN, runnable

log = logging.getLogger(__name__)
SLOW = 0.05  # seconds; above it one timed run a round is enough
SETTLE_S = 3.0  # seconds spent on taking times again, per call of node_costs
ROUNDS = 5  # in which a time is taken again, where the two least so far are not yet within
AGREE = 1.2  # of each other: on a shared machine a single run may take ten times too long
_PLAIN = (int, float, complex, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True)
class Cost:
    """Of one call. seconds : its time. flops : see `flops`. workspace : bytes it needs beside inputs and outputs."""

    seconds: float
    flops: int
    workspace: int


@dataclass(frozen=True, eq=False)
class _Call:
    """One distinct operator call.

    key : all its cost depends on; None where its arguments are more than tensors and plain values.
    args, kwargs : with fake tensors. bytes_moved, out_bytes : read and written, and written only.
    roofline : seconds.
    """

    key: str | None
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device
    flops: int
    bytes_moved: int
    out_bytes: int
    roofline: float


@dataclass
class _Measured:
    """By call: seconds, and workspace in bytes. settled : those whose figures may be kept on disk."""

    seconds: dict[_Call, float] = field(default_factory=dict)
    workspace: dict[_Call, int] = field(default_factory=dict)
    settled: set[_Call] = field(default_factory=set)


def node_costs(
    nodes: Iterable[Node],
    *,
    target: str | None = None,
    measure: bool | None = None,
    limit_s: float = 8.0,
    progress: Callable[[str], None] | None = None,
) -> list[Cost]:
    """The cost of each call_function node of a captured graph, whose metas hold fake tensors.

    Views, getitems and whatever is no operator cost nothing. What cannot be measured (a failing run, a device that is
    not at hand, no time left) takes its roofline, scaled as the measured operators were.

    target : name in `devices`: roofline for that device, nothing runs.
    measure : False: roofline for the nodes' own device. None: measured, unless a target is given or a FakeTensorMode
        is active. True: measured under such a mode too (it is set aside meanwhile).
    limit_s : seconds after which no further operator is measured.
    progress : called with one line of text now and then.

    Raises
    ------
    UsageError : unknown target.
    """
    named = None if target is None else devices.get(target)
    distinct: dict[Any, _Call] = {}
    per_node: list[_Call | None] = []
    for node in nodes:
        call = _call(node, named)
        per_node.append(call if call is None else distinct.setdefault(call.key or node, call))
    calls = list(distinct.values())
    if measure is None:
        measure = not isinstance(torch.empty(0), FakeTensor)
    costs: dict[_Call, Cost] = {}
    for device_type in sorted({c.device.type for c in calls}):
        group = [c for c in calls if c.device.type == device_type]
        wanted = measure and named is None and _at_hand(group[0].device)
        found = _cached_or_measured(group, limit_s, progress) if wanted else _Measured()
        costs |= _filled_in(group, found)
    nothing = Cost(0.0, 0, 0)
    return [nothing if call is None else costs[call] for call in per_node]


# --- what a node calls ------------------------------------------------------------------------------------------------


def _call(node: Node, named: devices.Device | None) -> _Call | None:
    """The call of a node; None where it costs nothing."""
    op = node.target
    if op is operator.getitem or not isinstance(op, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
        return None
    args, kwargs = map_arg((node.args, node.kwargs), _value)
    out = node.meta.get("val")
    ins = {id(t): t for t in _tensors((args, kwargs))}
    outs = _tensors(out)
    if costs_nothing(op, ins.values(), outs):
        return None
    flops = _flops(op, args, kwargs, out)
    out_bytes = sum(_bytes(t) for t in outs)
    moved = sum(_bytes(t) for t in ins.values()) + out_bytes
    every = [*ins.values(), *outs]
    device = next((t.device for t in every if t.device.type != "cpu"), torch.device("cpu"))
    dtype = next((t.dtype for t in every if t.dtype.is_floating_point or t.dtype.is_complex), torch.float32)
    # torch's defaults: convolutions may use TF32, matrix products only where the user allows it
    tf32 = "conv" in str(op) or torch.get_float32_matmul_precision() != "highest"
    estimate = devices.roofline(named or devices.closest(device), flops, moved, dtype, tf32=tf32)
    key = _key(op, args, kwargs)
    return _Call(key, op, args, kwargs, device, flops, moved, out_bytes, estimate)


def as_call(node: Node) -> tuple[str | None, Callable[[], Any]]:
    """What the node calls, as text, and a function that runs it on made-up inputs, leaving no trace."""
    call = _call(node, None)
    if call is None:
        raise TypeError(f"{node} computes nothing")

    def run() -> Any:
        if not _at_hand(call.device):
            raise RuntimeError(f"no {call.device} here")
        with _undisturbed([call]):
            args, kwargs = _real(call)
            return runnable(call.target)(*args, **kwargs)

    return call.key, run


def _value(node: Node) -> Any:
    if node.op == "get_attr" and "val" not in node.meta:
        return operator.attrgetter(str(node.target))(node.graph.owning_module)
    return node.meta["val"]


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _bytes(t: torch.Tensor) -> int:
    """Bytes that reading t once moves: an expanded tensor's own, not those it shows."""
    return min(t.numel(), _span(t)) * t.dtype.itemsize


def _span(t: torch.Tensor) -> int:
    """Elements from the first to the last in memory."""
    if t.layout is not torch.strided:
        return int(t.numel())
    return 1 + sum((int(n) - 1) * int(s) for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0


def costs_nothing(op: Any, ins: Iterable[torch.Tensor], outs: Sequence[torch.Tensor]) -> bool:
    """Whether no kernel runs: a view, or memory that nobody writes to."""
    return getattr(op, "_overloadpacket", op) in UNWRITTEN or _is_view(op, ins, outs)


def _is_view(op: Any, ins: Iterable[torch.Tensor], outs: Sequence[torch.Tensor]) -> bool:
    """No result has a storage of its own, and nothing is written."""
    if not outs or getattr(getattr(op, "_schema", None), "is_mutable", False):
        return False
    return _storages(outs).keys() <= _storages(ins).keys()


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, Any]:
    """The distinct storages, by id (None counts as one: a tensor without)."""
    return {id(s): s for s in map(storage_of, tensors)}


def _flops(op: Any, args: Any, kwargs: Any, out: Any) -> int:
    try:
        return op_flops(op, args, kwargs, out)
    except Exception as e:  # a formula of torch's that does not know this use of the operator
        log.warning("FLOPs of %s counted as 0: %s", op, e)
        return 0


def _key(op: Any, args: Any, kwargs: Any) -> str | None:
    """The call as text, such as "aten.mul.Tensor(0:f32[8, 3]/[3, 1], 0)"; the same tensor bears the same number."""
    seen: dict[int, int] = {}

    def text(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            if id(x) in seen:
                return str(seen[id(x)])
            seen[id(x)] = len(seen)
            strides = list(x.stride()) if x.layout is torch.strided else x.layout
            return f"{seen[id(x)]}:{x.dtype}@{x.device.type}{list(x.shape)}/{strides}".replace("torch.", "")
        if isinstance(x, list | tuple):
            return f"[{', '.join(map(text, x))}]"
        if isinstance(x, _PLAIN):
            return repr(x)
        raise TypeError(type(x))

    try:
        parts = [text(x) for x in args] + [f"{k}={text(v)}" for k, v in kwargs.items()]
    except TypeError:  # submodules, generators, symbolic sizes, …
        return None
    return f"{op}({', '.join(parts)})"


# --- measuring --------------------------------------------------------------------------------------------------------


def _at_hand(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    return device.type == "cpu"


# What this process has measured, also where the figures did not settle: asking again must not measure again.
_SESSION: dict[tuple[str, str], tuple[float, int]] = {}
_PASSED_OVER: set[tuple[str, str]] = set()  # what it had no time for or could not run: estimated from then on


def _cached_or_measured(calls: Sequence[_Call], limit_s: float, progress: Callable[[str], None] | None) -> _Measured:
    """Costs of calls on one kind of device, from the disk or else measured, the greatest roofline first."""
    found = _Measured()
    cache = CostCache(environment(calls[0].device))
    todo = []
    for call in sorted(calls, key=lambda c: -c.roofline):
        kept = None if call.key is None else cache.get(call.key) or _SESSION.get((cache.environment, call.key))
        if kept is not None:
            found.seconds[call], found.workspace[call] = kept
        elif call.key is not None and (cache.environment, call.key) not in _PASSED_OVER:
            todo.append(call)
    if todo:
        if progress is not None:
            progress(f"measuring {len(todo)} operators ({len(calls) - len(todo)} known)")
        run = _measure_cuda if calls[0].device.type == "cuda" else _measure_cpu
        with _undisturbed(todo):
            run(todo, found, time.perf_counter(), limit_s)
        for call in todo:
            if call not in found.workspace:
                _PASSED_OVER.add((cache.environment, str(call.key)))
                continue
            seconds = found.seconds[call]
            assert call.key is not None
            _SESSION[cache.environment, call.key] = (seconds, found.workspace[call])
            if call in found.settled:
                cache.put(call.key, seconds, found.workspace[call])
        cache.save()
    return found


@contextmanager
def _undisturbed(calls: Sequence[_Call]) -> Iterator[None]:
    """Plain kernels, whatever the caller has switched on; and the caller's random state as it was."""
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        cuda = {c.device.index or 0 for c in calls if c.device.type == "cuda"}
        stack.enter_context(torch.random.fork_rng(devices=sorted(cuda)))
        stack.enter_context(torch.no_grad())
        for device_type in {"cpu"} | {c.device.type for c in calls}:
            stack.enter_context(torch.autocast(device_type, enabled=False))
        yield


def _measure_cpu(calls: Sequence[_Call], found: _Measured, start: float, limit_s: float) -> None:
    """Each call once under one memory recording, then again under a clock, for SETTLE_S at most and the quickest first:
    a single run says least of them, and a single long run is taken as it is."""
    ran: list[tuple[_Call, str, int]] = []
    room = _free_memory()
    record = not torch.autograd._profiler_enabled()  # only one recording at a time: the caller's goes on
    if not record:
        log.warning("a profiler is running: the workspace of operators cannot be measured and counts as 0")
    with ExitStack() as stack:
        recorded = stack.enter_context(cpu_allocations()) if record else None
        for i, call in enumerate(calls):
            if time.perf_counter() - start > limit_s:
                log.debug("%d of %d operators not measured: no time left", len(calls) - i, len(calls))
                break
            if 2 * call.bytes_moved > room:
                log.debug("%s not measured: too large for this machine", call.target)
                continue
            with _tried(call):
                mark = f"rekindle:{i}"
                found.seconds[call], new = _once(call, mark)
                ran.append((call, mark, new))
    if recorded is not None:
        at = [t for t, _ in recorded.events]
        for call, mark, new in ran:
            first, last = (bisect_left(at, t) for t in recorded.marks[mark])
            peak, _ = peak_and_end(delta for _, delta in recorded.events[first:last])
            found.workspace[call] = max(0, peak - new)
    found.settled |= {call for call, _, _ in ran if found.seconds[call] > SLOW}
    quickest = sorted((call for call, _, _ in ran), key=found.seconds.__getitem__)
    pending = {call: [found.seconds[call]] for call in quickest}
    stop = time.perf_counter() + SETTLE_S
    for turn in range(ROUNDS):
        for call, times in list(pending.items()):
            if time.perf_counter() > stop:
                return
            with _tried(call):
                times += _clocked(call, times[0])
                found.seconds[call], second = sorted(times)[:2]
                if second <= AGREE * found.seconds[call] or turn == ROUNDS - 1:
                    found.settled.add(call)
                    del pending[call]


def _once(call: _Call, mark: str) -> tuple[float, int]:
    """Seconds of one marked run, and bytes of what it made."""
    args, kwargs = _real(call)
    begin = time.perf_counter()
    with record_function(mark):
        out = runnable(call.target)(*args, **kwargs)
    return time.perf_counter() - begin, _new_bytes(out, (args, kwargs))


def _clocked(call: _Call, rough: float) -> list[float]:
    """Seconds of a few runs, releasing the results included (a step releases them too)."""
    args, kwargs = _real(call)
    times = []
    for _ in range(1 if rough > SLOW else min(20, max(3, round(0.005 / max(rough, 1e-6))))):
        begin = time.perf_counter()
        runnable(call.target)(*args, **kwargs)
        times.append(time.perf_counter() - begin)
    return times


def _measure_cuda(calls: Sequence[_Call], found: _Measured, start: float, limit_s: float) -> None:
    """Each call by itself, until the time is up."""
    for call in calls:
        if time.perf_counter() - start > limit_s:
            break
        with _tried(call), torch.cuda.device(call.device):
            found.seconds[call], found.workspace[call] = _once_cuda(call)
            found.settled.add(call)


def _once_cuda(call: _Call) -> tuple[float, int]:
    """Seconds and workspace of a call: run once to load its kernels and the libraries' lasting buffers, once for
    memory, a few times for time."""
    args, kwargs = _real(call)
    new = _new_bytes(runnable(call.target)(*args, **kwargs), (args, kwargs))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    # bytes as asked for, before the allocator rounds them up
    level = torch.cuda.memory_stats()["requested_bytes.all.current"]
    begin = time.perf_counter()
    runnable(call.target)(*args, **kwargs)
    torch.cuda.synchronize()
    rough = time.perf_counter() - begin
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return _clocked_cuda(call, args, kwargs, rough), max(0, peak - level - new)


def _clocked_cuda(call: _Call, args: Any, kwargs: Any, rough: float) -> float:
    """The least seconds per run of a few rounds; a round of short runs queues several, as a step does."""
    inner = 1 if rough > SLOW else 5
    best = math.inf
    for _ in range(1 if rough > SLOW else 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(inner):
            runnable(call.target)(*args, **kwargs)
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3 / inner)
    return best


@contextmanager
def _tried(call: _Call) -> Iterator[None]:
    """A call that cannot run on made-up inputs is estimated; it stops nothing."""
    try:
        yield
    except Exception as e:
        log.debug("%s not measured: %s", call.key, e)


def _real(call: _Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments with real tensors: one for each fake one, however often it is passed."""
    made: dict[int, torch.Tensor] = {}

    def make(t: torch.Tensor) -> torch.Tensor:
        if id(t) not in made:
            made[id(t)] = _made_up(t)
        return made[id(t)]

    return tree_map_only(torch.Tensor, make, (call.args, call.kwargs))


def _made_up(t: torch.Tensor) -> torch.Tensor:
    """A tensor like t: floats 0.5 (nothing overflows or becomes denormal), ints 0 (valid as indices), bools True."""
    if t.layout is not torch.strided:
        raise TypeError(f"layout {t.layout}")
    value = 0.5 if t.dtype.is_floating_point or t.dtype.is_complex else t.dtype == torch.bool
    return torch.full((_span(t),), value, dtype=t.dtype, device=t.device).as_strided(t.shape, t.stride())


def _new_bytes(out: Any, inputs: Any) -> int:
    """Bytes of the storages that the results hold and the inputs do not."""
    old = _storages(_tensors(inputs))
    return sum(s.nbytes() for key, s in _storages(_tensors(out)).items() if s is not None and key not in old)


def _free_memory() -> float:
    """Bytes that the machine can still give, where it says so."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return math.inf


# --- the rest ---------------------------------------------------------------------------------------------------------


def _filled_in(calls: Sequence[_Call], found: _Measured) -> dict[_Call, Cost]:
    """A cost for every call: measured, or its roofline scaled by what measuring found for the same operator, else for
    all; the workspace as that of the measured call of the same operator nearest in size, scaled by the output's bytes.
    """
    ratios: dict[Any, list[float]] = {}
    known: dict[Any, list[_Call]] = {}
    for call, seconds in found.seconds.items():
        for kind in (call.target, None):
            ratios.setdefault(kind, []).append(seconds / call.roofline)
    for call in found.workspace:
        if call.out_bytes > 0:
            known.setdefault(call.target, []).append(call)
    scales = {kind: statistics.median(r) for kind, r in ratios.items()}

    def seconds_of(call: _Call) -> float:
        measured = found.seconds.get(call)
        return call.roofline * scales.get(call.target, scales.get(None, 1.0)) if measured is None else measured

    def workspace_of(call: _Call) -> int:
        if call in found.workspace:
            return found.workspace[call]
        like = known.get(call.target)
        if not like or not call.out_bytes:
            return 0
        near = min(like, key=lambda c: abs(math.log(c.out_bytes / call.out_bytes)))
        return math.ceil(found.workspace[near] * call.out_bytes / near.out_bytes)

    return {c: Cost(seconds_of(c), c.flops, workspace_of(c)) for c in calls}
