"""Simulated annealing over the modes of values (see `modes`), scored by the exact peak and cost of the whole step."""

from __future__ import annotations

import numba as nb
import numpy as np

from .modes import expand, peak

INFEASIBLE = 1e18


@nb.njit(cache=True, nogil=True)
def _evaluate(modes, search, graph, scratch, runs):
    """(peak, index of the run that holds it, extra cost, number of runs)."""
    order, drop_ptr, drop_ids, producer, weights, shared, base_cost = search
    size, _, in_ptr, in_ids, out_ptr, out_ids, inp_ptr, inp_ids, workspace, recompute, keep, boundary = graph
    avail, gone, stack, passing, live, side, may = scratch
    m = expand(order, modes, drop_ptr, drop_ids, producer, in_ptr, in_ids, out_ptr, out_ids, avail, gone, stack,
               passing, runs)  # fmt: skip
    if m < 0:
        return INFEASIBLE, 0, INFEASIBLE, 0
    top, at = peak(runs, m, live, side, may, size, producer, in_ptr, in_ids, out_ptr, out_ids, inp_ptr, inp_ids,
                   workspace, recompute, keep, boundary, shared)  # fmt: skip
    cost = 0.0
    for s in range(m):
        cost += weights[runs[s]]
    return float(top), at, cost - base_cost, m


@nb.njit(cache=True, nogil=True)
def soft(top, extra, goal):
    """What annealing descends: the goal, and the excess over its limits, so that it can pass through them."""
    limit, max_extra, peak_scale, cost_scale, peak_weight, cost_weight = goal
    return (
        peak_weight * top / peak_scale
        + cost_weight * extra / cost_scale
        + 20.0 * max(0.0, top - limit) / peak_scale
        + 20.0 * max(0.0, extra - max_extra) / cost_scale
    )


@nb.njit(cache=True, nogil=True)
def score(top, extra, goal):
    """What the best is chosen by: within the limits, however narrowly, comes before any point beyond them."""
    beyond = top > goal[0] or extra > goal[1] * (1 + 1e-9) + 1e-12
    return soft(top, extra, goal) + (1000.0 if beyond else 0.0)


@nb.njit(cache=True, nogil=True)
def _hot(runs, m, at, modes, is_candidate, in_ptr, in_ids, out_ptr, out_ids, mark, hot):
    """Candidates that are live while runs[at] runs without being its input or output; how many were written to hot."""
    for v in range(len(mark)):
        mark[v] = 0
    for s in range(at):
        o = runs[s]
        for j in range(out_ptr[o], out_ptr[o + 1]):
            mark[out_ids[j]] = 1
    # Back from the end: 2 marks what is read after `at` before it is made again.
    for s in range(m - 1, at, -1):
        o = runs[s]
        for j in range(out_ptr[o], out_ptr[o + 1]):
            if mark[out_ids[j]] == 2:
                mark[out_ids[j]] = 1
        for j in range(in_ptr[o], in_ptr[o + 1]):
            if mark[in_ids[j]] == 1:
                mark[in_ids[j]] = 2
    o = runs[at]
    for j in range(in_ptr[o], in_ptr[o + 1]):
        mark[in_ids[j]] = 0
    k = 0
    for v in range(len(mark)):
        if mark[v] == 2 and is_candidate[v]:
            hot[k] = v
            k += 1
    return k


