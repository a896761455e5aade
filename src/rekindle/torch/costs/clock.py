"""Seconds and workspace of operator calls, measured within a few seconds by running them in rounds.

In the first round each call runs once, and its memory is watched; kernels with much workspace come first. In later rounds the
calls that weigh most in the step are timed in turns, so that a busy moment of the machine hits no call alone. `clock_cpu` and
`clock_cuda` run a call on a device.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..operators.op_classes import ELEMENT_WISE, op_class
from .made_up import Operands
from .measurement import SPREAD_MOST
from .operator_calls import OperatorCall

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClockSettings:
    """How long and how often operator calls are run.

    The values are guesses. Measured was only that the least round should count: of 12 rounds on a machine with three to
    four runnable threads per core, the least of the first six and of the last six differed by 1 to 19 % (the median over
    the calls of a model, for four models), and their medians by 3 to 74 %.

    all_s : seconds that measuring takes in all.
    first_s : seconds of the first round.
    first_most_s : the same for the largest call of each operator, and for all convolutions, normalisations and reductions,
        whose workspace is large and hard to guess: a workspace that is not known can break a budget.
    first_wall_most_s : the same by the wall; the two above are seconds of the runner's clock, which leaves out most of the time
        that other programs take.
    call_most_s : a call that is likely to take longer is not run. Likely are its roofline's seconds, scaled as those of all
        calls before it and of sure_s more seconds that took as long as their roofline: a first call may load libraries.
    later_least_s : seconds of the later rounds, however long the first round took.
    rounds_most : later rounds.
    agree_ratio : a call whose two least rounds are within this factor of each other is not timed again.
    light_share : calls that together make up this share of the step, the lightest ones, are not timed in later rounds.
    spread_once : the spread assumed of a call that ran in one round alone.
    round_s, runs_least, runs_most : a round runs a call for about round_s seconds, this many times.
    slow_s : a call that takes longer runs once a round.
    """

    all_s: float = 3.0
    first_s: float = 2.0
    first_most_s: float = 8.0
    first_wall_most_s: float = 20.0
    call_most_s: float = 1.5
    sure_s: float = 0.1
    later_least_s: float = 0.5
    rounds_most: int = 6
    agree_ratio: float = 1.05
    light_share: float = 0.01
    spread_once: float = 1.0
    round_s: float = 0.003
    runs_least: int = 2
    runs_most: int = 8
    slow_s: float = 0.03


SETTINGS = ClockSettings()

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
        return min(SPREAD_MOST, more[0] / least - 1) if more else SETTINGS.spread_once


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
    """Run calls in rounds, within the seconds of `ClockSettings`.

    counts : how often the step runs each call. room : bytes of memory at hand; larger calls are not run.
    """
    s, start, operands, clock = SETTINGS, time.perf_counter(), Operands(), runner.clock()
    took = expected = 0.0  # of the calls that ran: seconds, and by their roofline
    for call, most_s in _first_order(calls):
        begin = clock.seconds()
        likely = call.roofline * (took + s.sure_s) / (expected + s.sure_s)
        out_of_time = time.perf_counter() - start > s.first_wall_most_s
        if out_of_time or likely > min(s.call_most_s, most_s - begin):
            log.debug("%s not measured: it would take too long", call.target)
            continue
        if 2 * call.bytes_moved > room:
            log.debug("%s not measured: too large for this machine", call.target)
            continue
        with _tried(call):
            found.rounds[call] = [runner.once(call, *operands.of(call))]
            took, expected = took + clock.seconds() - begin, expected + call.roofline
    left = s.all_s - (time.perf_counter() - start)
    _later_rounds(_heavy(counts, found), runner, found, operands, max(left, s.later_least_s))


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
    s = SETTINGS
    return [
        (call, s.first_most_s if rank[call] < 2 or call in early else s.first_s)
        for call in sorted(order, key=lambda c: c not in early)
    ]


def _heavy(counts: Mapping[OperatorCall, int], found: Measured) -> list[OperatorCall]:
    """The calls that make up the step but for `ClockSettings.light_share`, the heaviest first."""
    weight = {call: counts[call] * found.seconds(call) for call in found.rounds}
    order = sorted(weight, key=lambda c: -weight[c])
    left = sum(weight.values()) * (1 - SETTINGS.light_share)
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
    s, stop = SETTINGS, time.perf_counter() + seconds
    for _ in range(s.rounds_most):
        # the first round loads kernels, so that its agreement with the second says little
        order = [c for c in order if len(found.rounds[c]) < 3 or found.spread(c) > s.agree_ratio - 1]
        for call in order:
            rough = found.seconds(call)
            if time.perf_counter() + rough > stop:
                continue  # a quicker call may still fit
            number = min(s.runs_most, max(s.runs_least, math.ceil(s.round_s / max(rough, 1e-6))))
            with _tried(call):
                found.rounds[call].append(
                    runner.runs(call, *operands.of(call), number=1 if rough > s.slow_s else number)
                )


@contextmanager
def _tried(call: OperatorCall) -> Iterator[None]:
    """Log an error inside and go on: a call that cannot run on made-up inputs is estimated."""
    try:
        yield
    except Exception as e:
        log.debug("%s not measured: %s", call.key, e)
