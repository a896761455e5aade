"""Seconds and workspace of operator calls, measured within a few seconds by running them in rounds.

In the first round each call runs once, and its memory is watched; kernels with much workspace come first. In later rounds the
calls that weigh most in the step are timed in turns, so that a busy moment of the machine hits no call alone. On the CPU
`clock_cpu` runs a call; on NVIDIA GPUs seconds are measured by CUDA events, and workspace by the allocator's peak.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ..operators.rules import runnable
from .cache import ELEMENT_WISE, SPREAD_MOST, op_class
from .made_up import Operands, new_bytes
from .operator_calls import OperatorCall

log = logging.getLogger(__name__)


# How long and how often operator calls are run. All values are guesses. Measured was only that the least round should count:
# of 12 rounds on a machine with three to four runnable threads per core, the least of the first six and of the last six
# differed by 1 to 19 % (the median over the calls of a model, for four models), and their medians by 3 to 74 %.
ALL_S = 3.0  # seconds that measuring takes in all
FIRST_S = 2.0  # of the first round, by the runner's clock, which leaves out most of the time that other programs take
# The same for the largest call of each operator, and for all convolutions, normalisations and reductions, whose workspace is
# large and hard to guess: a workspace that is not known can break a budget.
FIRST_MOST_S = 8.0
FIRST_WALL_MOST_S = 20.0  # of the first round, by the wall
LATER_LEAST_S = 0.5  # of the later rounds, however long the first one took
# A call that is likely to take longer is not run. Likely are its roofline's seconds, scaled as those of all calls before it and
# of SURE_S more seconds that took as long as their roofline: a first call may load libraries.
CALL_MOST_S = 1.5
SURE_S = 0.1
LATER_ROUNDS_MOST = 6
AGREE_RATIO = 1.05  # a call whose two least rounds are within this factor of each other is not timed again
LIGHT_SHARE = 0.01  # the lightest calls, which together make up this share of the step, are not timed in later rounds
SPREAD_ONCE = 1.0  # the spread assumed of a call that ran in one round alone
ROUND_S = 0.003  # a round runs a call for about so long, this many times:
RUNS_LEAST, RUNS_MOST = 2, 8
SLOW_S = 0.03  # a call that takes longer runs once a round

# The order of the first round: kernels with much workspace first. Copies and products seldom have any.
_FIRST = {"convolution": 0, "normalisation": 1, "reduction": 1, ELEMENT_WISE: 3}


@dataclass
class Measured:
    """Seconds of each round, the least of its runs, and workspace bytes per call. Calls that could not be run are missing."""

    rounds: dict[OperatorCall, list[float]] = field(default_factory=dict)
    workspace: dict[OperatorCall, int] = field(default_factory=dict)

    def seconds(self, call: OperatorCall) -> float:
        """The least seconds of a call that ran."""
        return min(self.rounds[call])

    def spread(self, call: OperatorCall) -> float:
        """How far the two least rounds are apart, as a share of the least."""
        least, *more = sorted(self.rounds[call])
        return min(SPREAD_MOST, more[0] / least - 1) if more else SPREAD_ONCE


class Stopwatch(Protocol):
    """A clock that runs since it was made."""

    def seconds(self) -> float:
        """Seconds since then."""


class Runner(Protocol):
    """Runs calls on one kind of device."""

    def clock(self) -> Stopwatch:
        """A clock for the time that the runs take together."""

    def once(self, call: OperatorCall, args: Any, kwargs: Any) -> float:
        """Seconds of one run whose memory is watched."""

    def runs(self, call: OperatorCall, args: Any, kwargs: Any, number: int) -> float:
        """The least seconds per run of a number of runs."""


def measure(
    calls: Sequence[OperatorCall], counts: Mapping[OperatorCall, int], runner: Runner, found: Measured, room: float
) -> None:
    """Run calls in rounds, within the seconds above.

    counts : how often the step runs each call. room : bytes of memory at hand; larger calls are not run.
    """
    start, operands, clock = time.perf_counter(), Operands(), runner.clock()
    took = expected = 0.0  # of the calls that ran: seconds, and by their roofline
    for call, most_s in _first_order(calls):
        begin = clock.seconds()
        likely = call.roofline * (took + SURE_S) / (expected + SURE_S)
        out_of_time = time.perf_counter() - start > FIRST_WALL_MOST_S
        if out_of_time or likely > min(CALL_MOST_S, most_s - begin):
            log.debug("%s not measured: it would take too long", call.target)
            continue
        if 2 * call.bytes_moved > room:
            log.debug("%s not measured: too large for this machine", call.target)
            continue
        with _tried(call):
            found.rounds[call] = [runner.once(call, *operands.of(call))]
            took, expected = took + clock.seconds() - begin, expected + call.roofline
    left = ALL_S - (time.perf_counter() - start)
    _later_rounds(_heavy(counts, found), runner, found, operands, max(left, LATER_LEAST_S))


def _first_order(calls: Sequence[OperatorCall]) -> list[tuple[OperatorCall, float]]:
    """The calls in the order of the first round, each with the seconds since its beginning after which it is not run.

    Every operator's largest call comes first: without any timing of its own, an operator costs as others do.
    """
    rank = {call: _FIRST.get(op_class(str(call.target)), 2) for call in calls}
    order = sorted(calls, key=lambda c: (rank[c], -c.bytes_moved))
    largest: dict[Any, OperatorCall] = {}
    for call in order:
        largest.setdefault(call.target, call)
    early = set(largest.values())
    return [
        (call, FIRST_MOST_S if rank[call] < 2 or call in early else FIRST_S)
        for call in sorted(order, key=lambda c: c not in early)
    ]


def _heavy(counts: Mapping[OperatorCall, int], found: Measured) -> list[OperatorCall]:
    """The calls that make up the step but for `LIGHT_SHARE`, the heaviest first."""
    weight = {call: counts[call] * found.seconds(call) for call in found.rounds}
    order = sorted(weight, key=lambda c: -weight[c])
    left = sum(weight.values()) * (1 - LIGHT_SHARE)
    heavy = []
    for call in order:
        if left <= 0:
            break
        heavy.append(call)
        left -= weight[call]
    return heavy


def _later_rounds(
    order: Sequence[OperatorCall], runner: Runner, found: Measured, operands: Operands, seconds: float
) -> None:
    stop = time.perf_counter() + seconds
    for _ in range(LATER_ROUNDS_MOST):
        # the first round loads kernels, so that its agreement with the second says little
        order = [c for c in order if len(found.rounds[c]) < 3 or found.spread(c) > AGREE_RATIO - 1]
        for call in order:
            rough = found.seconds(call)
            if time.perf_counter() + rough > stop:
                continue  # a quicker call may still fit
            number = min(RUNS_MOST, max(RUNS_LEAST, math.ceil(ROUND_S / max(rough, 1e-6))))
            with _tried(call):
                found.rounds[call].append(runner.runs(call, *operands.of(call), number=1 if rough > SLOW_S else number))


@contextmanager
def _tried(call: OperatorCall) -> Iterator[None]:
    """Log an error inside and go on: a call that cannot run on made-up inputs is estimated."""
    try:
        yield
    except Exception as e:
        log.debug("%s not measured: %s", call.key, e)


def measure_cuda(calls: Sequence[OperatorCall], counts: Mapping[OperatorCall, int], found: Measured) -> None:
    """Measure calls on GPUs. counts : how often the step runs each."""
    runner = CudaRunner(found)
    measure(calls, counts, runner, found, math.inf)


class CudaRunner:
    """Runs calls on a GPU. A call that does not fit its memory raises, and is then estimated."""

    def __init__(self, found: Measured) -> None:
        self._found = found

    def clock(self) -> WallClock:
        return WallClock()

    def once(self, call: OperatorCall, args: Any, kwargs: Any) -> float:
        """Seconds per run. Before, it runs once to load kernels and the lasting buffers of libraries, and once for memory."""
        with torch.cuda.device(call.device):
            new = new_bytes(runnable(call.target)(*args, **kwargs), (args, kwargs))
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            # requested bytes, before the allocator rounds them up
            level = torch.cuda.memory_stats()["requested_bytes.all.current"]
            begin = time.perf_counter()
            runnable(call.target)(*args, **kwargs)
            torch.cuda.synchronize()
            rough = time.perf_counter() - begin
            peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
            self._found.workspace[call] = max(0, peak - level - new)
        return self.runs(call, args, kwargs, number=1 if rough > SLOW_S else RUNS_MOST)

    def runs(self, call: OperatorCall, args: Any, kwargs: Any, number: int) -> float:
        """The runs are queued together, as a step queues them."""
        with torch.cuda.device(call.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(number):
                runnable(call.target)(*args, **kwargs)
            end.record()
            end.synchronize()
            return max(1e-9, begin.elapsed_time(end) / 1e3 / number)


class WallClock:
    """Seconds that pass."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    def seconds(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self._begin