@nb.njit(cache=True, nogil=True)
def anneal(modes, candidates, klass, search, graph, goal, iterations, hot_start, seed, cap):
    """(best modes, best peak, best extra cost, best score) after `iterations` proposals, from `modes`.

    candidates : int64, values whose mode may change, in order of production.
    klass : int64 per candidate; values of one class are made by the same kind of op with the same shape, and
        sometimes change together.
    search : see `_evaluate`; graph : `Graph.arrays`.
    goal : (limit in bytes, most extra cost, bytes scale, cost scale, weight of the peak, weight of the cost).
    hot_start : first temperature, in units of the score; it falls to a thousandth, quadratically.
    cap : most runs a sequence may have.
    """
    np.random.seed(seed)
    size, _, in_ptr, in_ids, out_ptr, out_ids, inp_ptr, inp_ids, workspace, recompute, keep, boundary = graph
    n_values, n_ops, n = len(size), len(workspace), len(candidates)
    scratch = (
        np.empty(n_values, np.bool_), np.empty(n_values, np.bool_), np.empty(n_ops + 1, np.int64),
        np.empty(n_values + 1, np.int64), np.empty(n_values, np.bool_), np.empty(n_values, np.int8),
        np.empty(cap, np.int64),
    )  # fmt: skip
    runs = np.empty(cap, np.int64)
    is_candidate = np.zeros(n_values, np.bool_)
    for v in candidates:
        is_candidate[v] = True
    mark = np.empty(n_values, np.int8)
    hot = np.empty(n_values, np.int64)
    modes = modes.copy()
    top, at, extra, m = _evaluate(modes, search, graph, scratch, runs)
    current = soft(top, extra, goal)
    best, best_top, best_extra = score(top, extra, goal), top, extra
    best_modes = modes.copy()
    n_hot = 0
    touched = np.empty(n, np.int64)
    old = np.empty(n, np.int8)
    for it in range(iterations):
        if it % 64 == 0:
            _, at, _, m = _evaluate(modes, search, graph, scratch, runs)
            n_hot = _hot(runs, m, at, modes, is_candidate, in_ptr, in_ids, out_ptr, out_ids, mark, hot)
        left = 1.0 - it / iterations
        temperature = hot_start * (left * left + 1e-3)
        k = 0
        u = np.random.random()
        if u < 0.35 and n_hot > 0:
            # Where it hurts: drop something that waits at the peak.
            v = hot[np.random.randint(n_hot)]
            old[0] = modes[v]
            touched[0] = v
            modes[v] = np.random.randint(modes[v]) if modes[v] > 0 else 1 + np.random.randint(2)
            k = 1
        elif u < 0.75:
            # One to three neighbours.
            i = np.random.randint(n)
            count = 1 if u < 0.6 else 2 + np.random.randint(2)
            for q in range(count):
                if q > 0:
                    i = min(n - 1, max(0, i + np.random.randint(-6, 7)))
                v = candidates[i]
                touched[k] = v
                old[k] = modes[v]
                k += 1
                modes[v] = (modes[v] + 1 + np.random.randint(2)) % 3
        elif u < 0.93:
            # Keep something again that is made again.
            i = np.random.randint(n)
            for q in range(n):
                v = candidates[(i + q) % n]
                if modes[v] != 2:
                    touched[0] = v
                    old[0] = modes[v]
                    k = 1
                    modes[v] = 2 if np.random.random() < 0.7 else 1 - modes[v]
                    break
        else:
            # One class, over a stretch of the network or all of it.
            i = np.random.randint(n)
            to = np.random.randint(3)
            reach = n if np.random.random() < 0.3 else 1 + np.random.randint(max(1, n // 4))
            for q in range(max(0, i - reach), min(n, i + reach)):
                v = candidates[q]
                if klass[q] == klass[i] and modes[v] != to:
                    touched[k] = v
                    old[k] = modes[v]
                    k += 1
                    modes[v] = to
        if k == 0:
            continue
        top, at, extra, m = _evaluate(modes, search, graph, scratch, runs)
        new = soft(top, extra, goal)
        if new <= current or np.random.random() < np.exp((current - new) / temperature):
            current = new
            strict = score(top, extra, goal)
            if strict < best:
                best, best_top, best_extra = strict, top, extra
                best_modes[:] = modes
        else:
            for q in range(k - 1, -1, -1):
                modes[touched[q]] = old[q]
    return best_modes, best_top, best_extra, best


@nb.njit(cache=True, nogil=True)
def descend(modes, candidates, search, graph, goal, cap):
    """(modes, peak, extra cost, score) after passes over all candidates that take every change for the better."""
    size, _, in_ptr, in_ids, out_ptr, out_ids, inp_ptr, inp_ids, workspace, recompute, keep, boundary = graph
    n_values, n_ops = len(size), len(workspace)
    scratch = (
        np.empty(n_values, np.bool_), np.empty(n_values, np.bool_), np.empty(n_ops + 1, np.int64),
        np.empty(n_values + 1, np.int64), np.empty(n_values, np.bool_), np.empty(n_values, np.int8),
        np.empty(cap, np.int64),
    )  # fmt: skip
    runs = np.empty(cap, np.int64)
    modes = modes.copy()
    top, _, extra, _ = _evaluate(modes, search, graph, scratch, runs)
    current = score(top, extra, goal)
    for _ in range(4):
        improved = False
        for v in candidates:
            was = modes[v]
            take = was
            for mode in range(3):
                if mode == was:
                    continue
                modes[v] = mode
                t, _, x, _ = _evaluate(modes, search, graph, scratch, runs)
                s = score(t, x, goal)
                if s < current - 1e-12:
                    current, top, extra, take = s, t, x, mode
                    improved = True
            modes[v] = take
        if not improved:
            break
    return modes, top, extra, current
