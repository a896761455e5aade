"""Changes of the modes of values (see `modes`), as annealing proposes them.

Arguments that the functions share:

candidates : int64; values whose mode may change, in order of production.
classes : int64 per candidate; values of one class are made by the same kind of op with the same shape.
modes : int8 [values]; changed in place.
changed : int64 [at least candidates + 1, 2]; the log: each value that was changed, and its mode before.

Each change returns how many rows of `changed` it wrote; `undo` takes that many back.
"""

from __future__ import annotations

import numpy as np

from .compiled import inner
from .modes import HOLD, KEEP, MODES, TRANSIENT

NEAR_CANDIDATES = 6  # how far from a candidate another one is changed with it


@inner
def _note(v, k, modes, changed):
    changed[k, 0], changed[k, 1] = v, modes[v]
    return k + 1


@inner
def undo(k, modes, changed):
    """Take back the first k changes."""
    for q in range(k - 1, -1, -1):
        modes[changed[q, 0]] = changed[q, 1]


@inner
def drop(v, modes, changed):
    """Move v to a mode that holds it for less time; where it is transient already, for longer."""
    k = _note(v, 0, modes, changed)
    modes[v] = np.random.randint(modes[v]) if modes[v] > TRANSIENT else 1 + np.random.randint(2)
    return k


@inner
def neighbours(several, candidates, modes, changed):
    """Change the mode of one value, or of two or three that are made near each other."""
    n = len(candidates)
    i = np.random.randint(n)
    k = 0
    for q in range(2 + np.random.randint(2) if several else 1):
        if q > 0:
            i = min(n - 1, max(0, i + np.random.randint(-NEAR_CANDIDATES, NEAR_CANDIDATES + 1)))
        v = candidates[i]
        k = _note(v, k, modes, changed)
        modes[v] = (modes[v] + 1 + np.random.randint(2)) % MODES
    return k


@inner
def keep_again(exchange, candidates, classes, modes, changed):
    """Keep a value that is recomputed; or, with `exchange`, swap its mode with another value of its class: one change, where
    two would first cost bytes or time."""
    n = len(candidates)
    first = np.random.randint(n)
    for q in range(n):
        i = (first + q) % n
        v = candidates[i]
        if modes[v] == KEEP:
            continue
        k = _note(v, 0, modes, changed)
        w = _peer(candidates, classes, modes, i, np.random.randint(n)) if exchange else -1
        if w >= 0:
            k = _note(w, k, modes, changed)
            modes[v], modes[w] = modes[w], modes[v]
        else:
            modes[v] = KEEP if np.random.random() < 0.7 else HOLD - modes[v]  # else hold becomes transient, and back
        return k
    return 0


@inner
def _peer(candidates, classes, modes, i, start):
    """The first candidate from the `start`-th on that is of the class of the i-th and has another mode; -1: none."""
    n = len(candidates)
    for q in range(n):
        j = (start + q) % n
        if classes[j] == classes[i] and modes[candidates[j]] != modes[candidates[i]]:
            return candidates[j]
    return -1


@inner
def one_class(candidates, classes, modes, changed):
    """Give all values of a class one mode, over a stretch of the network or all of it."""
    n = len(candidates)
    i = np.random.randint(n)
    to = np.random.randint(MODES)
    reach = n if np.random.random() < 0.3 else 1 + np.random.randint(max(1, n // 4))
    k = 0
    for q in range(max(0, i - reach), min(n, i + reach)):
        v = candidates[q]
        if classes[q] == classes[i] and modes[v] != to:
            k = _note(v, k, modes, changed)
            modes[v] = to
    return k
