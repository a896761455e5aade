"""Search over the modes of values (see `modes`) and the order of ops, scored by the exact peak and cost of the step.

Arguments that many functions share:

point : (modes int8 [values], order int64 [ops]).
problem : (drop_ptr, drop_ids, producer, weights, shared, base_cost, before_ptr, before_ids, regions, cap): see `Reduced`;
    weights are per op, base_cost is their sum, cap is the most runs a sequence may have.
graph : `Graph.arrays` of the reduced problem.
goal : (limit in bytes, most extra cost, bytes scale, cost scale, weight of the peak, weight of the cost).
archive : (edges, extra, peak, modes, orders): in row b the cheapest point found whose peak is at most edges[b] and above
    edges[b - 1]; extra is infinite where there is none.
"""

from __future__ import annotations

import numpy as np

from . import changes
from .compiled import entry, inner
from .modes import expand, peak
from .order import leeway, move

INFEASIBLE = 1e18
BEYOND = 20.0  # weight in the soft score of what is beyond a limit
HOPELESS = (
    38.0  # temperatures by which a change for the worse is never taken: exp(-38) < 2^-53, the least random number
)
NO_GOAL = (np.inf, np.inf, 1.0, 1.0, 1.0, 1.0)


@entry
def scratch_for(problem, graph):
    """Work space of `evaluate`: one per thread."""
    n_values, n_ops, cap = len(graph[0]), len(graph[8]), problem[9]
    return (
        np.empty(n_values, np.bool_), np.empty(n_values, np.bool_), np.empty(n_ops + 1, np.int64),
        np.empty(n_values + 1, np.int64), np.empty(n_values, np.bool_), np.empty(cap, np.int64),
    )  # fmt: skip


@inner
def _expand(modes, order, ends, weights, graph, most, avail, gone, stack, passing, runs):
    """(number of runs, cost of those beyond one per op): as `modes.expand`, where all drops are at position `ends`; the number
    is also -1 where the cost is more than `most`."""
    producer, in_ptr, in_ids, out_ptr, out_ids = graph[1], graph[2], graph[3], graph[4], graph[5]
    cap = len(runs)
    for v in range(len(producer)):
        forward = producer[v] < ends
        avail[v] = forward and modes[v] == 2
        gone[v] = forward and modes[v] == 0
    for i in range(ends):
        runs[i] = order[i]
    m = ends
    extra = 0.0
    for i in range(ends, len(order)):
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
                return -1, 0.0
            runs[m] = o
            m += 1
            if top:
                extra += weights[o]
            for j in range(out_ptr[o], out_ptr[o + 1]):
                v = out_ids[j]
                if not avail[v]:
                    avail[v] = True
                    if gone[v]:
                        passing[n_passing] = v
                        n_passing += 1
        if extra > most:
            return -1, extra
        for k in range(n_passing):
            avail[passing[k]] = False
    return m, extra


@entry
def evaluate(modes, order, problem, graph, scratch):
    """(peak, index of the run that holds it, extra cost, number of runs); the runs lie in the last of `scratch`."""
    return _evaluate(modes, order, problem, graph, NO_GOAL, np.inf, scratch)


@entry
def _evaluate(modes, order, problem, graph, goal, most, scratch):
    """As `evaluate`; or infeasible, where it is seen on the way that the soft score is above `most`."""
    limit, max_extra, peak_scale, cost_scale, peak_weight, cost_weight = goal
    drop_ptr, drop_ids, producer, weights, shared, base_cost, _, _, regions, _ = problem
    size, _, in_ptr, in_ids, out_ptr, out_ids, inp_ptr, inp_ids, workspace, recompute, keep, boundary = graph
    avail, gone, stack, passing, live, runs = scratch
    if regions[1] > 0:
        most_extra = _where(most, max_extra, cost_scale, cost_weight)
        m, extra = _expand(modes, order, regions[1], weights, graph, most_extra, avail, gone, stack, passing, runs)
    else:
        m = expand(order, modes, drop_ptr, drop_ids, producer, in_ptr, in_ids, out_ptr, out_ids, avail, gone, stack,
                   passing, runs)  # fmt: skip
        extra = -base_cost
        for s in range(m):
            extra += weights[runs[s]]
    if m < 0:
        return INFEASIBLE, 0, INFEASIBLE, 0
    most_peak = _where(most - soft(0.0, extra, goal), limit, peak_scale, peak_weight)
    top, at = peak(runs, m, most_peak, live, size, producer, in_ptr, in_ids, out_ptr, out_ids, inp_ptr, inp_ids, workspace,
                   recompute, keep, boundary, shared)  # fmt: skip
    if top > most_peak:
        return INFEASIBLE, 0, INFEASIBLE, 0
    return float(top), at, extra, m


@inner
def _where(most, limit, scale, weight):
    """From what amount on its part of the soft score is above `most`, by a margin beyond rounding."""
    most = most * scale * (1 + 1e-9)
    if most <= weight * limit:
        return max(0.0, most) / weight
    return (most + BEYOND * limit) / (weight + BEYOND) * (1 + 1e-9)


@entry
def soft(top, extra, goal):
    """What annealing descends: the goal, and the excess over its limits, so that it can pass through them."""
    limit, max_extra, peak_scale, cost_scale, peak_weight, cost_weight = goal
    return (
        peak_weight * top / peak_scale
        + cost_weight * extra / cost_scale
        + BEYOND * max(0.0, top - limit) / peak_scale
        + BEYOND * max(0.0, extra - max_extra) / cost_scale
    )


