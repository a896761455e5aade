"""Least forward steps to reverse a uniform chain with so much memory."""

from __future__ import annotations

import numpy as np

from .compiled import entry, inner


@entry
def fewest_steps(n, memory, state, internal):
    """(steps int64 [n + 1, memory + 1], choice int32 of the same shape) to reverse t steps with memory m.

    state, internal : memory of the state before a step, and of all that the backward of the step needs; 0: it is never
    stored. The state at the beginning takes `state` or else 1, and is there.

    The last step is reached from the beginning and run once more for its backward (choice 0); or the state after y steps
    is stored on the way (choice y); or the internals of step y are stored (choice -y), and forward goes on from there:

        C(t, m) = min(t + C(t - 1, m), y + C(t - y, m - state) + C(y, m), y + C(t - y, m - internal) + C(y - 1, m)).

    Of several y that take as few the least is chosen.

    O(n memory log n) where C is convex in t for each m, since then so is what is searched over y. It is for states alone
    and for internals alone wherever it was looked at; for both it is not where there is little memory: O(n^2) for each
    such m.
    """
    steps = np.zeros((memory + 1, n + 1), np.int64)
    choice = np.zeros((memory + 1, n + 1), np.int32)
    convex = np.full(memory + 1, n)  # the last t up to which C(., m) is, as far as it is known
    begin = max(1, state)
    for m in range(begin, memory + 1):
        here = steps[m]
        for t in range(1, n + 1):
            best = t + here[t - 1]
            if t > 1 and internal > 0 and m - internal >= begin and steps[m - internal, t - 1] == t - 1:
                best = t  # all internals find room: no step runs twice
                choice[m, t] = -1
            else:
                if state > 0 and m - state >= begin and t > 1:
                    sure = min(convex[m], convex[m - state]) >= t - 1
                    y, total = _least(steps[m - state], here, t, 0, t - 1, sure)
                    if total < best:
                        best = total
                        choice[m, t] = y
                if internal > 0 and m - internal >= begin:
                    sure = min(convex[m], convex[m - internal]) >= t - 1
                    y, total = _least(steps[m - internal], here, t, 1, t, sure)
                    if total < best:
                        best = total
                        choice[m, t] = -y
            here[t] = best
            if t > 1 and convex[m] == n and here[t] - here[t - 1] < here[t - 1] - here[t - 2]:
                convex[m] = t - 1
    return steps.T, choice.T


@inner
def _least(after, before, t, inside, last, convex):
    """(y, total): the first y up to `last` of the least total; if that is convex in y, by bisection."""
    y = 1
    if convex:
        end = last
        while y < end:
            middle = (y + end) // 2
            if _total(after, before, t, middle + 1, inside) < _total(after, before, t, middle, inside):
                y = middle + 1
            else:
                end = middle
    else:
        for other in range(2, last + 1):
            if _total(after, before, t, other, inside) < _total(after, before, t, y, inside):
                y = other
    return y, _total(after, before, t, y, inside)


@inner
def _total(after, before, t, y, inside):
    """Forward steps where y of t are passed at first, those after them are reversed, then those before."""
    return y + after[t - y] + before[y - inside]
