"""The best schedules with copies of very small graphs, by looking at all of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from hypothesis import reject

from rekindle.model.graph import Graph

MOST_RUNS = 2  # of one op
MOST_STATES = 4_000  # a graph that takes more is passed over


class State(NamedTuple):
    """What a schedule has reached. Sets of values are bits.

    host : of which the host has a copy. sent : that were copied to it once.
    times : when the device and both ways of the link are free; when each value's last copy out and its last copy back end.
    """

    live: int
    host: int
    sent: int
    runs: tuple[int, ...]
    times: tuple[float, ...]


def least_seconds(graph: Graph, limit: float, most_s: float = inf, host_bytes: float = inf) -> float:
    """The least seconds of a schedule with copies that keeps the limit, of those that run each op at most twice and copy each
    value to the host at most once; infinite where none takes at most `most_s`.

    Best first, where a state is passed over if another one with the same values, copies and runs is as early in everything.
    """
    if limit < graph.resident_bytes:
        return inf
    a = graph.arrays
    kept = sum(1 << v for v in graph.keep if a.producer[v] >= 0)
    start = State(0, 0, 0, (0,) * len(graph.ops), (0.0,) * (3 + 2 * len(graph.values)))
    needed = [(i, graph.ops[i].seconds) for i in graph.needed.nonzero()[0].tolist()]
    seen: dict[tuple[object, ...], list[tuple[float, ...]]] = {}
    queue = [(sum(s for _, s in needed), 0, start)]
    count = 0
    while queue:
        least, _, state = heapq.heappop(queue)
        if not kept & ~state.live and all(state.runs[i] for i, _ in needed):
            # the last copies may end after this, but all other schedules end no earlier
            return least
        for new in _next(graph, state, limit, host_bytes):
            left = sum(s for i, s in needed if not new.runs[i])
            bound = max(new.times[0] + left, new.times[1], new.times[2])
            known = seen.setdefault(new[:4], [])
            if bound > most_s or any(all(x <= y for x, y in zip(k, new.times, strict=True)) for k in known):
                continue
            known[:] = [k for k in known if not all(x >= y for x, y in zip(k, new.times, strict=True))]
            known.append(new.times)
            count += 1
            if count > MOST_STATES:
                reject()
            heapq.heappush(queue, (bound, count, new))
    return inf


def _next(graph: Graph, s: State, limit: float, host_bytes: float) -> Iterator[State]:
    assert graph.link is not None
    to_host, to_device, copy_s, both = graph.link.rates
    size, producer, n = graph.arrays.bytes.tolist(), graph.arrays.producer.tolist(), len(graph.values)
    held = graph.resident_bytes + sum(size[v] for v in range(n) if s.live >> v & 1)
    now, out, back = s.times[:3]
    left, there = s.times[3 : 3 + n], s.times[3 + n :]

    def state(live: int, host: int, sent: int, at: tuple[float, ...], **changed: tuple[int, float]) -> State:
        """All times are at least the device's, as every step waits for it; those that nothing will look at are just that."""
        times = {"left": list(left), "there": list(there)}
        for way, (v, end) in changed.items():
            times[way][v] = end
        begin = at[0]
        outs = [max(begin, t) if (live | host) >> v & 1 else begin for v, t in enumerate(times["left"])]
        backs = [max(begin, t) if live >> v & 1 else begin for v, t in enumerate(times["there"])]
        return State(live, host, sent, runs, (begin, max(begin, at[1]), max(begin, at[2]), *outs, *backs))

    runs = s.runs
    for v in range(n):
        bit = 1 << v
        if producer[v] < 0 or not size[v]:  # a value without bytes may as well stay
            continue
        if s.live & bit:
            yield state(s.live & ~bit, s.host, s.sent, (max(now, left[v], there[v]), out, back))
            if not s.sent & bit and sum(size[u] for u in range(n) if s.host >> u & 1) + size[v] <= host_bytes:
                end = max(now, there[v], out) + size[v] * to_host + copy_s
                yield state(s.live, s.host | bit, s.sent | bit, (now, end, back if both else end), left=(v, end))
        elif s.host & bit and held + size[v] <= limit:
            end = max(now, left[v], back) + size[v] * to_device + copy_s
            yield state(s.live | bit, s.host & ~bit, s.sent, (now, out if both else end, end), there=(v, end))
    for i, op in enumerate(graph.ops):
        made = sum(1 << v for v in op.outputs)
        if s.runs[i] >= (MOST_RUNS if op.recompute else 1) or made and not made & ~s.live:
            continue
        if any(producer[v] >= 0 and not s.live >> v & 1 for v in op.inputs):
            continue
        runs = (*s.runs[:i], s.runs[i] + 1, *s.runs[i + 1 :])
        begin = max([now, *(there[v] for v in op.inputs if producer[v] >= 0)])
        taken = held + op.workspace + sum(size[v] for v in op.outputs)
        if taken <= limit:
            yield state(s.live | made, s.host, s.sent, (begin + op.seconds, out, back))
        for v in op.inplace:
            if producer[v] >= 0 and size[op.outputs[0]] <= size[v] and taken - size[op.outputs[0]] <= limit:
                live = (s.live | made) & ~(1 << v)
                yield state(live, s.host, s.sent, (max(begin, left[v]) + op.seconds, out, back))
