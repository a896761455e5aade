"""The judge's loop: what a schedule costs, step by step."""

from __future__ import annotations

import numpy as np

from .arrays import FREE
from .compiled import entry

OK, DEAD_INPUT, RAN_TWICE, FREE_DEAD, BAD_INTO, LOST_KEEP = 0, 1, 2, 3, 4, 5


@entry
def judge(steps, graph):
    """(status, step, detail, memory int64 [steps], runs int64 [ops]).

    memory[s] is, without the resident bytes, what is held during step s if it is a run, and after it if it
    is a free. On a status other than OK, `step` is the offending step and `detail` the value or op.
    """
    size, producer, keep = graph.bytes, graph.producer, graph.keep
    in_ptr, in_ids, out_ptr, out_ids = graph.in_ptr, graph.in_ids, graph.out_ptr, graph.out_ids
    inp_ptr, inp_ids = graph.inplace_ptr, graph.inplace_ids
    workspace, recompute = graph.workspace, graph.recompute
    live = np.zeros(len(size), np.bool_)
    ran = np.zeros(len(workspace), np.int64)
    memory = np.zeros(len(steps), np.int64)
    held = 0
    for s in range(len(steps)):
        i = steps[s, 1]
        if steps[s, 0] == FREE:
            if producer[i] < 0 or not live[i]:
                return FREE_DEAD, s, i, memory, ran
            live[i] = False
            held -= size[i]
            memory[s] = held
            continue
        into = steps[s, 2]
        ran[i] += 1
        if ran[i] > 1 and not recompute[i]:
            return RAN_TWICE, s, i, memory, ran
        for j in range(in_ptr[i], in_ptr[i + 1]):
            v = in_ids[j]
            if producer[v] >= 0 and not live[v]:
                return DEAD_INPUT, s, v, memory, ran
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
                return BAD_INTO, s, into, memory, ran
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
            return LOST_KEEP, len(steps), v, memory, ran
    return OK, -1, -1, memory, ran
