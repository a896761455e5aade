"""The judge's loops: the memory of a schedule, step by step, and when its steps begin beside copies to and from the host."""

from __future__ import annotations

import numpy as np

from .arrays import FETCH, FREE, OFFLOAD
from .compiled import entry

OK, DEAD_INPUT, RAN_TWICE, FREE_DEAD, BAD_INTO, LOST_KEEP, NOT_THERE, NOT_AWAY = 0, 1, 2, 3, 4, 5, 6, 7


@entry
def judge(steps, graph):
    """(status, step, detail, memory int64 [steps], runs int64 [ops], host int64 [steps]).

    memory[s] is, without the resident bytes, what is held during step s if it is a run, and after it if it is another step;
    host[s] is what the host holds after step s: a copy ends with the first step that needs the fetched value. On a status other
    than OK, `step` is the offending step and `detail` the value or op.
    """
    size, producer, keep = graph.bytes, graph.producer, graph.keep
    in_ptr, in_ids, out_ptr, out_ids = graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    inp_ptr, inp_ids = graph.inplace_ptr, graph.inplace_ids
    workspace, recompute = graph.workspace, graph.recompute
    live = np.zeros(len(size), np.bool_)
    ran = np.zeros(len(workspace), np.int64)
    memory = np.zeros(len(steps), np.int64)
    host = np.zeros(len(steps), np.int64)
    away = np.zeros(len(size), np.bool_)  # values of which the host has a copy
    coming = np.zeros(len(size), np.bool_)  # values that have been fetched and not been needed since
    held = 0
    for s in range(len(steps)):
        i = steps[s, 1]
        host[s] = host[s - 1] if s else 0
        if steps[s, 0] == OFFLOAD:
            if producer[i] < 0 or not live[i] or away[i]:
                return NOT_THERE, s, i, memory, ran, host
            away[i] = True
            host[s] += size[i]
            memory[s] = held
            continue
        if steps[s, 0] == FETCH:
            if live[i] or not away[i]:
                return NOT_AWAY, s, i, memory, ran, host
            coming[i], live[i] = True, True
            held += size[i]
            memory[s] = held
            continue
        if steps[s, 0] == FREE:
            if producer[i] < 0 or not live[i]:
                return FREE_DEAD, s, i, memory, ran, host
            if coming[i]:
                away[i], coming[i] = False, False
                host[s] -= size[i]
            live[i] = False
            held -= size[i]
            memory[s] = held
            continue
        into = steps[s, 2]
        ran[i] += 1
        if ran[i] > 1 and not recompute[i]:
            return RAN_TWICE, s, i, memory, ran, host
        for j in range(in_ptr[i], in_ptr[i + 1]):
            v = in_ids[j]
            if producer[v] >= 0 and not live[v]:
                return DEAD_INPUT, s, v, memory, ran, host
            if coming[v]:
                away[v], coming[v] = False, False
                host[s] -= size[v]
        during = held + workspace[i]
        for j in range(out_ptr[i], out_ptr[i + 1]):
            during += size[out_ids[j]]
        if into >= 0:
            allowed = False
            for j in range(inp_ptr[i], inp_ptr[i + 1]):
                if inp_ids[j] == into:
                    allowed = True
            first = out_ids[out_ptr[i]] if out_ptr[i + 1] > out_ptr[i] else -1
            if not allowed or producer[into] < 0 or not live[into] or first < 0 or size[first] > size[into]:
                return BAD_INTO, s, into, memory, ran, host
            during -= size[first]
        memory[s] = during
        for j in range(out_ptr[i], out_ptr[i + 1]):
            v = out_ids[j]
            if not live[v]:  # a second copy of a live value is dropped after the run
                live[v] = True
                held += size[v]
        if into >= 0:
            live[into] = False
            held -= size[into]
    for v in range(len(size)):
        if keep[v] and producer[v] >= 0 and not live[v]:
            return LOST_KEEP, len(steps), v, memory, ran, host
    return OK, -1, -1, memory, ran, host


@entry
def clock(steps, seconds, link, graph):
    """(float64 [steps] when each step begins, the second at which all is done) of a valid schedule.

    Three engines work at the same time: one runs ops, one copies to the host, one copies back. Each does its steps in the order
    of the schedule. A step that needs what another engine does waits for it: a copy for all ops and frees before it in the
    schedule, and for the value's last copy the other way; an op for the values that it reads, a free for the copies of its
    value, and an op that writes over a value for the copy of it.

    seconds : float64 [ops]. link : (seconds per byte to the host, seconds per byte back, seconds that a copy takes beside them,
    whether both directions work at the same time).
    """
    out_s_per_byte, in_s_per_byte, copy_s, both = link
    size, in_ptr, in_ids = graph.bytes, graph.in_ptr, graph.in_ids
    begins = np.zeros(len(steps))
    left = np.zeros(len(size))  # when the last copy to the host ends
    there = np.zeros(len(size))  # when the last copy back ends
    now, out, back = 0.0, 0.0, 0.0  # when each engine is free
    for s in range(len(steps)):
        kind, i = steps[s, 0], steps[s, 1]
        if kind == OFFLOAD:
            begins[s] = max(now, there[i], out)
            out = begins[s] + size[i] * out_s_per_byte + copy_s
            left[i] = out
            back = back if both else out
        elif kind == FETCH:
            begins[s] = max(now, left[i], back)
            back = begins[s] + size[i] * in_s_per_byte + copy_s
            there[i] = back
            out = out if both else back
        elif kind == FREE:
            now = max(now, left[i], there[i])
            begins[s] = now
        else:
            for j in range(in_ptr[i], in_ptr[i + 1]):
                now = max(now, there[in_ids[j]])
            if steps[s, 2] >= 0:
                now = max(now, left[steps[s, 2]])
            begins[s] = now
            now += seconds[i]
    return begins, max(now, out, back)
