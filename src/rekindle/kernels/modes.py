"""Three modes per value, expanded to a sequence of runs, and the peak of such a sequence.

A value that forward makes and backward reads is in one of three modes:

KEEP      it stays until its last use;
HOLD      it is dropped where forward ends, made again when first needed, and then stays until its last use;
TRANSIENT it is dropped where forward ends, and made again for each op that needs it.
"""

from __future__ import annotations

from .compiled import entry

TRANSIENT, HOLD, KEEP = 0, 1, 2


@entry
def expand(order, modes, drop_ptr, drop_ids, producer, in_ptr, in_ids, out_ptr, out_ids, avail, gone, stack, passing,
           runs):  # fmt: skip
    """Number of runs written to `runs`, or -1 where it is too short for them.

    order : int64, the ops once each, in a valid order.
    modes : int8 [values].
    drop_ptr, drop_ids : the values that are dropped, unless KEEP, before position i of `order`, in compressed rows.
    avail, gone : bool [values]; stack : int64 [ops]; passing : int64 [values]: scratch.

    An op's missing inputs are made again right before it, each by its producer, after that op's own missing inputs.
    """
    m = 0
    cap = len(runs)
    for v in range(len(producer)):
        avail[v] = producer[v] < 0
        gone[v] = False
    for i in range(len(order)):
        for j in range(drop_ptr[i], drop_ptr[i + 1]):
            v = drop_ids[j]
            if modes[v] != 2:
                avail[v] = False
                gone[v] = True
        n_passing = 0
        stack[0] = order[i]
        top = 1
        while top > 0:
            o = stack[top - 1]
            ready = True
            for j in range(in_ptr[o], in_ptr[o + 1]):
                v = in_ids[j]
                if not avail[v]:
                    stack[top] = producer[v]
                    top += 1
                    ready = False
                    break
            if not ready:
                continue
            top -= 1
            if m >= cap:
                return -1
            runs[m] = o
            m += 1
            for j in range(out_ptr[o], out_ptr[o + 1]):
                v = out_ids[j]
                if not avail[v]:
                    avail[v] = True
                    if gone[v] and modes[v] == 0:
                        passing[n_passing] = v
                        n_passing += 1
        for k in range(n_passing):
            avail[passing[k]] = False
    return m


@entry
def peak(runs, m, most, live, size, producer, in_ptr, in_ids, out_ptr, out_ids, inp_ptr, inp_ids, workspace,
         recompute, keep, boundary, shared):  # fmt: skip
    """(peak bytes without the resident ones, index of the run that holds it) of runs[:m]; or of the last of them, where
    they hold more than `most`.

    The same as judging `Schedule.from_runs`, in one backward scan: what is live after a run is known there, and an
    input that is not live after the run dies in it.

    live : bool [values]; scratch.
    shared : bool [values]: what the boundary reads or makes, which nothing may be written over.
    """
    held = 0
    for v in range(len(size)):
        live[v] = keep[v]
        if keep[v] and producer[v] >= 0:
            held += size[v]
    best = 0
    at = 0
    for s in range(m - 1, -1, -1):
        o = runs[s]
        during = held + workspace[o]
        before = held
        first_lives = False
        for j in range(out_ptr[o], out_ptr[o + 1]):
            v = out_ids[j]
            if live[v]:
                before -= size[v]
                live[v] = False
                if j == out_ptr[o]:
                    first_lives = True
            else:
                during += size[v]
        if first_lives and inp_ptr[o + 1] > inp_ptr[o]:
            first = out_ids[out_ptr[o]]
            for q in range(inp_ptr[o], inp_ptr[o + 1]):
                v = inp_ids[q]
                if producer[v] >= 0 and not shared[v] and not live[v] and size[v] >= size[first]:
                    during -= size[first]
                    break
        for j in range(in_ptr[o], in_ptr[o + 1]):
            v = in_ids[j]
            if producer[v] >= 0 and not live[v]:
                live[v] = True
                during += size[v]
                before += size[v]
        if during > best:
            best = during
            at = s
            if best > most:
                break
        held = before
    return best, at
