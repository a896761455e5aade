"""Least forward steps to reverse a uniform chain with so much memory."""

from __future__ import annotations

import numpy as np

from .compiled import entry


@entry
def fewest_steps(n, memory, state, internal):
    """(steps int64 [n + 1, memory + 1], choice int64 of the same shape) to reverse t steps with memory m.

    state, internal : memory that the state before a step takes, and all that backward of the step needs; 0: is not
    stored. The state at the beginning takes `state` or else 1, and is there.

    The last step is reached from the beginning and run once more for its backward (choice 0); or the state after y
    steps is stored on the way (choice y); or what backward of step y needs is (choice -y), from where forward goes on:

        C(t, m) = min(t + C(t - 1, m), y + C(t - y, m - state) + C(y, m), y + C(t - y, m - internal) + C(y - 1, m)).

    O(n^2 memory).
    """
    steps = np.zeros((n + 1, memory + 1), np.int64)
    choice = np.zeros((n + 1, memory + 1), np.int64)
    begin = max(1, state)
    for t in range(1, n + 1):
        for m in range(begin, memory + 1):
            best = t + steps[t - 1, m]
            if state > 0 and m - state >= begin:
                for y in range(1, t):
                    total = y + steps[t - y, m - state] + steps[y, m]
                    if total < best:
                        best = total
                        choice[t, m] = y
            if internal > 0 and m - internal >= begin:
                for y in range(1, t + 1):
                    total = y + steps[t - y, m - internal] + steps[y - 1, m]
                    if total < best:
                        best = total
                        choice[t, m] = -y
            steps[t, m] = best
    return steps, choice