@entry
def score(top, extra, goal):
    """What the best is chosen by: within the limits, however narrowly, comes before any point beyond them."""
    beyond = top > goal[0] or extra > goal[1] * (1 + 1e-9) + 1e-12
    return soft(top, extra, goal) + (1000.0 if beyond else 0.0)


@entry
def record(archive, modes, order, top, extra):
    """Enter a point where it is cheaper than what the archive has at its peak."""
    edges, cheapest, peaks, kept_modes, kept_orders = archive
    b = np.searchsorted(edges, top)
    if b < len(edges) and (extra < cheapest[b] - 1e-9 * abs(cheapest[b]) or (extra <= cheapest[b] and top < peaks[b])):
        cheapest[b], peaks[b] = extra, top
        kept_modes[b] = modes
        kept_orders[b] = order


@inner
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


@inner
def _place(order, near, regions, before_ptr, before_ids):
    """(source, target): another place in the order for some op, half of the time for one beside the op `near`; target is -1
    where it may not move."""
    n = len(order)
    source = np.random.randint(n)
    if np.random.random() < 0.5:
        for i in range(n):
            if order[i] == near:
                source = min(n - 1, max(0, i + np.random.randint(-6, 7)))
                break
    if regions[0] <= source < regions[1]:
        return source, -1
    low = 0 if source < regions[0] else regions[1]
    high = regions[0] if source < regions[0] else n
    first, last = leeway(order, source, max(low, source - 40), min(high, source + 41), before_ptr, before_ids)
    return source, first + np.random.randint(last - first + 1)


@entry
def anneal(point, candidates, klass, problem, graph, goal, archive, iterations, hot_start, seed):
    """(modes, order, peak, extra cost) of the best point after `iterations` proposals; every point taken on the way is
    recorded in the archive.

    candidates, klass : as `changes` has them.
    hot_start : first temperature, in units of the score; it falls to a thousandth, quadratically.
    """
    np.random.seed(seed)
    size, producer, in_ptr, in_ids, out_ptr, out_ids, _, _, _, _, _, _ = graph
    before_ptr, before_ids, regions = problem[6], problem[7], problem[8]
    n_values = len(size)
    scratch = scratch_for(problem, graph)
    runs = scratch[-1]
    is_candidate = np.zeros(n_values, np.bool_)
    for v in candidates:
        is_candidate[v] = True
    mark = np.empty(n_values, np.int8)
    hot = np.empty(n_values, np.int64)
    modes, order = point[0].copy(), point[1].copy()
    top, at, extra, m = evaluate(modes, order, problem, graph, scratch)
    current = soft(top, extra, goal)
    record(archive, modes, order, top, extra)
    best, best_top, best_extra = score(top, extra, goal), top, extra
    best_modes, best_order = modes.copy(), order.copy()
    n_hot = 0
    peak_op = 0
    changed = np.empty((len(candidates) + 1, 2), np.int64)
    movable = regions[1] > 0
    for it in range(iterations):
        if it % 64 == 0:
            _, at, _, m = evaluate(modes, order, problem, graph, scratch)
            n_hot = _hot(runs, m, at, modes, is_candidate, in_ptr, in_ids, out_ptr, out_ids, mark, hot)
            peak_op = runs[at] if m > 0 else 0
        left = 1.0 - it / iterations
        temperature = hot_start * (left * left + 1e-3)
        k = 0
        source = target = -1
        u = np.random.random()  # which kind of change, and within two of them which form
        if movable and u < 0.15:
            source, target = _place(order, peak_op, regions, before_ptr, before_ids)
            if target < 0 or target == source:
                continue
            move(order, source, target)
        elif u < 0.42 and n_hot > 0:
            k = changes.drop(hot[np.random.randint(n_hot)], modes, changed)
        elif u < 0.75:
            k = changes.neighbours(u > 0.64, candidates, modes, changed)
        elif u < 0.93:
            k = changes.keep_again(u > 0.87, candidates, klass, modes, changed)
        else:
            k = changes.one_class(candidates, klass, modes, changed)
        if k == 0 and target < 0:
            continue
        most = current + HOPELESS * temperature
        top, at, extra, m = _evaluate(modes, order, problem, graph, goal, most, scratch)
        new = soft(top, extra, goal)
        if new <= current or np.random.random() < np.exp((current - new) / temperature):
            current = new
            record(archive, modes, order, top, extra)
            strict = score(top, extra, goal)
            if strict < best:
                best, best_top, best_extra = strict, top, extra
                best_modes[:] = modes
                best_order[:] = order
        else:
            if target >= 0:
                move(order, target, source)
            changes.undo(k, modes, changed)
    return best_modes, best_order, best_top, best_extra


@entry
def descend(point, candidates, problem, graph, goal, archive, passes):
    """(modes, order, peak, extra cost) after passes over all candidates that take every change of mode for the better."""
    scratch = scratch_for(problem, graph)
    modes, order = point[0].copy(), point[1]
    top, _, extra, _ = evaluate(modes, order, problem, graph, scratch)
    record(archive, modes, order, top, extra)
    current = score(top, extra, goal)
    for _ in range(passes):
        improved = False
        for v in candidates:
            was = modes[v]
            take = was
            for mode in range(3):
                if mode == was:
                    continue
                modes[v] = mode
                t, _, x, _ = evaluate(modes, order, problem, graph, scratch)
                record(archive, modes, order, t, x)
                s = score(t, x, goal)
                if s < current - 1e-12:
                    current, top, extra, take = s, t, x, mode
                    improved = True
            modes[v] = take
        if not improved:
            break
    return modes, order, top, extra
