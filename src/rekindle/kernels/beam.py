"""One level of a beam search over needed sets, in which each state retires one more op.

A state is the set of values that the rest of the step needs, walking from the end of the step to its start. Undoing a run
of op q takes q's outputs out of the set and puts its inputs in. If no reader of q's outputs is left, the run was q's first
and q is retired; else the run was a recomputation, and its cost is extra. The set determines which ops are retired: all but
the ancestors of its values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import entry, inner

# numba freezes these numbers, so they are no settings. They are guesses that served on small steps.
CHAIN_MOST_RUNS = 12  # runs that one drop takes back, at most
BACKWARD_FACTOR = 2.0  # on the cost of a drop that lasts only until an op of backward
DROPS_MOST = 64  # drops in a row, so that a state fits
SOFT_DROPS_MOST = 2  # drops in a row where only the soft limit asks for them
SOFT_PRICES_MOST = 3.0  # the most that such a drop may cost per byte, in prices
CHAIN_WORTH = 4  # a drop gives up at most about so many times the bytes of the value with which it begins


class BeamAim(NamedTuple):
    """The limits and the price of one level of the search.

    cap : bytes that no run may exceed. soft : bytes above which states drop something although they fit.
    price : cost of a held byte. window : unretired ops, back from the last, among which the next to retire is chosen.
    choices : drops tried from a state.
    """

    cap: int
    soft: int
    price: float
    window: int
    choices: int


class Net(NamedTuple):
    """The graph as the kernel takes it; rows are compressed.

    size, producer : int64 [values]; producer -1: held by the caller.
    in_*, out_* : per op. read_* : per value its readers among the needed ops, ascending.
    over_* : per op the inputs over which it may write its first output.
    after : bool [ops]; whether the op depends on the boundary, or there is none.
    weight : float64 [ops]; code : uint64 [values], random.
    large : values whose runs are worth taking back, the last made first.
    """

    size: np.ndarray
    producer: np.ndarray
    in_ptr: np.ndarray
    in_ids: np.ndarray
    out_ptr: np.ndarray
    out_ids: np.ndarray
    read_ptr: np.ndarray
    read_ids: np.ndarray
    over_ptr: np.ndarray
    over_ids: np.ndarray
    workspace: np.ndarray
    recompute: np.ndarray
    after: np.ndarray
    weight: np.ndarray
    code: np.ndarray
    large: np.ndarray
    boundary: int


class Pool(NamedTuple):
    """States side by side.

    live : bool [width, values]. retired : bool [width, ops]. held : bytes. extra : cost. top : last op not retired.
    key : hash of `live`. score : the lower the better. dropped : bytes given up by recomputation, in all.
    record : the row of the last recorded run. last : the runs since then, `pending` of them.
    """

    live: np.ndarray
    retired: np.ndarray
    held: np.ndarray
    extra: np.ndarray
    top: np.ndarray
    key: np.ndarray
    score: np.ndarray
    dropped: np.ndarray
    record: np.ndarray
    last: np.ndarray
    pending: np.ndarray


def pool(width: int, n_values: int, n_ops: int) -> Pool:
    """Room for `width` states."""
    whole, real = np.zeros(width, np.int64), np.zeros(width)
    return Pool(
        np.zeros((width, n_values), np.bool_), np.zeros((width, n_ops), np.bool_), whole, real, whole.copy(),
        np.zeros(width, np.uint64), real.copy(), real.copy(), whole.copy(), np.zeros((width, CHAIN_MOST_RUNS), np.int32),
        whole.copy(),
    )  # fmt: skip


@inner
def during(live, held, q, net):
    """Bytes while q runs, where `live` is needed after it."""
    total = held + net.workspace[q]
    for j in range(net.out_ptr[q], net.out_ptr[q + 1]):
        if not live[net.out_ids[j]]:
            total += net.size[net.out_ids[j]]
    for j in range(net.in_ptr[q], net.in_ptr[q + 1]):
        v = net.in_ids[j]
        if net.producer[v] >= 0 and not live[v]:
            total += net.size[v]
    if net.over_ptr[q + 1] > net.over_ptr[q]:
        first = net.out_ids[net.out_ptr[q]]
        for j in range(net.over_ptr[q], net.over_ptr[q + 1]):
            v = net.over_ids[j]
            if live[first] and not live[v] and net.size[v] >= net.size[first]:
                return total - net.size[first]
    return total


@inner
def undo(live, held, key, q, net, flipped, n):
    """(bytes held, key, n) after taking back a run of q; the values that go out or come in are listed in flipped[n:]."""
    for j in range(net.out_ptr[q], net.out_ptr[q + 1]):
        v = net.out_ids[j]
        if live[v]:
            live[v] = False
            held -= net.size[v]
            key ^= net.code[v]
            flipped[n] = v
            n += 1
    for j in range(net.in_ptr[q], net.in_ptr[q + 1]):
        v = net.in_ids[j]
        if net.producer[v] >= 0 and not live[v]:
            live[v] = True
            held += net.size[v]
            key ^= net.code[v]
            flipped[n] = v
            n += 1
    return held, key, n


@inner
def put_back(live, flipped, n):
    """Reverts `undo`; a value may have gone out and come in again."""
    for k in range(n - 1, -1, -1):
        live[flipped[k]] = not live[flipped[k]]


@inner
def is_read(retired, q, net):
    """Whether an op that is not retired reads what q makes."""
    for j in range(net.out_ptr[q], net.out_ptr[q + 1]):
        v = net.out_ids[j]
        for k in range(net.read_ptr[v], net.read_ptr[v + 1]):
            if not retired[net.read_ids[k]]:
                return True
    return False


@inner
def place(to, n, key, extra, score):
    """(slot, n): where a state goes in a pool of n states, which may grow by one; slot -1: nowhere, its score is too high."""
    worst = 0
    for k in range(n):
        if to.key[k] == key:
            return (k if extra < to.extra[k] else -1), n
        if to.score[k] > to.score[worst]:
            worst = k
    if n < len(to.key):
        return n, n + 1
    return (worst if score < to.score[worst] else -1), n


@inner
def copy(to, slot, pool, i, runs, count, held, key, extra, score, dropped, net, flipped):
    """Copies state i, with `runs` taken back, into a slot of another pool."""
    to.live[slot] = pool.live[i]
    to.retired[slot] = pool.retired[i]
    for k in range(count):
        undo(to.live[slot], 0, np.uint64(0), runs[k], net, flipped, 0)
        to.last[slot, k] = runs[k]
    to.held[slot], to.key[slot], to.extra[slot], to.score[slot] = held, key, extra, score
    to.dropped[slot] = dropped
    to.top[slot], to.record[slot], to.pending[slot] = pool.top[i], pool.record[i], count


@entry
def put_down(pool, i, records, n):
    """Records the last runs of state i as rows (row of the record before, op); the number of rows then."""
    for k in range(pool.pending[i]):
        records[n, 0] = pool.record[i]
        records[n, 1] = pool.last[i, k]
        pool.record[i] = n
        n += 1
    pool.pending[i] = 0
    return n


@inner
def retire(pool, i, to, n, net, aim, flipped):
    """(whether one fits, whether one stays below `soft`, n): each way to retire an op among the last
    `aim.window` ones, put into pool `to`."""
    live, retired = pool.live[i], pool.retired[i]
    run = np.empty(1, np.int64)
    fits, well = False, False
    seen = 0
    q = pool.top[i]
    while q >= 0 and seen < aim.window:
        if not retired[q]:
            seen += 1
            if not is_read(retired, q, net) and during(live, pool.held[i], q, net) <= aim.cap:
                held, key, m = undo(live, pool.held[i], pool.key[i], q, net, flipped, 0)
                put_back(live, flipped, m)
                fits = True
                well = well or held <= aim.soft
                score = pool.extra[i] + aim.price * held
                slot, n = place(to, n, key, pool.extra[i], score)
                if slot >= 0:
                    run[0] = q
                    copy(to, slot, pool, i, run, 1, held, key, pool.extra[i], score, pool.dropped[i], net, flipped)
                    to.retired[slot, q] = True
                    while to.top[slot] >= 0 and to.retired[slot, to.top[slot]]:
                        to.top[slot] -= 1
        q -= 1
    return fits, well, n


@inner
def is_read_behind(retired, v, net):
    """Whether the last op left that reads v is in backward, so that dropping v now lasts only until that op."""
    for k in range(net.read_ptr[v + 1] - 1, net.read_ptr[v] - 1, -1):
        if not retired[net.read_ids[k]]:
            return net.boundary >= 0 and net.after[net.read_ids[k]]
    return False


@inner
def best_chain(live, start, v, net, cap, most, chain, flipped):
    """(cost per byte, runs) of the best drop that begins with taking back the run that made v; the runs in `chain`.

    As long as a run brings in a large value, its maker's run is taken back next, and no
    more than `most` is paid in all.
    """
    held, key, m = start, np.uint64(0), 0
    cost = 0.0
    best = np.inf
    kept = 0
    q = net.producer[v]
    count = 0
    while q >= 0 and count < CHAIN_MOST_RUNS and cost <= most and during(live, held, q, net) <= cap:
        held, key, m = undo(live, held, key, q, net, flipped, m)
        cost += net.weight[q]
        chain[count] = q
        count += 1
        if held < start and cost < best * (start - held):
            best = cost / (start - held)
            kept = count
        q = -1
        largest = 0
        for k in range(m):
            u = flipped[k]
            if live[u] and net.size[u] > largest and net.recompute[net.producer[u]]:
                largest, q = net.size[u], net.producer[u]
    put_back(live, flipped, m)
    return best, kept


@inner
def drop(pool, i, to, n, net, aim, dearest, flipped):
    """Number of states in pool `to` after the drops of state i that cost least for the bytes they give up, and
    less than `dearest` per byte."""
    live, retired = pool.live[i], pool.retired[i]
    rate = np.full(aim.choices, dearest)
    chains = np.empty((aim.choices, CHAIN_MOST_RUNS), np.int64)
    length = np.zeros(aim.choices, np.int64)
    chain = np.empty(CHAIN_MOST_RUNS, np.int64)
    for x in range(len(net.large)):
        v = net.large[x]
        if not live[v] or not net.recompute[net.producer[v]] or not is_read(retired, net.producer[v], net):
            continue
        most = CHAIN_WORTH * net.size[v] * rate[aim.choices - 1]
        best, kept = best_chain(live, pool.held[i], v, net, aim.cap, most, chain, flipped)
        if is_read_behind(retired, v, net):
            best *= BACKWARD_FACTOR
        k = aim.choices
        while k > 0 and rate[k - 1] > best:
            if k < aim.choices:
                rate[k], length[k], chains[k] = rate[k - 1], length[k - 1], chains[k - 1]
            k -= 1
        if k < aim.choices:
            rate[k], length[k], chains[k] = best, kept, chain
    for k in range(aim.choices):
        if length[k] == 0:
            break
        held, key, m = pool.held[i], pool.key[i], 0
        extra = pool.extra[i]
        for r in range(length[k]):
            held, key, m = undo(live, held, key, chains[k, r], net, flipped, m)
            extra += net.weight[chains[k, r]]
        put_back(live, flipped, m)
        score = extra + aim.price * held
        slot, n = place(to, n, key, extra, score)
        if slot >= 0:
            given = pool.dropped[i] + pool.held[i] - held
            copy(to, slot, pool, i, chains[k], length[k], held, key, extra, score, given, net, flipped)
    return n


@entry
def level(now, n, to, spare, other, records, n_records, net, aim, flipped):
    """(states in `to`, number of records): every state of `now` with one op more retired, after as many drops as it takes
    to stay within `aim.soft`. The first is -1 if `records` is too short; then call again with a longer one.

    spare, other : pools, scratch. records : int64 [m, 2].
    """
    following = 0
    for step in range(DROPS_MOST):
        dropped = 0
        for i in range(n):
            if n_records + CHAIN_MOST_RUNS > len(records):
                return -1, n_records
            n_records = put_down(now, i, records, n_records)
            fits, well, following = retire(now, i, to, following, net, aim, flipped)
            if not well:
                dearest = SOFT_PRICES_MOST * aim.price if fits else np.inf
                dropped = drop(now, i, spare, dropped, net, aim, dearest, flipped)
        if dropped == 0 or following > 0 and step >= SOFT_DROPS_MOST:
            break
        n = dropped
        now, spare, other = spare, other, spare
    return following, n_records


@entry
def runs_of(records, record):
    """The ops in the order in which they run."""
    n = 0
    r = record
    while r >= 0:
        n += 1
        r = records[r, 0]
    out = np.empty(n, np.int64)
    r = record
    for k in range(n):
        out[k] = records[r, 1]
        r = records[r, 0]
    return out
